package queue

import (
	"context"

	"github.com/metacni/metacni/internal/durable"
	"github.com/metacni/metacni/internal/flock"
)

// The two kinds of lock on the directory.
const (
	shared    = false
	exclusive = true
)

// lock takes the lock of the queue, whose directory is dir. While another process
// has the lock, it calls meanwhile repeatedly; if that returns true or an error,
// lock returns it, without the lock. The end of the process releases the lock.
func (q Queue) lock(ctx context.Context, dir *durable.Dir, how bool, meanwhile func() (done bool, err error)) (done bool, unlock func(), err error) {
	var failed error // the error of meanwhile, which is returned unchanged
	err = flock.Wait(ctx, 0, func() (bool, error) {
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
	// After closing alone, a child that has not called exec yet would keep the lock.
	return false, func() { _ = dir.Unflock() }, nil
}
