package thick

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/metacni/metacni/internal/cause"
)

const (
	firstWait   = time.Millisecond
	longestWait = 25 * time.Millisecond
)

// flock returns the file at path, made when missing, with its lock held. It
// waits for that until ctx ends. The lock ends with the process, and no child
// inherits it. Nothing here removes the file: a lock on a removed file excludes
// nobody.
func flock(ctx context.Context, path string) (*os.File, error) {
	for wait := firstWait; ; wait = min(2*wait, longestWait) {
		if f, err := tryFlock(path); f != nil || err != nil {
			return f, err
		}
		if err := sleep(ctx, wait); err != nil {
			return nil, fmt.Errorf("another daemon has the lock %s: %w", path, err)
		}
	}
}

// tryFlock is flock without waiting. It returns nil and no error when somebody
// else has the lock.
func tryFlock(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0o600)
	if err != nil {
		return nil, err
	}
	raw, err := f.SyscallConn()
	if err != nil {
		_ = f.Close()
		return nil, err
	}
	cerr := raw.Control(func(fd uintptr) {
		err = unix.EINTR
		for errors.Is(err, unix.EINTR) {
			err = unix.Flock(int(fd), unix.LOCK_EX|unix.LOCK_NB)
		}
	})
	if err = errors.Join(cerr, err); err != nil {
		_ = f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, nil
		}
		return nil, &fs.PathError{Op: "flock", Path: path, Err: err}
	}
	return f, nil
}

// unflock releases the lock and closes its file.
func unflock(f *os.File) {
	// Closing alone would leave the lock to a child before its exec.
	_ = unix.Flock(int(f.Fd()), unix.LOCK_UN)
	_ = f.Close()
}

// sleep waits, and returns why when ctx ended first.
func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return cause.Of(ctx)
	}
}
