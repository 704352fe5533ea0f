package resident

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/metacni/metacni/internal/cause"
)

// An operation is what Begin announces.
type operation struct {
	done  chan struct{}
	used  map[string]bool // types of which it has called a plugin; protected by table.mu
	waits map[string]int  // calls that wait for the resident of a type; protected by table.mu
}

type operationKey struct{}

func operationOf(ctx context.Context) *operation {
	o, _ := ctx.Value(operationKey{}).(*operation)
	return o
}

func (t *table) begin(o *operation) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ops == nil {
		t.ops = make(map[*operation]bool)
	}
	t.ops[o] = true
}

func (t *table) finish(o *operation) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.ops, o)
	t.signal()
}

// signal wakes everybody who waits for a change. The lock is held.
func (t *table) signal() {
	if t.change != nil {
		close(t.change)
		t.change = nil
	}
}

// sleep releases the lock and waits for a change. It reports false when over is
// closed first. The lock is held before and after.
func (t *table) sleep(over <-chan struct{}) bool {
	if t.change == nil {
		t.change = make(chan struct{})
	}
	change := t.change
	t.mu.Unlock()
	defer t.mu.Lock()
	select {
	case <-change:
		return true
	case <-over:
		return false
	}
}

// use enters that o calls a plugin of a type. A nil o is not entered.
func (t *table) use(o *operation, typ string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if o != nil {
		o.used[typ] = true
	}
}

// await waits until a resident serves a type, and returns it. A patient call also
// waits for one that is not connected.
func (t *table) await(ctx context.Context, typ string, patient bool) (*entry, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	o, waiting := operationOf(ctx), false
	for {
		e := t.serving(typ)
		switch {
		case e == nil || e.mux.retired(): // it has left, or is leaving
			if !patient || t.phase == stopped {
				return nil, ErrGone
			}
		case isClosed(e.ready):
			if o != nil {
				o.used[typ] = true
			}
			return e, nil
		}
		if o != nil && !waiting {
			waiting = true
			o.waits[typ]++
			defer func() { o.waits[typ]-- }()
			t.signal() // for a resident that waits for o
		}
		if !t.sleep(ctx.Done()) {
			err := ErrGone
			if e != nil {
				err = fmt.Errorf("%w yet: %s registers or leaves", ErrGone, e)
			}
			if !errors.Is(context.Cause(ctx), errLate) { // the deadline is the caller's
				err = fmt.Errorf("%w: %w", err, cause.Of(ctx))
			}
			return nil, err
		}
	}
}

// missedSince returns since when no resident serves a type. When one does, that
// is now.
func (t *table) missedSince(typ string) time.Time {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.serving(typ) != nil {
		return time.Now()
	}
	since := t.started
	for _, a := range t.away {
		if slices.Contains(a.Types, typ) {
			since = a.Since
		}
	}
	return since
}

// quiet waits until no operation changes the attachments of e's types. It reports
// false when e leaves first.
func (t *table) quiet(e *entry) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	for t.changing(e.Types) {
		if !t.sleep(e.gone) {
			return false
		}
	}
	return true
}

// changing reports whether an operation has called a plugin of these types and
// does not wait for a resident of them.
func (t *table) changing(types []string) bool {
	for o := range t.ops {
		used := func(typ string) bool { return o.used[typ] }
		waits := func(typ string) bool { return o.waits[typ] > 0 }
		if slices.ContainsFunc(types, used) && !slices.ContainsFunc(types, waits) {
			return true
		}
	}
	return false
}
