package kube

import (
	"errors"
	"strings"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/metacni/metacni/netconf"
)

// The kinds of [Error], for [errors.Is].
var (
	// ErrNotSynced is returned where the View cannot know yet: it has not been in
	// touch with the API server, or not lately. CNI code 11.
	ErrNotSynced = errors.New("no usable answer from the Kubernetes API")

	// ErrGone is returned for a pod that the API server does not have: it is not
	// there yet, has gone, or is another one of the same name. CNI code 11.
	ErrGone = errors.New("the pod does not exist, or is another one of the same name")

	// ErrNotFound is returned for a definition that certainly does not exist.
	// CNI code 7. It is also [netconf.ErrNotFound].
	ErrNotFound = errors.New("does not exist")

	// ErrNotWritten is returned by [StatusWriter.Wait]: the status was not written in
	// time. CNI code 11.
	ErrNotWritten = errors.New("the network status is not written")
)

// An Error says which object of the cluster could not be read or written, and why.
type Error struct {
	Object string // "NAD namespace/name", "pod namespace/name"
	Kind   error  // one of the variables above
	Err    error  // the cause, or nil
}

// Error describes the failure in one line.
func (e *Error) Error() string {
	var s strings.Builder
	for _, part := range []string{e.Object, text(e.Kind), text(e.Err)} {
		if part != "" && s.Len() > 0 {
			s.WriteString(": ")
		}
		s.WriteString(part)
	}
	return s.String()
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// Unwrap returns e.Kind and e.Err.
func (e *Error) Unwrap() []error {
	all := []error{e.Kind}
	if e.Err != nil {
		all = append(all, e.Err)
	}
	if errors.Is(e.Kind, ErrNotFound) {
		all = append(all, netconf.ErrNotFound)
	}
	return all
}

// CNICode reports the CNI error code for e: 7 for [ErrNotFound] and else 11.
func (e *Error) CNICode() uint {
	if errors.Is(e.Kind, ErrNotFound) {
		return types.ErrInvalidNetworkConfig
	}
	return types.ErrTryAgainLater
}
