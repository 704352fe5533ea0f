package thick

import (
	"context"
	"sync"
	"time"
)

// A crowd is who is there at the moment. The zero value is nobody.
type crowd[K comparable] struct {
	mu    sync.Mutex
	in    map[K]struct{}
	empty chan struct{} // not nil while somebody waits; closed once nobody is in
}

func (c *crowd[K]) enter(k K) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.add(k)
}

// add adds k. c.mu is held.
func (c *crowd[K]) add(k K) {
	if c.in == nil {
		c.in = make(map[K]struct{})
	}
	c.in[k] = struct{}{}
}

// leave removes k, if it is there.
func (c *crowd[K]) leave(k K) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.in, k)
	if len(c.in) == 0 && c.empty != nil {
		close(c.empty)
		c.empty = nil
	}
}

// wait waits until nobody is there, for d at most, and reports whether that is
// so.
func (c *crowd[K]) wait(d time.Duration) bool {
	c.mu.Lock()
	if len(c.in) == 0 {
		c.mu.Unlock()
		return true
	}
	if c.empty == nil {
		c.empty = make(chan struct{})
	}
	empty := c.empty
	c.mu.Unlock()
	return within(d, empty)
}

// A state is a server's. It only ever grows, but for the one who makes it
// starting.
type state int

const (
	ready    state = iota // which a server is that has nothing to start
	starting              // the queue has not been replayed
	draining
)

// refuses returns why operations of the command c are not served in the state.
func (st state) refuses(c command) error {
	switch {
	case c.removes() || st == ready:
		return nil
	case st == starting:
		return errStarting
	}
	return errDraining
}

// A flight is the state of a server and the operations it has taken on, from
// their arrival to their answer. The zero value is ready.
type flight struct {
	crowd[*operation]

	state state // guarded by crowd.mu
}

// begin takes on op, unless the state refuses it. op has to leave.
func (f *flight) begin(op *operation) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.state.refuses(op.command); err != nil {
		return err
	}
	f.add(op)
	return nil
}

// start says that op has its turn, and returns why its context has ended if it
// has. An operation that has started is not refused any more.
func (f *flight) start(ctx context.Context, op *operation) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	op.started = true
	return nil
}

// now returns the state.
func (f *flight) now() state {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.state
}

// move goes from the state from to the state to, if it is in from.
func (f *flight) move(from, to state) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.state == from {
		f.state = to
	}
}

// drain refuses what has not started and does not remove, from now on.
func (f *flight) drain() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.state = draining
	for op := range f.in {
		if !op.started && !op.command.removes() {
			op.cancel(errDraining)
		}
	}
}

// settle waits until nothing is in flight, for d at most, then cancels what is
// left and waits until it is undone. It reports whether nothing is left.
func (f *flight) settle(d, undo time.Duration) bool {
	if f.wait(d) {
		return true
	}
	f.mu.Lock()
	for op := range f.in {
		op.cancel(errDraining)
	}
	f.mu.Unlock()
	// Twice: an Add may return in the end, and then be undone.
	return f.wait(2*undo + writeTimeout)
}
