package thick

import (
	"maps"
	"slices"
	"sync"
	"time"
)

// A waitSet is a set that can be waited for until it is empty. The zero value is
// empty.
type waitSet[K comparable] struct {
	mu    sync.Mutex
	in    map[K]struct{}
	empty chan struct{} // not nil while somebody waits; closed when the set is empty
}

func (s *waitSet[K]) enter(k K) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.in == nil {
		s.in = make(map[K]struct{})
	}
	s.in[k] = struct{}{}
}

// leave removes k, and reports whether the set had it.
func (s *waitSet[K]) leave(k K) (had bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, had = s.in[k]
	delete(s.in, k)
	if len(s.in) == 0 && s.empty != nil {
		close(s.empty)
		s.empty = nil
	}
	return had
}

// all returns the elements.
func (s *waitSet[K]) all() []K {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Keys(s.in))
}

// wait waits until the set is empty, but not longer than d. It reports whether the set is
// empty. One goroutine at a time may call it.
func (s *waitSet[K]) wait(d time.Duration) bool {
	empty := make(chan struct{})
	s.mu.Lock()
	if len(s.in) == 0 {
		close(empty)
	} else {
		s.empty = empty
	}
	s.mu.Unlock()
	select {
	case <-empty:
		return true
	case <-time.After(d):
		return false
	}
}

// A phase is how much of its life a server has behind it. It never goes back.
type phase int

const (
	idle     phase = iota // Serve has not been called
	serving               // all commands are accepted
	draining              // only DELs and GCs of clients are accepted
	closed                // nothing is accepted
)

// A flight has the accepted operations, from their arrival to their answer. The zero value
// is the one of an idle server.
type flight struct {
	ops waitSet[*operation]

	mu    sync.Mutex // held while an operation is accepted
	phase phase
}

// advance changes the phase to a later one, and reports whether the phase was an earlier
// one.
func (f *flight) advance(to phase) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	earlier := f.phase < to
	f.phase = max(f.phase, to)
	return earlier
}

// now returns the phase.
func (f *flight) now() phase {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.phase
}

// begin accepts op, unless it comes too late. The caller must have it leave ops.
func (f *flight) begin(op *operation) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.phase == closed || f.phase == draining && (op.Replayed || !removes(op.command)) {
		return errDraining
	}
	f.ops.enter(op)
	return nil
}

// settle waits until nothing is in flight, but not longer than d. Then it cancels
// the remaining operations and waits until they are undone; nothing is accepted
// from then on, because nobody would cancel it. It reports whether nothing is left.
func (f *flight) settle(d, undo time.Duration) bool {
	if f.ops.wait(d) {
		return true
	}
	f.advance(closed)
	for _, op := range f.ops.all() {
		op.cancel(errDraining)
	}
	// Twice, because an Add may take that long to return and is undone then.
	return f.ops.wait(2*undo + writeTimeout)
}
