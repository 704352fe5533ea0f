package thick

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/metacni/metacni/internal/fault"
)

// statusGone is the Status of an [Event] whose client has gone.
const statusGone = 499

// stopped returns why a server ends an operation, or does not begin it. It
// wraps err, and has other words.
func stopped(why string, err error) error {
	return fault.With(types.ErrTryAgainLater, fault.Reworded(why, err))
}

var (
	errGone       = stopped("the client disconnected", context.Canceled)
	errSuperseded = stopped("cancelled by DEL", context.Canceled)
	errDraining   = stopped("the daemon is stopping", context.Canceled)
	errNotServing = fault.New(types.ErrTryAgainLater, "the daemon does not serve yet")
	errDeadline   = stopped("operation timed out", context.DeadlineExceeded)
	errLate       = stopped("timed out in the queue", context.DeadlineExceeded)
	errFull       = fault.New(types.ErrTryAgainLater, "too many requests are waiting")
	errQueued     = fault.New(types.ErrTryAgainLater, "an earlier DEL of the attachment is still queued")

	errUnheard     = errors.New("the client did not receive the answer")
	errNotDequeued = errors.New("detached, but the queued DEL cannot be removed")
	errPanic       = fault.New(types.ErrInternal, "the plugin panicked, see the log of the daemon") // only the log has the value
	errResult      = fault.New(types.ErrDecodingFailure, "the plugin's result is invalid")          // of an ADD, which must be undone
	errStuck       = errors.New("operations are still running after UndoTimeout")
)

// unreadable returns why an ADD fails while the queue cannot be read.
func unreadable(err error) error {
	return stopped("the queued DELs cannot be read: "+err.Error(), err)
}

// An answered error has the HTTP status of its answer.
type answered struct {
	status int
	error
}

func (e *answered) Unwrap() error { return e.error }

// httpStatus returns the status of an answer with err, or of one without an error.
func httpStatus(err error) int {
	var e *answered
	switch {
	case err == nil:
		return http.StatusOK
	case errors.As(err, &e):
		return e.status
	}
	return http.StatusInternalServerError
}

// coded returns an error with the HTTP status and the CNI code.
func coded(httpStatus int, code uint, format string, args ...any) error {
	return &answered{httpStatus, types.NewError(code, fmt.Sprintf(format, args...), "")}
}

// invalid returns the error of an ADD whose result is invalid because of err.
func invalid(err error) error { return fmt.Errorf("%w: %w", errResult, err) }

// own reports whether err was made by this package because of what the plugin
// did.
func own(err error) bool {
	return errors.Is(err, errPanic) || errors.Is(err, errResult) || errors.Is(err, errNotDequeued)
}

// unknown reports whether an ADD that ended with err may have left something that
// the plugin has not undone.
func unknown(err error) bool { return errors.Is(err, errUnheard) || own(err) }
