package thick

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"

	"github.com/metacni/metacni/internal/flock"
)

// lockFile opens the file at path and waits for its lock. It makes the file when
// there is none. The lock ends with the process, and children do not inherit
// it. Nobody removes the file: a lock on a removed file excludes nobody.
func lockFile(ctx context.Context, path string) (*os.File, error) {
	var f *os.File
	err := flock.Wait(ctx, func() (_ bool, err error) {
		f, err = tryLockFile(path)
		return f != nil, err
	})
	if end := ctx.Err(); end != nil && errors.Is(err, end) {
		err = fmt.Errorf("another daemon has the lock %s: %w", path, err)
	}
	return f, err
}

// tryLockFile is lockFile without waiting. It returns nil and no error when the
// file is locked.
func tryLockFile(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0o600)
	if err != nil {
		return nil, err
	}
	held, err := flock.Try(int(f.Fd()), true)
	if held {
		return f, nil
	}
	_ = f.Close()
	if err != nil {
		err = &fs.PathError{Op: "flock", Path: path, Err: err}
	}
	return nil, err
}

// unlockFile releases the lock and closes the file.
func unlockFile(f *os.File) {
	// Closing alone would leave the lock to a child before its exec.
	_ = flock.Unlock(int(f.Fd()))
	_ = f.Close()
}
