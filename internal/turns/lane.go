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
type Lane struct{ turns, open, admitted chan struct{} }

// NewLane returns a lane with that many turns. At most open jobs run at once, with or without a turn,
// and waiting more are admitted.
func NewLane(turns, open, waiting int) Lane {
	return Lane{make(chan struct{}, turns), make(chan struct{}, open), make(chan struct{}, open+waiting)}
}

// Admit reports whether there is a place for one more job, which may wait before it calls Enter. If so,
// the caller must call leave when the job has ended. Jobs that were not admitted may call Enter too.
func (l Lane) Admit() (leave func(), ok bool) {
	select {
	case l.admitted <- struct{}{}:
		return func() { <-l.admitted }, true
	default:
		return nil, false
	}
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

// Load returns how many jobs run, and how many that were admitted do not.
func (l Lane) Load() (running, waiting int) {
	running = len(l.open)
	return running, max(0, len(l.admitted)-running)
}

func put(ctx context.Context, c chan<- struct{}) error {
	select {
	case c <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
