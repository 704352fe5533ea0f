package queue

import (
	"context"

	"github.com/metacni/metacni/internal/durable"
	"github.com/metacni/metacni/internal/flock"
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
	var failed error // in meanwhile, whose error is its own
	err = flock.Wait(ctx, func() (bool, error) {
		if held, err := dir.Flock(how); held || err != nil {
			return held, err
		}
		done, failed = meanwhile()
		return done || failed != nil, nil
	})
	switch {
	case failed != nil:
		return false, nil, failed
	case done || err != nil:
		return done, nil, q.fail("lock", "", err)
	}
	// Closing alone would leave the lock to a child before its exec.
	return false, func() { _ = dir.Unflock() }, nil
}
