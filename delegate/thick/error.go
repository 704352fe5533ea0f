package thick

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"runtime/debug"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/metacni/metacni/status"
)

// statusGone is what an [Event] says when nobody is there to receive an answer.
const statusGone = 499

// A stopped is why a server ended an operation, or did not begin it.
type stopped struct {
	why string
	err error // of the context, nil where there is none
}

func (e *stopped) Error() string { return e.why }
func (e *stopped) Unwrap() error { return e.err }
func (*stopped) CNICode() uint   { return types.ErrTryAgainLater }

var (
	errGone       error = &stopped{"the client has gone", context.Canceled}
	errSuperseded error = &stopped{"a DEL has come", context.Canceled}
	errDraining   error = &stopped{"the daemon is stopping", context.Canceled}
	errNotServing error = &stopped{"the daemon does not serve yet", nil}
	errDeadline   error = &stopped{"the time is up", context.DeadlineExceeded}
	errLate       error = &stopped{"no turn in time", context.DeadlineExceeded}
	errFull       error = &stopped{"too many are waiting", nil}
	errOwed       error = &stopped{"a DEL that came before has not been done yet", nil}

	errUnheard = errors.New("the answer was not received")
	errUnpaid  = errors.New("detached, but the queued DEL cannot be removed")
)

// unreadable is why no ADD is served when the queue cannot be read.
func unreadable(err error) error {
	return &stopped{"the queued DELs cannot be read: " + err.Error(), err}
}

// A fault is an error with its HTTP status. Its code is the first of err's.
type fault struct {
	status int
	err    error
}

func (e *fault) Error() string { return e.err.Error() }
func (e *fault) Unwrap() error { return e.err }

// httpStatus returns the status of an answer that is err.
func httpStatus(err error) int {
	var f *fault
	if errors.As(err, &f) {
		return f.status
	}
	return http.StatusInternalServerError
}

// coded gives a code to what is wrong with a request.
func coded(httpStatus int, code uint, format string, args ...any) error {
	return &fault{httpStatus, types.NewError(code, fmt.Sprintf("thick: "+format, args...), "")}
}

// String returns what o is of, for messages: "ADD net/container/eth0".
func (o *order) String() string {
	if o.ofContainer() {
		return fmt.Sprintf("%s %s/%s/%s", o.command, o.network, o.args.ContainerID, o.args.IfName)
	}
	return string(o.command) + " " + o.network
}

// stop returns err, an operation's that was ended, or not begun, for why.
func (o *order) stop(httpStatus int, why, err error) error {
	switch {
	case err == nil:
		err = fmt.Errorf("thick: %s: %w", o, why)
	case !errors.Is(err, why):
		err = fmt.Errorf("thick: %s: %w: %w", o, why, err)
	default:
		err = &stoppedError{err}
	}
	return &fault{httpStatus, o.notReady(err)}
}

// notReady gives err the code that answers a STATUS, if o is one.
func (o *order) notReady(err error) error {
	if o.command == cmdStatus {
		return status.NotReady(err)
	}
	return err
}

// A stoppedError is a handler's that says by itself why it was stopped. It has
// the code of that, whatever else is in it.
type stoppedError struct{ error }

func (e *stoppedError) Unwrap() error { return e.error }
func (*stoppedError) CNICode() uint   { return types.ErrTryAgainLater }

// A panicError is a handler that panicked. Its text says nothing of how, which
// is for the log: it may quote anything.
type panicError struct {
	value any
	stack []byte
}

func (*panicError) Error() string { return "the plugin panicked, see the daemon's log" }
func (*panicError) CNICode() uint { return types.ErrInternal }

// A resultError is what an ADD returned that is no result. It has to be undone.
type resultError struct{ err error }

func (e *resultError) Error() string { return "the plugin's result: " + e.err.Error() }
func (e *resultError) Unwrap() error { return e.err }
func (*resultError) CNICode() uint   { return types.ErrDecodingFailure }

// guard returns what f does, and a [*panicError] when it panics.
func guard(f func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = &panicError{p, debug.Stack()}
		}
	}()
	return f()
}
