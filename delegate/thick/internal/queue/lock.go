package queue

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"
)

const (
	firstWait   = time.Millisecond
	longestWait = 25 * time.Millisecond
)

// A mode is how a lock is held.
type mode int

const (
	shared mode = iota
	exclusive
)

// A lock is that of a queue, held or not. It ends with the process that holds
// it, and its children do not inherit it.
type lock struct{ file *os.File }

// acquire takes the lock. While somebody else has it, it calls meanwhile, and
// gives up without the lock when that says done or returns an error.
func (l *lock) acquire(ctx context.Context, m mode, meanwhile func() (done bool, err error)) (done bool, err error) {
	for wait := firstWait; ; wait = min(2*wait, longestWait) {
		if held, err := flock(l.file, m); held || err != nil {
			return false, l.fail(err)
		}
		if done, err := meanwhile(); done || err != nil {
			return done, err
		}
		if err := pause(ctx, wait); err != nil {
			return false, l.fail(err)
		}
	}
}

func (l *lock) fail(err error) error {
	if err == nil {
		return nil
	}
	return &Error{Op: "lock", Path: l.file.Name(), Err: err}
}

// release lets go of the lock if it is held, and closes it.
func (l *lock) release() {
	// Closing alone would leave it to a child that has not got to its exec yet.
	_ = unflock(l.file)
	_ = l.file.Close()
}

// pause waits, and returns why when ctx ended first.
func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ended(ctx)
	}
}

// ended returns why ctx ended, as an error that is ctx.Err() too.
func ended(ctx context.Context) error {
	err, cause := ctx.Err(), context.Cause(ctx)
	if errors.Is(cause, err) {
		return cause
	}
	return fmt.Errorf("%w: %w", err, cause)
}
