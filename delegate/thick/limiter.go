package thick

import (
	"context"
	"slices"
	"sync"
)

// A Load says how many operations of one kind there are.
type Load struct {
	InFlight int // running, including undo
	Queued   int // waiting for their container or their turn
}

// A limiter limits how many operations run at once and how many more wait for
// their turn: those with the lowest rank first, and among those first come, first served.
type limiter struct {
	size, places int

	mu       sync.Mutex // guards the following
	admitted int        // running, or waiting here or for their container
	running  int
	waiting  []*waiter
}

// A waiter waits for its turn.
type waiter struct {
	rank int
	come chan struct{} // closed when the turn has come
}

func newLimiter(size, queued int) *limiter { return &limiter{size: size, places: size + queued} }

// admit takes a place and reports whether there was one. leave returns it.
func (l *limiter) admit() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.admitted == l.places {
		return false
	}
	l.admitted++
	return true
}

func (l *limiter) leave() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.admitted--
}

// lineUp takes the place of an operation among those that wait. wait must follow.
func (l *limiter) lineUp(rank int) *waiter {
	l.mu.Lock()
	defer l.mu.Unlock()
	turn := &waiter{rank, make(chan struct{})}
	if l.running < l.size {
		l.running++
		close(turn.come)
		return turn
	}
	at := slices.IndexFunc(l.waiting, func(other *waiter) bool { return other.rank > rank })
	if at < 0 {
		at = len(l.waiting)
	}
	l.waiting = slices.Insert(l.waiting, at, turn)
	return turn
}

// wait waits until the turn has come. If ctx ends first, wait returns why. release ends the
// turn.
func (l *limiter) wait(ctx context.Context, turn *waiter) error {
	select {
	case <-turn.come: // also if ctx has ended
		return nil
	default:
	}
	select {
	case <-turn.come:
		return nil
	case <-ctx.Done():
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if i := slices.Index(l.waiting, turn); i >= 0 {
		l.waiting = slices.Delete(l.waiting, i, i+1)
	} else {
		l.next() // the turn has come meanwhile
	}
	return context.Cause(ctx)
}

func (l *limiter) release() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.next()
}

// next gives the turn that has ended to the first that waits. l.mu is held.
func (l *limiter) next() {
	if len(l.waiting) == 0 {
		l.running--
		return
	}
	close(l.waiting[0].come)
	l.waiting = slices.Delete(l.waiting, 0, 1)
}

func (l *limiter) load() Load {
	l.mu.Lock()
	defer l.mu.Unlock()
	return Load{InFlight: l.running, Queued: l.admitted - l.running}
}
