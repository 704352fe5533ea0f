package podresources

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/grpc/status"
)

// errUnknownPod is returned for a pod that the kubelet does not know: it has gone, or is
// not there yet.
var errUnknownPod = errors.New("the kubelet does not know the pod")

var errClosed = errors.New("the client is closed")

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
