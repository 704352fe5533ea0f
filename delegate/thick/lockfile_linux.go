package thick

import (
	"context"
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/metacni/metacni/internal/flock"
)

// A lock is an open file with its lock, which ends with the process. Children do not inherit
// it. The file is never removed, because a lock on a removed file excludes nobody.
type lock struct {
	*os.File

	once sync.Once // of the release
}

// openLock opens the file at path, which it makes if it is missing.
func openLock(path string) (*lock, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0o600)
	return &lock{File: f}, err
}

// takeLock opens the file at path and waits for its lock.
func takeLock(ctx context.Context, path string) (*lock, error) {
	l, err := openLock(path)
	if err != nil {
		return nil, err
	}
	err = flock.Wait(ctx, 0, func() (bool, error) { return flock.Try(int(l.Fd()), true) })
	if err == nil {
		return l, nil
	}
	_ = l.Close() // nothing was written
	if ctx.Err() != nil {
		err = fmt.Errorf("another daemon has it: %w", err)
	}
	return nil, fmt.Errorf("lock %s: %w", path, err)
}

// release releases the lock. It may be called again, and without a lock.
func (l *lock) release() {
	if l == nil {
		return
	}
	l.once.Do(func() {
		// After closing alone, a child that has not called exec yet would keep the lock.
		_ = flock.Unlock(int(l.Fd()))
		_ = l.Close()
	})
}
