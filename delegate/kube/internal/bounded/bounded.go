// Package bounded reads files that are written by others.
package bounded

import (
	"fmt"
	"io"
	"io/fs"
	"os"
	"syscall"
)

// limit is the size in bytes of a file of credentials, or of the kubelet.
const limit = 16 << 20

// ReadFile returns the content of a regular file of at most 16 MiB, or of a link to one. Any other
// is not opened: opening a FIFO waits for a writer, and opening a device may have effects. A file
// without a size is empty, and not opened either: it may be one of procfs.
func ReadFile(path string) ([]byte, error) {
	info, err := os.Stat(path)
	if err == nil {
		err = fit(path, info)
	}
	if err != nil || info.Size() == 0 {
		return nil, err
	}
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0) // it may be a FIFO by now
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // nothing was written
	if info, err = f.Stat(); err == nil {
		err = fit(path, info)
	}
	if err != nil {
		return nil, err
	}
	data, err := io.ReadAll(io.LimitReader(f, limit+1)) // it may be growing
	if err == nil && len(data) > limit {
		err = fmt.Errorf("%s: larger than %d MiB", path, limit>>20)
	}
	return data, err
}

func fit(path string, info fs.FileInfo) error {
	switch {
	case !info.Mode().IsRegular():
		return fmt.Errorf("%s: not a regular file", path)
	case info.Size() > limit:
		return fmt.Errorf("%s: larger than %d MiB", path, limit>>20)
	}
	return nil
}
