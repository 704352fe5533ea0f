// Package apierr says what follows from the error of a request to an API server.
package apierr

import (
	"errors"
	"net/http"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
)

// None reports whether an API server has said that there is no such object. A proxy can answer
// 404 as well, and so does an API server that lacks the whole resource.
func None(err error) bool {
	var s apierrors.APIStatus
	return apierrors.IsNotFound(err) && errors.As(err, &s) && s.Status().Details != nil && s.Status().Details.Name != "" &&
		!apierrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse)
}

// Refused reports whether an API server will refuse the request until somebody changes
// something.
func Refused(err error) bool {
	var s apierrors.APIStatus
	if !errors.As(err, &s) {
		return false
	}
	code := s.Status().Code
	passing := []int32{http.StatusUnauthorized, http.StatusConflict, http.StatusTooManyRequests}
	return 400 <= code && code < 500 && !slices.Contains(passing, code)
}

// Delay returns how long an API server asks to wait, and up to half as long again: those that it
// has refused at once do not come back at once. It is at most limit, and zero if the server does
// not ask.
func Delay(err error, limit time.Duration) time.Duration {
	seconds, ok := apierrors.SuggestsClientDelay(err)
	if !ok || seconds <= 0 {
		return 0
	}
	return min(wait.Jitter(time.Duration(seconds)*time.Second, 0.5), limit)
}
