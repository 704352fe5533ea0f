// Package flock locks files with flock(2), and waits for such locks.
package flock

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"time"

	"github.com/metacni/metacni/internal/cause"
)

// ErrNested means that this process has inherited the lock that it asks for: it runs inside
// the operation that holds it, and would wait for itself.
var ErrNested = errors.New("runs inside the operation that holds the lock")

const (
	firstPause   = time.Millisecond
	longestPause = 25 * time.Millisecond
)

// Wait calls try until it reports that the lock is taken, or fails. Between two
// calls it pauses, for 25 ms at most. When ctx ends during a pause, Wait returns
// the reason; it calls try once whether ctx has ended or not. A limit that is not zero
// bounds the wait after the first try; then Wait returns [context.DeadlineExceeded].
func Wait(ctx context.Context, limit time.Duration, try func() (bool, error)) error {
	done, err := try()
	if limit > 0 && !done && err == nil {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, limit)
		defer cancel()
	}
	for pause := firstPause; !done && err == nil; pause = min(2*pause, longestPause) {
		select {
		case <-time.After(pause):
		case <-ctx.Done():
		}
		if err := cause.Of(ctx); err != nil {
			return err
		}
		done, err = try()
	}
	return err
}

// Release releases the lock on f and closes f, which may be nil or closed.
func Release(f *os.File) {
	if f != nil {
		// After closing alone, a child that has not called exec yet would keep the lock.
		if raw, err := f.SyscallConn(); err == nil {
			_ = raw.Control(func(fd uintptr) { _ = Unlock(int(fd)) }) // fails if f is closed
		}
		_ = f.Close()
	}
}

// TryFile is [Try] for an exclusive lock on f. Unless it takes the lock, it closes
// f. An error is an [*fs.PathError].
func TryFile(f *os.File) (bool, error) {
	held, err := Try(int(f.Fd()), true)
	if held {
		return true, nil
	}
	_ = f.Close() // nothing was written
	if err != nil {
		err = &fs.PathError{Op: "flock", Path: f.Name(), Err: err}
	}
	return false, err
}
