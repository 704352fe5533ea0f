package kube

import (
	"fmt"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/metacni/metacni/delegate/kube/internal/coded"
	"github.com/metacni/metacni/netconf"
)

// The errors that say that an object of the cluster could not be read or written, for
// [errors.Is].
var (
	// ErrNotSynced is returned where the View cannot know yet: it has not been in
	// touch with the API server, or not lately. CNI code 11.
	ErrNotSynced = coded.New(types.ErrTryAgainLater, "no usable answer from the Kubernetes API")

	// ErrGone is returned for a pod that the API server does not have: it is not
	// there yet, has gone, or is another one of the same name. CNI code 11.
	ErrGone = coded.New(types.ErrTryAgainLater, "the pod does not exist, or is another one of the same name")

	// ErrOutdated is returned for a pod whose object in the API may be older than what it
	// is attached to. CNI code 11.
	ErrOutdated = coded.New(types.ErrTryAgainLater, "the pod in the Kubernetes API may be older than its networks")

	// ErrNotFound is returned for a definition that certainly does not exist.
	// CNI code 7. It is also [netconf.ErrNotFound].
	ErrNotFound error = &coded.Error{Code: types.ErrInvalidNetworkConfig, Text: "does not exist", Err: netconf.ErrNotFound}

	errNotWritten = coded.New(types.ErrTryAgainLater, "the network status is not written")
)

// because returns kind with its cause, which may be nil.
func because(kind, cause error) error {
	if cause == nil {
		return kind
	}
	return fmt.Errorf("%w: %w", kind, cause)
}
