// Package turns serialises the operations of each container, and limits how many of a kind begin at
// once.
package turns

import (
	"context"
	"slices"
	"sync"
)

// Turns lets one operation of a container run at a time, first come, first
// served. T is what the operations of a container may know of each other. The
// zero value is ready to use. A container that nobody has lined up for takes no
// memory.
type Turns[T any] struct {
	mu    sync.Mutex
	lines map[string][]*Turn[T] // by container; the first of each has the turn; guarded by mu
}

// A Turn is a place in the line for a container, see [Turns.LineUp].
type Turn[T any] struct {
	all   *Turns[T]
	id    string
	value T
	come  chan struct{} // closed when the turn has come
}

// LineUp takes the last place in the line for the container id, and calls visit,
// unless it is nil, with the value of each turn before it. The caller must call
// Leave.
func (t *Turns[T]) LineUp(id string, value T, visit func(earlier T)) *Turn[T] {
	turn := &Turn[T]{t, id, value, make(chan struct{})}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.lines == nil {
		t.lines = make(map[string][]*Turn[T])
	}
	line := t.lines[id]
	if visit != nil {
		for _, earlier := range line {
			visit(earlier.value)
		}
	}
	if len(line) == 0 {
		close(turn.come)
	}
	t.lines[id] = append(line, turn)
	return turn
}

// Wait waits until the turn has come. If ctx ends first, Wait returns why.
func (t *Turn[T]) Wait(ctx context.Context) error {
	select {
	case <-t.come:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Leave ends the turn, or gives up the place in the line.
func (t *Turn[T]) Leave() {
	all := t.all
	all.mu.Lock()
	defer all.mu.Unlock()
	line := all.lines[t.id]
	i := slices.Index(line, t)
	line = slices.Delete(line, i, i+1)
	if len(line) == 0 {
		delete(all.lines, t.id)
		return
	}
	all.lines[t.id] = line
	if i == 0 {
		close(line[0].come)
	}
}
