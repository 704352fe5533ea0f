package thick

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"runtime/debug"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/metacni/metacni/internal/terse"
	"github.com/metacni/metacni/status"
)

// statusGone is the Status of an [Event] whose client has gone.
const statusGone = 499

// A stopped error is why a server ended an operation, or did not begin it.
type stopped struct {
	why string
	err error // of the context, or nil
}

func (e *stopped) Error() string { return e.why }
func (e *stopped) Unwrap() error { return e.err }
func (*stopped) CNICode() uint   { return types.ErrTryAgainLater }

var (
	errGone       error = &stopped{"the client disconnected", context.Canceled}
	errSuperseded error = &stopped{"cancelled by DEL", context.Canceled}
	errDraining   error = &stopped{"the daemon is stopping", context.Canceled}
	errNotServing error = &stopped{"the daemon does not serve yet", nil}
	errDeadline   error = &stopped{"operation timed out", context.DeadlineExceeded}
	errLate       error = &stopped{"timed out in the queue", context.DeadlineExceeded}
	errFull       error = &stopped{"too many requests are waiting", nil}
	errQueued     error = &stopped{"an earlier DEL of the attachment is still queued", nil}

	errUnheard     = errors.New("the client did not receive the answer")
	errNotDequeued = errors.New("detached, but the queued DEL cannot be removed")
)

// unreadable returns why an ADD fails while the queue cannot be read.
func unreadable(err error) error {
	return &stopped{"the queued DELs cannot be read: " + err.Error(), err}
}

// A fault is an error with the HTTP status of its answer.
type fault struct {
	status int
	err    error
}

func (e *fault) Error() string { return e.err.Error() }
func (e *fault) Unwrap() error { return e.err }

// httpStatus returns the status of an answer with err.
func httpStatus(err error) int {
	var f *fault
	if errors.As(err, &f) {
		return f.status
	}
	return http.StatusInternalServerError
}

// coded returns an error with the HTTP status and the CNI code.
func coded(httpStatus int, code uint, format string, args ...any) error {
	return &fault{httpStatus, types.NewError(code, fmt.Sprintf(format, args...), "")}
}

// String returns the operation for messages, such as "ADD c1 eth0" or "STATUS".
func (o *order) String() string {
	if o.ofContainer() {
		return fmt.Sprintf("%s %s %s", o.command, terse.ID(o.args.ContainerID), o.args.IfName)
	}
	return string(o.command)
}

// stop returns the error of an operation that was ended, or not begun, because of
// why. err is the error of the command, or nil.
func (o *order) stop(httpStatus int, why, err error) error {
	switch {
	case err == nil:
		err = fmt.Errorf("%s: %w", o, why)
	case !errors.Is(err, why):
		err = fmt.Errorf("%s: %w: %w", o, why, err)
	default:
		err = &stoppedError{err}
	}
	return &fault{httpStatus, o.notReady(err)}
}

// notReady gives err a code for STATUS, if o is one.
func (o *order) notReady(err error) error {
	if o.command == cmdStatus {
		return status.NotReady(err)
	}
	return err
}

// A stoppedError is the error of a command that itself says why the command was
// stopped. Its code is 11, whatever else it wraps.
type stoppedError struct{ error }

func (e *stoppedError) Unwrap() error { return e.error }
func (*stoppedError) CNICode() uint   { return types.ErrTryAgainLater }

// A panicError is a panic of the plugin. Its text does not tell the value, which
// may quote anything; the log has it.
type panicError struct {
	value any
	stack []byte
}

func (*panicError) Error() string { return "the plugin panicked, see the log of the daemon" }
func (*panicError) CNICode() uint { return types.ErrInternal }

// A resultError is an invalid result of an ADD. The ADD must be undone.
type resultError struct{ err error }

func (e *resultError) Error() string { return "the plugin's result is invalid: " + e.err.Error() }
func (e *resultError) Unwrap() error { return e.err }
func (*resultError) CNICode() uint   { return types.ErrDecodingFailure }

// guard calls f and returns its error, or a [*panicError] if it panics.
func guard(f func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = &panicError{p, debug.Stack()}
		}
	}()
	return f()
}
