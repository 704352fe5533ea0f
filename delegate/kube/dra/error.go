package dra

import (
	"github.com/containernetworking/cni/pkg/types"

	"github.com/metacni/metacni/internal/fault"
)

// errNotPrepared is returned for a claim without a record. CNI code 11: the kubelet prepares the
// claims of a pod before it creates the pod.
var errNotPrepared = fault.New(types.ErrTryAgainLater, "not prepared")

// Errors of claims that cannot be prepared, read or released. Each names the claim.
var (
	// errClaim is for a claim that asks for something that cannot be prepared: a wrong
	// configuration, more than one pod, or a network that its pod may not use. It fails until
	// somebody changes the claim.
	errClaim = fault.New(types.ErrInvalidNetworkConfig, "the claim cannot be prepared")

	// errInUse is for a device, an interface or a claim that another pod or claim has.
	errInUse = fault.New(types.ErrTryAgainLater, "in use")
)

// failure returns err as one about the claim r. An error without a CNI code has 5, an I/O failure.
func (r Ref) failure(err error) error {
	return fault.Or(types.ErrIOFailure, fault.Of("claim", r.String(), err))
}
