package autoconf

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/metacni/metacni/internal/durable"
)

// lock takes the lock on the file at path, which it makes with its directory,
// without waiting. It is released when the file is closed, or the process ends.
// Without an error and a file, someone else has it.
func lock(path string) (*os.File, error) {
	// Not the directories above it: the one of configurations is for others to
	// make, who know its mode.
	if err := os.Mkdir(filepath.Dir(path), 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, err
	}
	d, err := durable.OpenDir(filepath.Dir(path), nil)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	f, _, err := d.OpenFile(filepath.Base(path))
	if err != nil {
		return nil, err
	}
	for err = unix.EINTR; errors.Is(err, unix.EINTR); {
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	}
	if err == nil {
		return f, nil
	}
	_ = f.Close()
	if errors.Is(err, unix.EWOULDBLOCK) {
		return nil, nil
	}
	return nil, &os.PathError{Op: "flock", Path: path, Err: err}
}
