package resident

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/status"
)

var (
	// ErrGone means that the resident plugin of a type is not connected: code
	// 11.
	ErrGone = errors.New("not connected")

	// ErrLost means that the connection ended before the answer arrived. The
	// command may have been executed: code 11.
	ErrLost = errors.New("connection lost")

	// ErrTimeout means that a resident did not answer within
	// [Host.CallTimeout]: code 11. The error also is a
	// [context.DeadlineExceeded].
	ErrTimeout = errors.New("no answer in time")

	// ErrStopped means that the host has been stopped: code 11.
	ErrStopped = errors.New("the host has stopped")

	// ErrRefused means that a resident may not register. The error around it
	// gives the reason.
	ErrRefused = errors.New("refused")

	// ErrSkipped means that a file in [Host.Dir] is not launched.
	ErrSkipped = errors.New("skipped")
)

// An Error is a failure between a host and a resident plugin. When the plugin
// itself returns an error, [Host.Exec] returns that one, a [*types.Error].
type Error struct {
	Op    string // a CNI command, "register", "launch", "request", "serve" or "stop"
	Which string // the resident, "10-static", or what is known of it
	Err   error
}

// Error returns "resident plugin 10-static: cause" for a CNI command, and
// "register 10-static: cause" for anything else. It contains no configuration.
func (e *Error) Error() string {
	op := e.Op
	if strings.ToUpper(op) == op { // the caller's error names the command
		op = "resident plugin"
	}
	return fmt.Sprintf("%s %s: %v", op, e.Which, e.Err)
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// CNICode returns code 11, try again later, for ErrGone, ErrLost, ErrTimeout,
// ErrStopped and the end of a context. For anything else it returns 0.
func (e *Error) CNICode() uint {
	for _, again := range []error{ErrGone, ErrLost, ErrTimeout, ErrStopped, context.Canceled, context.DeadlineExceeded} {
		if errors.Is(e.Err, again) {
			return types.ErrTryAgainLater
		}
	}
	return types.ErrUnknown
}

// notRun adds to err that the plugin was not called.
func notRun(err error) error { return fmt.Errorf("%w: %w", err, delegate.ErrNotRun) }

// refused returns the reason why a resident may not register.
func refused(format string, args ...any) error {
	return fmt.Errorf("%w: %w", ErrRefused, fmt.Errorf(format, args...))
}

// coded returns err as an error object.
func coded(err error) *types.Error {
	var e *types.Error
	if !errors.As(status.Error(err), &e) {
		return types.NewError(types.ErrInternal, err.Error(), "")
	}
	return e
}
