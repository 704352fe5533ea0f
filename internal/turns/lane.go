package turns

import (
	"context"
	"sync"
	"time"
)

// Length is how long a turn in a [Lane] lasts at most.
const Length = time.Second

// A Lane limits how many jobs of one kind run at once, first come, first served. A job keeps its turn
// for at most [Length]: a longer one is probably waiting for a plugin that hangs. It runs on without
// a turn, and the next job begins. Goroutines may share a lane.
type Lane struct{ turns, open chan struct{} }

// NewLane returns a lane with that many turns. At most open jobs run at once, with or without a turn.
func NewLane(turns, open int) Lane {
	return Lane{make(chan struct{}, turns), make(chan struct{}, open)}
}

// Enter waits for a turn. The caller must call leave when the job has ended. If ctx ends first,
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

// Open returns how many jobs run.
func (l Lane) Open() int { return len(l.open) }

func put(ctx context.Context, c chan<- struct{}) error {
	select {
	case c <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
