package resident

import (
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
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
	live    []*entry          // in order
	away    []Status          // residents that have left, in order
	broken  map[string]Status // files of Dir that do not serve, by path
	ops     map[*operation]bool
	change  chan struct{} // closed at the next change; nil while nobody waits
}

// An entry is a resident that has claimed its types.
type entry struct {
	Status // when it claimed them
	mux    *mux
	ready  chan struct{} // closed when it serves
	gone   chan struct{} // closed when it has left
	why    error         // why it has left; read it after gone
	ended  chan struct{} // closed when its connection and process have ended
	late   atomic.Int32  // timeouts in a row
}

// status returns the current status of e.
func (e *entry) status() Status {
	s := e.Status
	if isClosed(e.ready) {
		s.State = Ready
	}
	return s
}

// claim enters e, unless another resident has its name or one of its types.
func (t *table) claim(e *entry) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.phase != running {
		return ErrStopped
	}
	for _, other := range t.live {
		if other.String() == e.String() {
			return refused("a resident %s is connected already", e)
		}
		for _, typ := range e.Types {
			if slices.Contains(other.Types, typ) {
				return refused("%s claims type %q, which %s serves", e, typ, other)
			}
		}
	}
	at, _ := slices.BinarySearchFunc(t.live, e, func(a, b *entry) int { return a.before(b.Info) })
	t.live = slices.Insert(t.live, at, e)
	return nil
}

// serve lets e serve, in place of residents that have left. It reports false when
// e itself has left.
func (t *table) serve(e *entry) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !slices.Contains(t.live, e) {
		return false
	}
	for i := range t.away {
		a := &t.away[i]
		a.Types = slices.DeleteFunc(slices.Clone(a.Types), func(typ string) bool { return slices.Contains(e.Types, typ) })
	}
	t.away = slices.DeleteFunc(t.away, func(a Status) bool {
		return a.String() == e.String() || len(a.Types) == 0
	})
	delete(t.broken, e.Path)
	close(e.ready)
	t.signal()
	return true
}

// leave removes e and closes its connection. Only the first reason counts.
func (t *table) leave(e *entry, why error) {
	defer e.mux.close(why) // without the lock
	t.mu.Lock()
	defer t.mu.Unlock()
	at := slices.Index(t.live, e)
	if at < 0 {
		return
	}
	t.live = slices.Delete(t.live, at, at+1)
	e.why = why
	t.signal()
	close(e.gone)
	if isClosed(e.ready) { // otherwise those it would have replaced are still in away
		s := e.as(Gone, why)
		s.UID, s.PID = -1, 0
		t.miss(s)
	}
}

// miss enters a resident that has left. The lock is held.
func (t *table) miss(s Status) {
	at, _ := slices.BinarySearchFunc(t.away, s, func(a, b Status) int { return a.before(b.Info) })
	t.away = slices.Insert(t.away, at, s)
}

// serving returns the resident that serves a type or is about to, or nil. The
// lock is held.
func (t *table) serving(typ string) *entry {
	for _, e := range t.live {
		if slices.Contains(e.Types, typ) {
			return e
		}
	}
	return nil
}

// owns reports whether only residents serve a type.
func (h *Host) owns(typ string) bool {
	if slices.Contains(h.Reserve, typ) {
		return true
	}
	there, kept := h.view()
	return slices.ContainsFunc(there, func(e *entry) bool { return slices.Contains(e.Types, typ) }) ||
		slices.ContainsFunc(kept, func(a Status) bool { return slices.Contains(a.Types, typ) })
}

// view returns the residents that are connected, and those that have left and
// whose types are reserved for them. Both are of the same moment.
func (h *Host) view() (there []*entry, kept []Status) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.phase == stopped {
		return slices.Clone(h.live), slices.Clone(h.away)
	}
	if h.Orphan != 0 {
		h.giveUp()
	}
	there, kept = slices.Clone(h.live), slices.Clone(h.away)
	for i, a := range kept {
		kept[i].Types = slices.DeleteFunc(slices.Clone(a.Types), h.released)
	}
	return there, slices.DeleteFunc(kept, func(a Status) bool { return len(a.Types) == 0 })
}

// fail enters a file of Dir that does not serve.
func (t *table) fail(s Status) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.broken == nil {
		t.broken = make(map[string]Status)
	}
	t.broken[s.Path] = s
}

// Plugins lists the residents in order: those that are connected, those that have
// gone and whose types are reserved, and the files of Dir that do not serve. A
// refused connection is not in the list; see [Host.Observer].
func (h *Host) Plugins() []Status {
	there, all := h.view()
	for _, e := range there {
		all = slices.DeleteFunc(all, func(s Status) bool { return s.String() == e.String() })
		all = append(all, e.status())
	}
	h.mu.Lock()
	broken := slices.Collect(maps.Values(h.broken))
	h.mu.Unlock()
	for _, s := range broken {
		if !slices.ContainsFunc(all, func(o Status) bool { return o.Path == s.Path }) {
			all = append(all, s)
		}
	}
	slices.SortStableFunc(all, func(a, b Status) int {
		if c := a.before(b.Info); c != 0 {
			return c
		}
		return strings.Compare(a.Path, b.Path)
	})
	return all
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
