package resident

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/creachadair/jrpc2"
)

// An entry is the host's side of one connection: of a process that registers, and then
// of a resident.
type entry struct {
	Status // since it connected; without Info until it has registered, unless launched
	*link
	client *jrpc2.Client
	bury   func()       // ends its process; nil if the host has not launched it
	late   atomic.Int32 // timeouts in a row

	// Protected by table.mu, as are changes of State from Joining to Ready.
	leaving bool // it gets no further calls
	calls   int  // that are not answered
}

// gone returns the status of e, whose connection is closed.
func (e *entry) gone() Status {
	why := e.why()
	if errors.Is(why, errStopped) {
		why = nil
	}
	return e.as(Gone, why)
}

// call calls the resident, and decodes the answer into result unless that is nil. When
// the message was not sent there is a [delegate.ErrNotRun] in the error, and errTimeout when
// there was no answer within limit.
func (e *entry) call(ctx context.Context, limit time.Duration, method string, params, result any) error {
	if ctx.Err() != nil {
		return notRun(ended(ctx))
	}
	ctx, cancel := context.WithTimeoutCause(ctx, limit, errLate)
	defer cancel()
	answer, err := e.client.Call(ctx, method, params)
	if err == nil && result != nil {
		err = answer.UnmarshalResult(result)
	}
	certain, err := outcome(ctx, err)
	var foul *jrpc2.Error
	switch {
	case errors.Is(err, errLate):
		return fmt.Errorf("%w (%v): %w", errTimeout, limit, context.DeadlineExceeded)
	case certain:
		return err
	case answer == nil && !errors.As(err, &foul) && !errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded):
		return notRun(fmt.Errorf("%w: %w", errGone, e.why())) // the message was not sent
	case e.closed():
		if errors.Is(e.why(), errLost) {
			return e.why()
		}
		return fmt.Errorf("%w: %w", errLost, e.why())
	}
	return types.NewError(types.ErrInternal, fmt.Sprintf("invalid answer: %.200s", err), "")
}
