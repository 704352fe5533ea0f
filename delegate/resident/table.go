package resident

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"
)

// A phase is a part of the life of a host.
type phase int

const (
	idle phase = iota
	running
	stopped
)

// A table holds what a host knows of its residents. While its lock is held
// nothing waits, and no callback is called.
type table struct {
	mu      sync.Mutex // protects what follows
	phase   phase
	started time.Time
	live    []*entry      // have claimed their types; see connected
	away    []Status      // residents that have left, and files of Dir that do not serve
	change  chan struct{} // closed at the next change; nil while nobody waits
}

// connected returns the residents that are connected, and enters the others in away.
// The lock is held.
func (t *table) connected() []*entry {
	t.live = slices.DeleteFunc(t.live, func(e *entry) bool {
		if !e.closed() {
			return false
		}
		if e.state == Ready { // otherwise those it would have replaced are still in away
			s := e.as(Gone, e.why())
			s.UID, s.PID = -1, 0
			t.miss(s)
		}
		return true
	})
	return t.live
}

// serving returns the resident that serves a type or is about to, or nil. The
// lock is held.
func (t *table) serving(typ string) *entry {
	for _, e := range t.connected() {
		if slices.Contains(e.Types, typ) {
			return e
		}
	}
	return nil
}

// claim enters e, unless another resident has its name or one of its types.
func (t *table) claim(e *entry) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.phase != running {
		return ErrStopped
	}
	for _, other := range t.connected() {
		if other.String() == e.String() {
			return refused("a resident %s is connected already", e)
		}
		for _, typ := range e.Types {
			if slices.Contains(other.Types, typ) {
				return refused("%s claims type %q, which %s serves", e, typ, other)
			}
		}
	}
	t.live = append(t.live, e)
	return nil
}

// serve lets e serve, in place of residents that have left. It reports false when
// e itself has left.
func (t *table) serve(e *entry) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !slices.Contains(t.connected(), e) {
		return false
	}
	t.away = slices.DeleteFunc(t.away, func(a Status) bool { return a.same(e.Status) })
	for i := range t.away {
		a := &t.away[i]
		a.Types = slices.DeleteFunc(slices.Clone(a.Types), func(typ string) bool { return slices.Contains(e.Types, typ) })
	}
	e.state = Ready
	t.signal()
	return true
}

// serves reports whether e is ready.
func (t *table) serves(e *entry) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return e.state == Ready
}

// retire makes no further calls to e, and disconnects it when those that run have
// been answered.
func (t *table) retire(e *entry) {
	t.mu.Lock()
	defer t.mu.Unlock()
	e.leaving = true
	t.dismiss(e)
}

// answered enters that a call of e, see await, has returned.
func (t *table) answered(e *entry) {
	t.mu.Lock()
	defer t.mu.Unlock()
	e.calls--
	t.dismiss(e)
}

func (t *table) dismiss(e *entry) {
	if e.leaving && e.calls == 0 {
		e.fail(errLeft)
	}
}

// miss enters a resident that has left, or a file of Dir that does not serve. The
// file of a resident that has left stays in the list as such. The lock is held.
func (t *table) miss(s Status) {
	at := slices.IndexFunc(t.away, s.same)
	switch {
	case at < 0:
		t.away = append(t.away, s)
	case s.State == Gone || t.away[at].State != Gone:
		t.away[at] = s
	}
}

// note is miss while the lock is not held.
func (t *table) note(s Status) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.miss(s)
}

// changed wakes everybody who waits for a change.
func (t *table) changed() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.signal()
}

// signal is changed while the lock is held.
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

// await waits until a resident serves a type, and returns it for one call; see
// answered. A patient call also waits for one that is not connected, unless it has
// been gone for as long as patience.
func (t *table) await(ctx context.Context, typ string, patience time.Duration) (*entry, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	patient := patience > 0 && (t.serving(typ) != nil || time.Since(t.missedSince(typ)) < patience)
	for {
		e := t.serving(typ)
		switch {
		case e == nil || e.leaving:
			if !patient || t.phase == stopped {
				return nil, errGone
			}
		case e.state == Ready:
			e.calls++
			return e, nil
		}
		if !t.sleep(ctx.Done()) {
			err := errGone
			if e != nil {
				err = fmt.Errorf("%w yet: %s registers or leaves", errGone, e)
			}
			if !errors.Is(context.Cause(ctx), errLate) { // the deadline is the caller's
				err = fmt.Errorf("%w: %w", err, ended(ctx))
			}
			return nil, err
		}
	}
}

// missedSince returns since when no resident serves a type. The lock is held.
func (t *table) missedSince(typ string) time.Time {
	since := t.started
	for _, a := range t.away {
		if slices.Contains(a.Types, typ) {
			since = a.Since
		}
	}
	return since
}

// owns reports whether only residents serve a type.
func (h *Host) owns(typ string) bool {
	return slices.Contains(h.Reserve, typ) ||
		slices.ContainsFunc(h.Plugins(), func(s Status) bool { return slices.Contains(s.Types, typ) })
}

// Plugins lists the residents in order: those that are connected, those that have
// gone and whose types are reserved, and the files of Dir that do not serve. A
// refused connection is not in the list; see [Host.Observer].
func (h *Host) Plugins() (all []Status) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, e := range h.connected() {
		s := e.Status
		s.State = e.state
		all = append(all, s)
	}
	if h.phase != stopped {
		h.giveUp()
	}
	for _, a := range h.away {
		if a.State == Gone && h.phase != stopped {
			a.Types = slices.DeleteFunc(slices.Clone(a.Types), h.released)
		}
		if (a.State != Gone || len(a.Types) > 0) && !slices.ContainsFunc(all, a.same) {
			all = append(all, a)
		}
	}
	slices.SortStableFunc(all, func(a, b Status) int { return cmp.Or(a.before(b.Info), strings.Compare(a.Path, b.Path)) })
	return all
}
