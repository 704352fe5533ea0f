package bounds

import (
	"errors"
	"io"
	"io/fs"
)

// An UnfitError says why a file is not read: it is not a regular one, or too large.
type UnfitError struct{ error }

// ReadFS returns the content of a file of fsys. It must be a regular file, or a link to one,
// of at most limit bytes. Otherwise the error is an [*UnfitError], and the file is not opened:
// opening a FIFO waits for a writer, and opening a device may have effects. A file without a size is
// empty, and not opened either.
func ReadFS(fsys fs.FS, file string, limit int) ([]byte, error) {
	info, err := fs.Stat(fsys, file)
	if err == nil {
		err = fit(info, limit)
	}
	if err != nil {
		return nil, err
	}
	if info.Size() == 0 {
		return nil, nil // also /proc/kmsg, a regular file whose reader waits for messages, and takes them away
	}
	f, err := fsys.Open(file)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // nothing was written
	info, err = f.Stat()
	if err == nil {
		err = fit(info, limit) // it may be another file by now
	}
	if err != nil {
		return nil, err
	}
	data, err := io.ReadAll(io.LimitReader(f, int64(limit)+1)) // it may be growing
	if err != nil {
		return nil, err
	}
	if len(data) > limit {
		return nil, &UnfitError{Above(limit)}
	}
	return data, nil
}

func fit(info fs.FileInfo, limit int) error {
	switch {
	case !info.Mode().IsRegular():
		return &UnfitError{errors.New("not a regular file")}
	case info.Size() > int64(limit):
		return &UnfitError{Above(limit)}
	}
	return nil
}
