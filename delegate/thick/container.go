package thick

import (
	"context"
	"slices"
	"sync"
)

// containers lets one operation of a container run at a time, in the order in
// which they came. The zero value is ready. It remembers no container that
// nobody claims.
type containers struct {
	mu sync.Mutex
	m  map[string][]*claim // by ID; the first of each has the container
}

// A claim is an operation's on its container.
type claim struct {
	*order
	cancel context.CancelCauseFunc // of the operation
	turn   chan struct{}           // closed once it has the container
}

// claim puts o in the line for its container, and cancels what stands before
// it and is not worth waiting for. The claim has to be released whether it got
// the container or not.
func (c *containers) claim(o *order, cancel context.CancelCauseFunc) *claim {
	k := &claim{o, cancel, make(chan struct{})}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.m == nil {
		c.m = make(map[string][]*claim)
	}
	line := c.m[o.args.ContainerID]
	for _, earlier := range line {
		if o.supersedes(earlier.order) {
			earlier.cancel(errSuperseded)
		}
	}
	if len(line) == 0 {
		close(k.turn)
	}
	c.m[o.args.ContainerID] = append(line, k)
	return k
}

// supersedes reports whether o makes the earlier operation of its container
// pointless. What a DEL of the container removes is not wanted any more,
// whatever it is, and what is in the queue of DELs can be done later; one that
// detaches one more network speaks for its interface alone, and one of the queue is
// older than what is there.
func (o *order) supersedes(earlier *order) bool {
	switch {
	case o.command != cmdDel || o.replayed:
		return false
	case o.more:
		return earlier.more && earlier.command != cmdDel && earlier.args.IfName == o.args.IfName
	}
	return earlier.command != cmdDel || earlier.replayed
}

// wait waits until k has its container, and returns why ctx ended when that
// came first.
func (k *claim) wait(ctx context.Context) error {
	select {
	case <-k.turn:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// release takes k out of the line, wherever it stands.
func (c *containers) release(k *claim) {
	c.mu.Lock()
	defer c.mu.Unlock()
	id := k.args.ContainerID
	line := c.m[id]
	i := slices.Index(line, k)
	line = slices.Delete(line, i, i+1)
	if len(line) == 0 {
		delete(c.m, id)
		return
	}
	c.m[id] = line
	if i == 0 {
		close(line[0].turn)
	}
}
