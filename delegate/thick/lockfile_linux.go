package thick

import (
	"context"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/metacni/metacni/internal/flock"
)

// lockFile opens the file at path, which it makes if it is missing, and waits for
// its lock. The lock ends with the process, and children do not inherit it. The
// file is never removed, because a lock on a removed file excludes nobody.
func lockFile(ctx context.Context, path string) (*os.File, error) {
	var f *os.File
	err := flock.Wait(ctx, 0, func() (_ bool, err error) {
		f, err = tryLockFile(path)
		return f != nil, err
	})
	if end := ctx.Err(); end != nil && errors.Is(err, end) {
		err = fmt.Errorf("another daemon has the lock %s: %w", path, err)
	}
	return f, err
}

// tryLockFile is lockFile without waiting. It returns nil and no error if another
// process has the lock.
func tryLockFile(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0o600)
	if err != nil {
		return nil, err
	}
	if held, err := flock.TryFile(f); !held {
		return nil, err
	}
	return f, nil
}

// unlockFile releases the lock and closes the file.
func unlockFile(f *os.File) {
	// After closing alone, a child that has not called exec yet would keep the lock.
	_ = flock.Unlock(int(f.Fd()))
	_ = f.Close()
}
