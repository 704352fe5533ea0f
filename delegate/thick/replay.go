package thick

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"net/http"
	"sync"
	"time"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/metacni/metacni/delegate/thick/internal/queue"
	"github.com/metacni/metacni/delegate/thick/wire"
)

// Pauses between the tries to do what is in the queue.
const (
	firstPause   = time.Second
	longestPause = time.Minute
)

// replay does the DELs of the queue until ctx ends: once before the server is
// ready, and then those that failed, and those of shims that could not connect
// although it was there.
func (sv *service) replay(ctx context.Context) {
	for pause := firstPause; ; pause = min(2*pause, longestPause) {
		left, err := queue.Replay(ctx, sv.Queue, sv.maxInFlight(), sv.redo)
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			sv.log(ctx, slog.LevelWarn, "queue", slog.Int("left", left), slog.Any("err", err))
		}
		// What cannot be done does not keep a node from working; what cannot
		// be read may have been removed already, as far as its runtime knows.
		read := err == nil || left > 0 || errors.Is(err, queue.ErrDamaged)
		if sv.owed.replayed(err); read {
			sv.owed.forget(left)
			sv.flight.move(starting, ready)
			if left == 0 {
				pause = longestPause
			}
		}
		if !sv.owed.pause(ctx, pause) {
			return
		}
	}
}

// redo does one DEL of the queue. It does not end with ctx: nothing that has
// begun does when the server stops.
func (sv *service) redo(ctx context.Context, m wire.Request) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	ctx = context.WithoutCancel(ctx)
	ev := Event{Path: wire.PathCNI, UID: -1, Replayed: true, Start: time.Now()}
	o, err := sv.order(ev.Path, &m, nil)
	ev.about(o)
	if err == nil && o.command != cmdDel {
		err = coded(http.StatusBadRequest, types.ErrInvalidEnvironmentVariables, "%s: not for a queue", o.command)
	}
	if err == nil {
		if sv.owed.settled(o) {
			return nil
		}
		o.replayed = true
		err = sv.operate(ctx, o, &ev, func([]byte, error) error { return nil })
		sv.owed.tried(o, err)
	}
	sv.observe(ev, err)
	return err
}

// An attachment is one as the runtime knows it.
type attachment struct{ network, containerID, ifName string }

func (o *order) attachment() attachment {
	return attachment{o.network, o.args.ContainerID, o.args.IfName}
}

// A debt is a DEL of the queue that has failed.
type debt struct {
	paid bool // done since, by another
	pass int  // when it was tried last
}

// owed is what is left in the queue. A runtime that has been told that its DEL
// is done may use the container's ID again, so an ADD must not come before a
// DEL that is older: it would be removed by it. The zero value owes nothing.
type owed struct {
	mu   sync.Mutex // guards what follows
	dels map[attachment]debt
	pass int           // how often the queue has been tried
	err  error         // what the last try of the queue could not do
	wake chan struct{} // closed to end a pause; not nil during one
}

// tried notes that the DEL o of the queue ended with err.
func (w *owed) tried(o *order, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err == nil {
		delete(w.dels, o.attachment())
		return
	}
	if w.dels == nil {
		w.dels = make(map[attachment]debt)
	}
	w.dels[o.attachment()] = debt{pass: w.pass}
}

// paid notes that the DEL o, which is not of the queue or is, has been done. One
// that is in the queue has nothing left to do.
func (w *owed) paid(o *order) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if d, ok := w.dels[o.attachment()]; ok {
		d.paid = true
		w.dels[o.attachment()] = d
		w.hurry()
	}
}

// settled reports whether the DEL o of the queue has been done by another, and
// forgets it if so.
func (w *owed) settled(o *order) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	d := w.dels[o.attachment()]
	if d.paid {
		delete(w.dels, o.attachment())
	}
	return d.paid
}

// blocks reports whether o is an ADD that has to wait for a DEL of the queue,
// and if so sees to it that this is tried soon.
func (w *owed) blocks(o *order) bool {
	if o.command != cmdAdd || o.hotPlug {
		return false
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	d, known := w.dels[o.attachment()]
	if !known || d.paid {
		return false
	}
	w.hurry()
	return true
}

// hurry ends the pause. w.mu is held.
func (w *owed) hurry() {
	if w.wake != nil {
		close(w.wake)
		w.wake = nil
	}
}

// replayed notes what could not be done with the queue, or nil.
func (w *owed) replayed(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.err = err
	w.pass++
}

// forget drops what somebody else has taken out of the queue, of which left are
// left after it was tried, when these are all known.
func (w *owed) forget(left int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	gone := func(_ attachment, d debt) bool { return d.pass != w.pass-1 } // not of the try that has ended
	for a, d := range w.dels {
		if !gone(a, d) {
			left--
		}
	}
	if left == 0 {
		maps.DeleteFunc(w.dels, gone)
	}
}

// why returns what could not be done with the queue when it was last tried.
func (w *owed) why() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.err
}

// pause waits for d, or less where somebody waits for the queue, but for
// firstPause. It reports false when ctx ended.
func (w *owed) pause(ctx context.Context, d time.Duration) bool {
	w.mu.Lock()
	wake := make(chan struct{})
	w.wake = wake
	w.mu.Unlock()
	t := time.NewTimer(firstPause)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
		return false
	}
	t.Reset(d - firstPause)
	select {
	case <-t.C:
	case <-wake:
	case <-ctx.Done():
		return false
	}
	return true
}
