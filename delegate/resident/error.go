package resident

import (
	"context"
	"errors"
	"fmt"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/internal/cause"
	"github.com/metacni/metacni/internal/fault"
)

// ErrRefused means that a resident may not register. The error around it gives the
// reason.
var ErrRefused = errors.New("refused")

var (
	errLost    = fault.New(types.ErrTryAgainLater, "connection lost") // the call may have been executed
	errStopped = fault.New(types.ErrTryAgainLater, "the host has stopped")
	errGone    = fault.New(types.ErrTryAgainLater, "not connected")
	errTimeout = fault.New(types.ErrTryAgainLater, "no answer in time")
	errSkipped = errors.New("skipped")
	errLeft    = errors.New("it has left")
)

// errLate is the cause of a context that ended by a timeout of the host.
var errLate = errors.New("timeout of the host")

// notRun adds to err that the plugin was not called.
func notRun(err error) error { return fmt.Errorf("%w: %w", err, delegate.ErrNotRun) }

// ended returns why ctx has ended, with code 11.
func ended(ctx context.Context) error { return fault.With(types.ErrTryAgainLater, cause.Of(ctx)) }

// refused returns the reason why a resident may not register.
func refused(format string, args ...any) error {
	return fmt.Errorf("%w: %w", ErrRefused, fmt.Errorf(format, args...))
}
