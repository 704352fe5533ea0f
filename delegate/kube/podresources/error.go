package podresources

import (
	"context"
	"errors"
	"fmt"

	"github.com/containernetworking/cni/pkg/types"
	"google.golang.org/grpc/status"

	"github.com/metacni/metacni/netconf/nad"
)

// ErrUnknownPod is returned for a pod that the kubelet does not know: it has gone, or is
// not there yet.
var ErrUnknownPod = errors.New("the kubelet does not know the pod")

var errClosed = errors.New("the client is closed")

// An Error says why the devices of a pod are not known. It is the only type of error of
// this package.
type Error struct {
	Pod nad.Pod
	Err error // the cause, such as [ErrUnknownPod] or that of the context
}

// Error describes the failure in one line.
func (e *Error) Error() string {
	return fmt.Sprintf("devices of pod %q: %v", e.Pod, e.Err)
}

// Unwrap returns e.Err.
func (e *Error) Unwrap() error { return e.Err }

// CNICode reports the CNI error code for e, which is 11 (try again later).
func (*Error) CNICode() uint { return types.ErrTryAgainLater }

// because returns err, which came from the kubelet or from ctx, so that a person
// understands it and errors.Is finds the error of a context that has ended.
func because(ctx context.Context, err error) error {
	if s, ok := status.FromError(err); ok && !errors.Is(err, ctx.Err()) {
		err = fmt.Errorf("kubelet: %s (%v)", s.Message(), s.Code())
	}
	if ctx.Err() != nil && !errors.Is(err, ctx.Err()) {
		err = fmt.Errorf("%w: %w", ctx.Err(), err)
	}
	return err
}
