package turns

import (
	"context"
	"sync"
	"time"
)

// Length is how long a turn in a [Lane] lasts at most.
const Length = time.Second

// A Lane limits how much work of one kind is done at once: first come, first served. Work has its
// turn until it ends, but not for longer than [Length]: what takes longer waits for somebody
// else, such as a plugin that hangs. It goes on, and the next has its turn beside it. Goroutines
// may share a lane.
type Lane struct{ turns, open chan struct{} }

// NewLane returns a lane with so many turns at once. At most so many pieces of work are open at
// once: they have a turn, or go on after it.
func NewLane(turns, open int) Lane {
	return Lane{make(chan struct{}, turns), make(chan struct{}, open)}
}

// Enter waits for a turn. The caller must call leave when the work has ended. If ctx ends first,
// Enter returns why.
func (l Lane) Enter(ctx context.Context) (leave func(), err error) {
	if err := put(ctx, l.turns); err != nil {
		return nil, err
	}
	pass := sync.OnceFunc(func() { <-l.turns })
	if err := put(ctx, l.open); err != nil {
		pass()
		return nil, err
	}
	late := time.AfterFunc(Length, pass)
	return func() { late.Stop(); pass(); <-l.open }, nil
}

// Open returns how many pieces of work are open.
func (l Lane) Open() int { return len(l.open) }

func put(ctx context.Context, c chan<- struct{}) error {
	select {
	case c <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
