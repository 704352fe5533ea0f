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
	Status // when it connected; its State does not change, see state
	*link
	client *jrpc2.Client
	ended  chan struct{} // closed when its connection and process have ended
	late   atomic.Int32  // timeouts in a row

	// Protected by table.mu.
	state   State // Joining or Ready
	leaving bool  // it gets no further calls
	calls   int   // that are not answered
}

// connect makes the entry of a connection. The end of ctx has no effect.
func (h *Host) connect(ctx context.Context, c candidate) *entry {
	ctx = context.WithoutCancel(ctx)
	e := &entry{
		Status: c.as(Joining, nil), state: Joining, link: newLink(ctx, c.conn, maxHello), ended: make(chan struct{}),
	}
	e.client = jrpc2.NewClient(e.link, &jrpc2.ClientOptions{
		OnCallback: func(ctx context.Context, r *jrpc2.Request) (any, error) { return nil, failure(h.answer(ctx, e, r)) },
		OnNotify: func(r *jrpc2.Request) {
			if r.Method() == methodLeave {
				h.retire(e)
			}
		},
		OnCancel: func(client *jrpc2.Client, r *jrpc2.Response) {
			_ = client.Notify(ctx, methodCancel, []string{r.ID()}) // fails if the connection is lost
		},
	})
	return e
}

// call calls the resident, and decodes the answer into result unless that is nil. When
// the message was not sent there is a [delegate.ErrNotRun] in the error.
func (e *entry) call(ctx context.Context, method string, params, result any) error {
	if ctx.Err() != nil {
		return notRun(ended(ctx))
	}
	answer, err := e.client.Call(ctx, method, params)
	if err == nil && result != nil {
		err = answer.UnmarshalResult(result)
	}
	var foul *jrpc2.Error
	switch {
	case err == nil:
		return nil
	case said(err) != nil:
		return said(err)
	case ctx.Err() != nil:
		return ended(ctx)
	case answer == nil && !errors.As(err, &foul) && !errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded):
		return notRun(errGone) // the message was not sent
	case e.closed():
		if errors.Is(e.why(), ErrLost) {
			return e.why()
		}
		return fmt.Errorf("%w: %w", ErrLost, e.why())
	}
	return types.NewError(types.ErrInternal, fmt.Sprintf("invalid answer: %.200s", err), "")
}

// watch closes the connection when two pings in a row are not answered. One may have
// been missed while this process was stopped.
func (e *entry) watch(ctx context.Context, interval time.Duration) {
	for missed := 0; missed < 2 && pause(e.done, interval); missed++ {
		pinging, cancel := context.WithTimeout(ctx, interval)
		if err := e.call(pinging, methodPing, nil, nil); !errors.Is(err, context.DeadlineExceeded) {
			missed = -1
		}
		cancel()
	}
	e.fail(fmt.Errorf("%w: pings are not answered", ErrLost))
}
