package queue

import (
	"context"
	"time"

	"github.com/metacni/metacni/internal/cause"
	"github.com/metacni/metacni/internal/durable"
)

const (
	firstWait   = time.Millisecond
	longestWait = 25 * time.Millisecond
)

// The two ways to hold the lock, which is that of the directory.
const (
	shared    = false
	exclusive = true
)

// oldLockName is the file that earlier versions locked in place of the
// directory.
const oldLockName = ".lock"

// lock takes the lock of the queue, which is open as dir. While somebody else has
// the lock, it calls meanwhile, and gives up without the lock when that says done
// or returns an error. The lock ends with the process at the latest.
func (q Queue) lock(ctx context.Context, dir *durable.Dir, how bool, meanwhile func() (done bool, err error)) (done bool, unlock func(), err error) {
	for wait := firstWait; ; wait = min(2*wait, longestWait) {
		if held, err := dir.Flock(how); held || err != nil {
			// Closing alone would leave the lock to a child before its exec.
			return false, func() { _ = dir.Unflock() }, q.fail("lock", "", err)
		}
		if done, err := meanwhile(); done || err != nil {
			return done, nil, err
		}
		if err := pause(ctx, wait); err != nil {
			return false, nil, q.fail("lock", "", err)
		}
	}
}

// pause waits, and returns why when ctx ended first.
func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return cause.Of(ctx)
	}
}
