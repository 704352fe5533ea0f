package resident

import (
	"context"
	"errors"
	"fmt"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/metacni/metacni/delegate"
)

var (
	// ErrGone means that no resident is there to serve a type that is kept
	// for one: code 11.
	ErrGone = errors.New("the resident is not there")

	// ErrLost means that the connection was lost before the answer, so that
	// nobody knows what has been done: code 11.
	ErrLost = errors.New("the connection was lost")

	// ErrTimeout means that a resident did not answer within
	// [Host.CallTimeout]: code 11. [context.DeadlineExceeded] is in the same
	// error.
	ErrTimeout = errors.New("no answer in time")

	// ErrStopped means that the host has been stopped: code 11.
	ErrStopped = errors.New("the host has stopped")

	// ErrRefused means that a resident may not register. The text of the
	// error around it says why.
	ErrRefused = errors.New("refused")

	// ErrSkipped means that a file of [Host.Dir] is not launched.
	ErrSkipped = errors.New("skipped")
)

// An Error is something that failed between a host and a resident. When the
// plugin itself said why, [Host.Exec] returns its [*types.Error] and not an
// Error.
type Error struct {
	Op    string // "ADD" and the other commands, "register", "launch", "request" or "serve"
	Which string // the resident, "10-static", or what is known of it
	Err   error
}

// Error returns "resident: OP which: why". It holds nothing of a configuration.
func (e *Error) Error() string { return fmt.Sprintf("resident: %s %s: %v", e.Op, e.Which, e.Err) }

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// CNICode reports code 11, try again later, for the sentinels that say so and
// when a context has ended, and 0 for everything else.
func (e *Error) CNICode() uint {
	for _, again := range []error{ErrGone, ErrLost, ErrTimeout, ErrStopped, context.Canceled, context.DeadlineExceeded} {
		if errors.Is(e.Err, again) {
			return types.ErrTryAgainLater
		}
	}
	return types.ErrUnknown
}

// notRun adds to err that the resident has not been called.
func notRun(err error) error { return fmt.Errorf("%w: %w", err, delegate.ErrNotRun) }

// refused says why a resident may not register.
func refused(format string, args ...any) error {
	return fmt.Errorf("%w: %w", ErrRefused, fmt.Errorf(format, args...))
}

// ended returns an error in which errors.Is finds that ctx has ended, and why.
func ended(ctx context.Context) error {
	err, cause := ctx.Err(), context.Cause(ctx)
	if errors.Is(cause, err) {
		return cause
	}
	return fmt.Errorf("%w: %w", err, cause)
}
