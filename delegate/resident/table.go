package resident

import (
	"context"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// phase is what a host is in.
type phase int

const (
	idle phase = iota
	running
	stopped
)

// A table is what a host knows of its residents. Everything in it is done at
// once: nothing waits, and nobody is called, with its lock held.
type table struct {
	mu      sync.Mutex // protects what follows
	phase   phase
	started time.Time
	live    []*entry          // in order
	away    []away            // in order
	broken  map[string]Status // files that are no residents, by path
	pending map[net.Conn]bool // true for those that count
	ops     map[*operation]bool
	change  chan struct{} // closed when what somebody waits for may have come; nil while nobody waits
}

// An entry is a resident from the moment it has claimed its types.
type entry struct {
	Info
	source   Source
	path     string
	uid, pid int
	since    time.Time
	link     *link
	requests *stream
	cancel   context.CancelFunc
	ready    chan struct{} // closed when it serves
	gone     chan struct{} // closed when it has left, for why
	why      error
	ended    chan struct{} // closed when nothing of it is left
	late     atomic.Int32  // timeouts in a row
}

// away is a resident that has left.
type away struct {
	Info
	source Source
	path   string
	since  time.Time
	why    error
}

// open makes an idle host one that starts.
func (t *table) open() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.phase != idle {
		return &Error{Op: "launch", Which: "all", Err: fmt.Errorf("%w: it starts once", ErrStopped)}
	}
	t.phase = stopped // until it is known to run
	t.started = time.Now()
	return nil
}

func (t *table) setState(p phase) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.phase = p
}

// close makes a running host a stopped one, in which nothing is claimed, and
// returns what is to be waited for.
func (t *table) close() (ops []*operation, pending []net.Conn, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.phase != running {
		return nil, nil, &Error{Op: "stop", Which: "all", Err: fmt.Errorf("%w, or was never started", ErrStopped)}
	}
	t.phase = stopped
	t.signal()
	return slices.Collect(maps.Keys(t.ops)), slices.Collect(maps.Keys(t.pending)), nil
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

// expect notes that conn is registering, one of limit at most; without a limit
// it does not count.
func (t *table) expect(conn net.Conn, limit int) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.phase != running {
		return ErrStopped
	}
	counted := 0
	for _, counts := range t.pending {
		if counts {
			counted++
		}
	}
	if limit > 0 && counted >= limit {
		return refused("%d residents are registering already", counted)
	}
	if t.pending == nil {
		t.pending = make(map[net.Conn]bool)
	}
	t.pending[conn] = limit > 0
	return nil
}

func (t *table) settle(conn net.Conn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.pending, conn)
}

// claim enters e, unless somebody has what it wants.
func (t *table) claim(e *entry) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.phase != running {
		return ErrStopped
	}
	for _, other := range t.live {
		if other.String() == e.String() {
			return refused("there is a resident %s already", e)
		}
		for _, typ := range e.Types {
			if slices.Contains(other.Types, typ) {
				return refused("type %q is %s's, and %s claims it", typ, other, e)
			}
		}
	}
	at, _ := slices.BinarySearchFunc(t.live, e, func(a, b *entry) int { return a.before(b.Info) })
	t.live = slices.Insert(t.live, at, e)
	return nil
}

// serve makes e one that serves, in place of those that have left. It reports
// whether e is still there.
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
	t.away = slices.DeleteFunc(t.away, func(a away) bool {
		return a.String() == e.String() || len(a.Types) == 0
	})
	delete(t.broken, e.path)
	close(e.ready)
	t.signal()
	return true
}

// leave makes e one that has left for why. Only the first why counts.
func (r *Host) leave(e *entry, why error) {
	t := &r.table
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
	e.cancel()
	if !isClosed(e.ready) {
		return // it has served nothing: what it would have replaced is still there
	}
	t.miss(away{Info: e.Info, source: e.source, path: e.path, since: time.Now(), why: why})
}

// miss enters a resident that is not there. The lock is held.
func (t *table) miss(a away) {
	at, _ := slices.BinarySearchFunc(t.away, a, func(a, b away) int { return a.before(b.Info) })
	t.away = slices.Insert(t.away, at, a)
}

// serving returns the resident that serves, or will serve, a type, or nil. The
// lock is held.
func (t *table) serving(typ string) *entry {
	for _, e := range t.live {
		if slices.Contains(e.Types, typ) {
			return e
		}
	}
	return nil
}

// owns reports whether calls of a type are for residents, be they there or not.
func (r *Host) owns(typ string) bool {
	if slices.Contains(r.Reserve, typ) {
		return true
	}
	there, kept := r.view()
	return slices.ContainsFunc(there, func(e *entry) bool { return slices.Contains(e.Types, typ) }) ||
		slices.ContainsFunc(kept, func(a away) bool { return slices.Contains(a.Types, typ) })
}

// view returns the residents that are there, and those that have left and whose
// types are kept for them, as they are at one time: none falls in between.
func (r *Host) view() (there []*entry, kept []away) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.phase == stopped {
		return slices.Clone(r.live), slices.Clone(r.away)
	}
	if r.Orphan != 0 {
		r.giveUp(r.Orphan)
	}
	there, kept = slices.Clone(r.live), slices.Clone(r.away)
	for i, a := range kept {
		kept[i].Types = slices.DeleteFunc(slices.Clone(a.Types), r.released)
	}
	return there, slices.DeleteFunc(kept, func(a away) bool { return len(a.Types) == 0 })
}

// entries returns the residents that are there, in order.
func (t *table) entries() []*entry {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Clone(t.live)
}

// note keeps what is wrong with the file at s.Path.
func (t *table) note(s Status) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.broken == nil {
		t.broken = make(map[string]Status)
	}
	t.broken[s.Path] = s
}

// Plugins returns what there is of residents, in order: those that serve or are
// about to, those that have gone and whose types are kept, and the files of Dir
// that are none. Connections that were refused are not among them, see
// [Host.Observer].
func (r *Host) Plugins() []Status {
	var all []Status
	there, kept := r.view()
	for _, a := range kept {
		all = append(all, Status{Info: a.Info, State: Gone, Source: a.source, Path: a.path, UID: -1, Since: a.since, Err: a.why})
	}
	for _, e := range there {
		all = slices.DeleteFunc(all, func(s Status) bool { return s.String() == e.String() })
		all = append(all, e.status())
	}
	r.mu.Lock()
	broken := slices.Collect(maps.Values(r.broken))
	r.mu.Unlock()
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
