package thick

import (
	"context"
	"slices"
	"sync"
)

// A lane lets so many operations run at once, and so many more wait, first come
// first served.
type lane struct {
	size, places int

	mu       sync.Mutex      // guards what follows
	admitted int             // running, or waiting for anything
	running  int             //
	waiting  []chan struct{} // for their turn here; each is closed by it
}

func newLane(size, queued int) *lane { return &lane{size: size, places: size + queued} }

// admit takes a place, and reports whether there was one. leave gives it back.
func (l *lane) admit() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.admitted == l.places {
		return false
	}
	l.admitted++
	return true
}

func (l *lane) leave() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.admitted--
}

// acquire waits for the turn of an operation that has been admitted, and
// returns why ctx ended when that came first. release ends the turn.
func (l *lane) acquire(ctx context.Context) error {
	l.mu.Lock()
	if l.running < l.size {
		l.running++
		l.mu.Unlock()
		return nil
	}
	turn := make(chan struct{})
	l.waiting = append(l.waiting, turn)
	l.mu.Unlock()
	select {
	case <-turn:
		return nil
	case <-ctx.Done():
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if i := slices.Index(l.waiting, turn); i >= 0 {
		l.waiting = slices.Delete(l.waiting, i, i+1)
	} else {
		l.next() // it had its turn meanwhile
	}
	return context.Cause(ctx)
}

func (l *lane) release() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.next()
}

// next hands a turn that has ended to the first that waits. l.mu is held.
func (l *lane) next() {
	if len(l.waiting) == 0 {
		l.running--
		return
	}
	close(l.waiting[0])
	l.waiting = slices.Delete(l.waiting, 0, 1)
}

func (l *lane) load() Load {
	l.mu.Lock()
	defer l.mu.Unlock()
	return Load{InFlight: l.running, Queued: l.admitted - l.running}
}
