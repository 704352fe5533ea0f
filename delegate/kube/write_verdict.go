package kube

import (
	"errors"
	"net/http"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/metacni/metacni/delegate/kube/internal/apierr"
)

// An outcome is what becomes of an attempt to write a status.
type outcome int

const (
	settled outcome = iota // the API server has it, or there is nothing to be written
	early                  // not tried yet, because of the rate
	gone                   // there is no such pod, and there will not be
	refused                // it will not be written until somebody changes something
	failed                 // it may be written if it is tried again
)

// A verdict says what becomes of an attempt, and why.
type verdict struct {
	outcome outcome
	err     error         // if refused or failed
	unheard bool          // the API server has not answered, or only that it cannot
	delay   time.Duration // of the next attempt, at least
}

// judge returns the verdict on a request for a pod. static says that the object in the API
// comes and goes without the pod.
func judge(err error, static bool) verdict {
	if err == nil {
		return verdict{}
	}
	v := verdict{outcome: failed, err: err, delay: apierr.Delay(err, longestDelay)}
	var said apierrors.APIStatus
	if !errors.As(err, &said) {
		v.unheard = true
		return v
	}
	switch code := said.Status().Code; {
	case code == http.StatusNotFound && !apierrors.IsUnexpectedServerError(err),
		code == http.StatusUnprocessableEntity && isOtherUID(said.Status()):
		if !static {
			return verdict{outcome: gone}
		}
	case apierr.Refused(err):
		v.outcome = refused
	default:
		v.unheard = code < 400 || code >= 500
	}
	return v
}

// isOtherUID reports whether a patch was refused because the object has another UID.
func isOtherUID(s metav1.Status) bool {
	return s.Details != nil && slices.ContainsFunc(s.Details.Causes, func(c metav1.StatusCause) bool {
		return c.Field == "metadata.uid"
	})
}
