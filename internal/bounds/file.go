package bounds

import (
	"fmt"
	"io"
	"os"
)

// ReadFile returns the content of the file at path. It must be a regular file, or a link to
// one, of at most [File] bytes: opening a FIFO would wait for a writer.
func ReadFile(path string) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s: not a regular file", path)
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // nothing was written
	data, err := io.ReadAll(io.LimitReader(f, File+1))
	if err == nil && len(data) > File {
		err = fmt.Errorf("%s: %w", path, Above(File))
	}
	if err != nil {
		return nil, err
	}
	return data, nil
}
