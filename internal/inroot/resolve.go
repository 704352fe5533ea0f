package inroot

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// maxLinks is how many links a path may have, as in the kernel.
const maxLinks = 40

// Resolve returns the path of this process, without links, to the file that is at
// path for a process with the root directory root. The file need not exist: a file
// that is made at the result is inside root. With an empty root the result is path
// itself. It holds as long as nobody changes the links; use [With] where that
// matters.
//
// The error is an [*fs.PathError] of path.
func Resolve(root, path string) (string, error) {
	if root == "" {
		return path, nil
	}
	done, links := "/", 0
	for rest := path; rest != ""; {
		var name string
		name, rest, _ = strings.Cut(rest, "/")
		next := filepath.Join(done, name) // of which "" and "." change nothing, and ".." stops at the root
		to, err := os.Readlink(filepath.Join(root, next))
		switch {
		case err != nil: // no link, or nothing: what is wrong with it is for who uses it
			done = next
		case links == maxLinks:
			return "", &fs.PathError{Op: "resolve", Path: path, Err: errors.New("too many symbolic links")}
		default:
			links++
			if filepath.IsAbs(to) {
				done = "/"
			}
			rest = to + "/" + rest
		}
	}
	return filepath.Join(root, done), nil
}

// Cause returns the cause of a failed operation on a file, without the path:
// for an error that names the path itself. It returns any other error as it is.
func Cause(err error) error {
	if e := (*fs.PathError)(nil); errors.As(err, &e) {
		return e.Err
	}
	return err
}

// A Dir is [os.DirFS] of the directory that is at Path for a process with the root
// directory Root: no link in it leads out of Root. With an empty Root it is
// os.DirFS(Path). Opening a FIFO does not wait for a writer.
type Dir struct{ Root, Path string }

// Open opens a file of the directory.
func (d Dir) Open(name string) (f fs.File, err error) {
	err = d.with("open", name, func(path string) error {
		f, err = os.OpenFile(path, os.O_RDONLY|nonblock, 0)
		return err
	})
	return f, err
}

// Stat says what a file of the directory is.
func (d Dir) Stat(name string) (info fs.FileInfo, err error) {
	err = d.with("stat", name, func(path string) error {
		info, err = os.Stat(path)
		return err
	})
	return info, err
}

// with calls do with a path of the file called name.
func (d Dir) with(op, name string, do func(path string) error) error {
	if !fs.ValidPath(name) {
		return &fs.PathError{Op: op, Path: name, Err: fs.ErrInvalid}
	}
	path := filepath.Join(d.Path, name)
	if err := With(d.Root, path, do); err != nil {
		return &fs.PathError{Op: op, Path: path, Err: Cause(err)}
	}
	return nil
}
