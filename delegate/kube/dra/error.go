package dra

import (
	"errors"
	"strings"

	"github.com/containernetworking/cni/pkg/types"
)

// The kinds of [Error], for [errors.Is].
var (
	// ErrClaim is returned for a claim that asks for something that cannot be prepared: a
	// wrong configuration, more than one pod, or a network that its pod may not use. It
	// fails until somebody changes the claim. CNI code 7.
	ErrClaim = errors.New("the claim cannot be prepared")

	// ErrInUse is returned for a device, an interface or a claim that another pod or claim
	// has. CNI code 11.
	ErrInUse = errors.New("in use")

	// ErrNotPrepared is returned for a claim without a record. CNI code 11: the kubelet
	// prepares the claims of a pod before it creates the pod.
	ErrNotPrepared = errors.New("not prepared")

	// ErrDamaged is returned for a file that is not what a [Store] has written. CNI code 5.
	ErrDamaged = errors.New("the record is damaged")
)

// An Error says which claim could not be prepared, read or released, and why.
type Error struct {
	Claim Ref
	Kind  error // one of the variables above, or nil
	Err   error // the cause, or nil
}

// Error describes the failure in one line.
func (e *Error) Error() string {
	parts := []string{"claim " + e.Claim.String()}
	for _, err := range e.Unwrap() {
		parts = append(parts, err.Error())
	}
	return strings.Join(parts, ": ")
}

// Unwrap returns e.Kind and e.Err, as far as they are set.
func (e *Error) Unwrap() []error {
	var all []error
	for _, err := range []error{e.Kind, e.Err} {
		if err != nil {
			all = append(all, err)
		}
	}
	return all
}

// CNICode reports the CNI error code for e: that of the kind. Without a kind it is that of
// the cause if it has one, and else 5, an I/O failure.
func (e *Error) CNICode() uint {
	var coder interface{ CNICode() uint }
	switch {
	case errors.Is(e.Kind, ErrClaim):
		return types.ErrInvalidNetworkConfig
	case errors.Is(e.Kind, ErrInUse), errors.Is(e.Kind, ErrNotPrepared):
		return types.ErrTryAgainLater
	case e.Kind == nil && errors.As(e.Err, &coder):
		return coder.CNICode()
	}
	return types.ErrIOFailure
}
