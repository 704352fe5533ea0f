package autoconf

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/metacni/metacni/internal/durable"
	"github.com/metacni/metacni/internal/flock"
)

// lock takes the lock on the file at path, which it makes with its directory,
// without waiting. It is held until release, or the end of the process. Without an
// error and a file, someone else has it.
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
	f, err := d.OpenFile(filepath.Base(path))
	if err != nil {
		return nil, err
	}
	if held, err := flock.TryFile(f); !held {
		return nil, err
	}
	return f, nil
}
