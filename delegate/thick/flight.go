package thick

import (
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

func (c *waitSet[K]) enter(k K) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.add(k)
}

// add adds k. c.mu is held.
func (c *waitSet[K]) add(k K) {
	if c.in == nil {
		c.in = make(map[K]struct{})
	}
	c.in[k] = struct{}{}
}

// leave removes k if the set has it.
func (c *waitSet[K]) leave(k K) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.in, k)
	if len(c.in) == 0 && c.empty != nil {
		close(c.empty)
		c.empty = nil
	}
}

// wait waits until the set is empty, but not longer than d. It reports whether
// the set is empty.
func (c *waitSet[K]) wait(d time.Duration) bool {
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

// A flight is the set of accepted operations, from their arrival to their answer.
// The zero value accepts all commands.
type flight struct {
	waitSet[*operation]

	draining bool // accept only DEL and GC; guarded by waitSet.mu
	closed   bool // accept nothing; guarded by waitSet.mu
}

// begin accepts op unless the server drains. The caller must call leave.
func (f *flight) begin(op *operation) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed || f.draining && !op.command.removes() {
		return errDraining
	}
	f.add(op)
	return nil
}

// ends reports whether the server accepts only DEL and GC.
func (f *flight) ends() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.draining
}

// drain makes the server accept only DEL and GC. Accepted operations go on.
func (f *flight) drain() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.draining = true
}

// settle waits until nothing is in flight, but not longer than d. Then it cancels
// the remaining operations and waits until they are undone; nothing is accepted
// from then on, because nobody would cancel it. It reports whether nothing is left.
func (f *flight) settle(d, undo time.Duration) bool {
	if f.wait(d) {
		return true
	}
	f.mu.Lock()
	f.closed = true
	for op := range f.in {
		op.cancel(errDraining)
	}
	f.mu.Unlock()
	// Twice, because an Add may take that long to return and is undone then.
	return f.wait(2*undo + writeTimeout)
}
