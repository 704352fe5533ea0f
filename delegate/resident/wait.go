package resident

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

// signal wakes those who wait for a change. The lock is held.
func (t *table) signal() {
	if t.change != nil {
		close(t.change)
		t.change = nil
	}
}

// sleep waits for a change with the lock released, and reports false when over
// is closed first.
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

// use notes that o, if any, calls a plugin of a type.
func (t *table) use(o *operation, typ string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if o != nil {
		o.used[typ] = true
	}
}

// await waits until a resident serves a type, and returns it. For one that is
// not there it only waits when it is patient.
func (t *table) await(ctx context.Context, typ string, patient bool) (*entry, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	o, waiting := operationOf(ctx), false
	for {
		e := t.serving(typ)
		switch {
		case e == nil || isClosed(e.link.full): // it has gone, or leaves
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
			t.signal() // a resident may have waited for o
		}
		if !t.sleep(ctx.Done()) {
			err := ErrGone
			if e != nil {
				err = fmt.Errorf("%w yet: %s joins or leaves", ErrGone, e)
			}
			if !errors.Is(context.Cause(ctx), errLate) { // it is the caller's time that is up
				err = fmt.Errorf("%w: %w", err, ended(ctx))
			}
			return nil, err
		}
	}
}

// missedSince returns since when nobody has served a type: now, if somebody does.
func (t *table) missedSince(typ string) time.Time {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.serving(typ) != nil {
		return time.Now()
	}
	since := t.started
	for _, a := range t.away {
		if slices.Contains(a.Types, typ) {
			since = a.since
		}
	}
	return since
}

// quiet waits until no operation is changing what e is to be told, or until e
// has gone, which it reports as false.
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

// changing reports whether an operation that does not wait for one of these
// types has called a plugin of them.
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
