package program

import (
	"context"
	"sync"
	"time"
)

// Turns limit how many jobs begin at once, so that many do not take the processors from the
// commands of the runtime, and one whose plugin hangs does not hold up the others: a turn lasts a
// second at most. Its capacity is how many there are.
type Turns chan struct{}

// Take waits for a turn, which ends with the job: then the caller calls end. It reports false if
// ctx has ended before.
func (t Turns) Take(ctx context.Context) (end func(), ok bool) {
	select {
	case t <- struct{}{}:
	case <-ctx.Done():
		return nil, false
	}
	end = sync.OnceFunc(func() { <-t })
	time.AfterFunc(time.Second, end)
	return end, true
}
