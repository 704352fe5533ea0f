// Package durable writes small files that are there whole or not at all, and
// keeps every step inside one directory.
//
// A [Dir] is an open directory. All that is done with it names entries of that
// directory alone: a name with a slash is refused and a symbolic link is never
// followed, so nothing planted in the directory leads out of it. [Dir.WriteFile]
// replaces a file so that a reader sees the old content or the new, and so that
// the new one survives a loss of power once it has returned.
//
// Every system call can be preceded by a [Hook], which tests use to stop a
// program between two of them or to make one fail.
//
// It works on Linux. Elsewhere everything answers [errors.ErrUnsupported].
package durable

import (
	"errors"
	"strings"
	"time"

	"github.com/metacni/metacni/internal/inroot"
)

// A Hook is called before a system call, with the call's name and the entry of
// the directory it is about ("." for the directory itself). The call is not
// made when it returns an error; the error takes the place of the call's own.
type Hook func(call, name string) error

// TempPrefix begins the names of the files that [Dir.WriteFile] writes to before it
// renames them. A crash may leave one behind.
const TempPrefix = ".tmp-"

var (
	// ErrNotRegular is returned where a regular file is wanted and something
	// else has its name.
	ErrNotRegular = errors.New("not a regular file")
	// ErrTooLarge is returned by [Dir.ReadFile] for a file over the limit.
	ErrTooLarge = errors.New("file too large")
)

// OpenDirIn is [OpenDir] of the directory that is at path for a process with the root directory
// root, see package inroot.
func OpenDirIn(root, path string, hook Hook) (d *Dir, err error) {
	err = inroot.With(root, path, func(path string) error {
		d, err = OpenDir(path, hook)
		return err
	})
	return d, err
}

// An ID tells two files of one machine apart. The zero ID is no file's.
type ID struct{ dev, ino uint64 }

// An Info is what [Dir.Stat] tells of a directory's entry.
type Info struct {
	ID      ID
	Mode    uint32 // the permissions, with the setuid, setgid and sticky bits
	IsDir   bool
	IsFile  bool // a regular file
	Changed time.Time
	Version string // changes whenever the file is written or replaced
}

// IsTemp reports whether name is that of a temporary file.
func IsTemp(name string) bool { return strings.HasPrefix(name, TempPrefix) }
