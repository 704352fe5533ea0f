// Package bounded reads files that are written by others.
package bounded

import (
	"fmt"
	"io"
	"os"
	"syscall"
)

// limit is the size in bytes of a file of credentials, or of the kubelet.
const limit = 16 << 20

// ReadFile returns the content of a regular file of at most 16 MiB, or of a link to one. What is
// not a regular file is not opened: opening a FIFO waits for a writer, and opening a device may
// have effects. A file without a size is empty, and not opened either: it may be one of procfs.
func ReadFile(path string) ([]byte, error) {
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular():
		return nil, fmt.Errorf("%s: not a regular file", path)
	case info.Size() == 0:
		return nil, nil
	}
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0) // it may be a FIFO by now, which is empty then
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // nothing was written
	data, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err == nil && len(data) > limit {
		err = fmt.Errorf("%s: larger than %d MiB", path, limit>>20)
	}
	return data, err
}
