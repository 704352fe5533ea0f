package autoconf

import (
	"errors"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/metacni/metacni/internal/durable"
)

// lock takes the lock on the file at path, which it makes, without waiting. It
// is released when the file is closed, or the process ends. Without an error
// and a file, someone else has it.
func lock(path string) (*os.File, error) {
	d, err := durable.MakeDir(filepath.Dir(path), nil)
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
