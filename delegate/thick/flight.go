package thick

import (
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

// A flight is the operations that a server has taken on, from their arrival to
// their answer. The zero value takes on all.
type flight struct {
	crowd[*operation]

	draining bool // guarded by crowd.mu
}

// begin takes on op, unless it comes too late. op has to leave.
func (f *flight) begin(op *operation) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.draining && !op.command.removes() {
		return errDraining
	}
	f.add(op)
	return nil
}

// ends reports whether the server takes on only what removes.
func (f *flight) ends() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.draining
}

// drain takes on only what removes, from now on. What has been taken on goes on.
func (f *flight) drain() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.draining = true
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
