package dra

import (
	"fmt"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/metacni/metacni/delegate/kube/internal/coded"
	"github.com/metacni/metacni/status"
)

// errNotPrepared is returned for a claim without a record. CNI code 11: the kubelet prepares the
// claims of a pod before it creates the pod.
var errNotPrepared = coded.New(types.ErrTryAgainLater, "not prepared")

// Errors of claims that cannot be prepared, read or released. Each names the claim.
var (
	// errClaim is for a claim that asks for something that cannot be prepared: a wrong
	// configuration, more than one pod, or a network that its pod may not use. It fails until
	// somebody changes the claim.
	errClaim = coded.New(types.ErrInvalidNetworkConfig, "the claim cannot be prepared")

	// errInUse is for a device, an interface or a claim that another pod or claim has.
	errInUse = coded.New(types.ErrTryAgainLater, "in use")
)

// failure returns err as one about the claim r. An error without a CNI code has 5, an I/O failure.
func (r Ref) failure(err error) error {
	if err == nil {
		return nil
	}
	about := fmt.Errorf("claim %s: %w", r, err)
	if status.Code(err) == types.ErrInternal {
		return coded.With(types.ErrIOFailure, about)
	}
	return about
}
