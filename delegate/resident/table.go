package resident

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/creachadair/jrpc2"
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
	live    []*entry  // have claimed their types; see connected
	away    []Status  // residents that have left, and files of Dir that do not serve
	change  sync.Cond // signals a change to await; its L is set there
}

// connected returns the residents that are connected, and enters the others in away.
// The lock is held.
func (t *table) connected() []*entry {
	t.live = slices.DeleteFunc(t.live, func(e *entry) bool {
		if !e.closed() {
			return false
		}
		if e.State == Ready { // otherwise those it would have replaced are still in away
			s := e.gone()
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
		return errStopped
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

// serve lets e serve, in place of residents that have left. Types that e has served before, and
// does not serve now, stay reserved. It reports false when e itself has left.
func (t *table) serve(e *entry) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !slices.Contains(t.connected(), e) {
		return false
	}
	var away []Status
	for _, a := range t.away {
		rest := a.without(func(typ string) bool { return slices.Contains(e.Types, typ) })
		if a.same(e.Status) {
			if len(rest.Types) == 0 {
				continue
			}
			rest.Info, rest.Path, rest.Err = Info{Types: rest.Types}, "", fmt.Errorf("%w: %s", errDropped, e)
		}
		away = append(away, rest)
	}
	t.away = away
	e.State = Ready
	t.change.Broadcast()
	return true
}

// serves reports whether e has joined.
func (t *table) serves(e *entry) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return e.State == Ready
}

// edit changes e, and disconnects e when it is leaving and all
// calls have been answered.
func (t *table) edit(e *entry, change func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	change()
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
	t.change.Broadcast()
}

// await waits until a resident serves a type, and returns it with one call more. A
// patient call also waits for one that is not connected, unless it has been gone for as
// long as patience. When await fails, it returns the resident that is about to serve the
// type or still to leave, if there is one.
func (t *table) await(ctx context.Context, typ string, patience time.Duration) (*entry, error) {
	defer context.AfterFunc(ctx, t.changed)()
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.change.L == nil {
		t.change.L = &t.mu
	}
	patient := patience > 0 && (t.serving(typ) != nil || time.Since(t.missedSince(typ)) < patience)
	for {
		e := t.serving(typ)
		switch {
		case e == nil || e.leaving:
			if !patient || t.phase == stopped {
				return e, errGone
			}
		case e.State == Ready:
			e.calls++
			return e, nil
		}
		if ctx.Err() == nil {
			t.change.Wait()
			continue
		}
		err := errGone
		if e != nil {
			err = fmt.Errorf("%w yet: %s registers or leaves", errGone, e)
		}
		if !errors.Is(context.Cause(ctx), errLate) { // the deadline is the caller's
			err = fmt.Errorf("%w: %w", err, ended(ctx))
		}
		return e, err
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
