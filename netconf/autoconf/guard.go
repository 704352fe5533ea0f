package autoconf

import (
	"io/fs"
	"os"
	"path/filepath"
)

// sizeLimit is how large a configuration file may be.
const sizeLimit = 16 << 20

// A guarded file system opens nothing but directories and regular files that
// are not too large.
type guarded struct{ fsys fs.FS }

// Open opens a file or directory. It asks what it is first: to open a device
// may have effects.
func (g guarded) Open(name string) (fs.File, error) {
	if _, err := g.Stat(name); err != nil {
		return nil, err
	}
	f, err := g.fsys.Open(name)
	if err != nil {
		return nil, err
	}
	// It may be another file by now.
	info, err := f.Stat()
	if err == nil {
		err = check(name, info)
	}
	if err != nil {
		_ = f.Close()
		return nil, err
	}
	if info.IsDir() {
		return f, nil
	}
	return &limited{File: f, name: name, left: sizeLimit}, nil
}

// Stat fails for what Open would not open.
func (g guarded) Stat(name string) (fs.FileInfo, error) {
	info, err := fs.Stat(g.fsys, name)
	if err != nil {
		return nil, err
	}
	return info, check(name, info)
}

// ReadDir lists a directory.
func (g guarded) ReadDir(name string) ([]fs.DirEntry, error) { return fs.ReadDir(g.fsys, name) }

// check fails unless info is about something that may be opened.
func check(name string, info fs.FileInfo) error {
	switch {
	case info.IsDir():
		return nil
	case !info.Mode().IsRegular():
		return &fs.PathError{Op: "open", Path: name, Err: ErrNotRegular}
	case info.Size() > sizeLimit:
		return &fs.PathError{Op: "open", Path: name, Err: ErrTooLarge}
	}
	return nil
}

// A limited file is one that may grow while it is read, but not for ever.
type limited struct {
	fs.File

	name string
	left int64
}

func (l *limited) Read(p []byte) (int, error) {
	n, err := l.File.Read(p)
	if l.left -= int64(n); l.left < 0 {
		return 0, &fs.PathError{Op: "read", Path: l.name, Err: ErrTooLarge}
	}
	return n, err
}

// A dirFS is [os.DirFS], but that opening a FIFO does not wait for a writer.
type dirFS string

func (d dirFS) path(op, name string) (string, error) {
	if !fs.ValidPath(name) {
		return "", &fs.PathError{Op: op, Path: name, Err: fs.ErrInvalid}
	}
	return filepath.Join(string(d), filepath.FromSlash(name)), nil
}

// Open opens a file for reading.
func (d dirFS) Open(name string) (fs.File, error) {
	path, err := d.path("open", name)
	if err != nil {
		return nil, err
	}
	f, err := os.OpenFile(path, os.O_RDONLY|nonblock, 0)
	if err != nil {
		return nil, err // not a nil *os.File in an fs.File
	}
	return f, nil
}

// Stat follows links.
func (d dirFS) Stat(name string) (fs.FileInfo, error) {
	path, err := d.path("stat", name)
	if err != nil {
		return nil, err
	}
	return os.Stat(path)
}

// ReadDir lists a directory.
func (d dirFS) ReadDir(name string) ([]fs.DirEntry, error) {
	path, err := d.path("open", name)
	if err != nil {
		return nil, err
	}
	return os.ReadDir(path)
}
