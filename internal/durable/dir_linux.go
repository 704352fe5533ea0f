package durable

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// A Dir is an open directory. Close it. Its methods may be called by several
// goroutines at once, except Close and Names.
type Dir struct {
	fd   int
	path string
	hook Hook
}

const dirFlags = unix.O_RDONLY | unix.O_DIRECTORY | unix.O_CLOEXEC

// OpenDir opens the directory at path. Symbolic links in path itself are
// followed: whoever chose the path may mean them. hook may be nil.
func OpenDir(path string, hook Hook) (*Dir, error) {
	d := &Dir{fd: unix.AT_FDCWD, path: path, hook: hook}
	err := d.do("open", ".", func() (err error) {
		d.fd, err = unix.Open(path, dirFlags, 0)
		return err
	})
	if err != nil {
		return nil, err
	}
	return d, nil
}

// MakeDir opens the directory at path after making it, and every missing
// directory above it, with mode 0700. What it made survives a loss of power.
func MakeDir(path string, hook Hook) (*Dir, error) {
	path = filepath.Clean(path)
	d, err := OpenDir(path, hook)
	if !errors.Is(err, fs.ErrNotExist) {
		return d, err
	}
	above := filepath.Dir(path)
	if above == path {
		return nil, err
	}
	parent, err := MakeDir(above, hook)
	if err != nil {
		return nil, err
	}
	defer parent.Close()
	if err := parent.Mkdir(filepath.Base(path)); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, err
	}
	if err := parent.Sync(); err != nil {
		return nil, err
	}
	return OpenDir(path, hook)
}

// Close closes d. There is nothing in a directory that closing could lose.
func (d *Dir) Close() { _ = unix.Close(d.fd) }

// Path returns the path of the entry name, for messages.
func (d *Dir) Path(name string) string { return filepath.Join(d.path, name) }

// Open opens the directory name. Anything else that has the name, a symbolic
// link to a directory included, is [ErrNotDir].
func (d *Dir) Open(name string) (*Dir, error) {
	sub := &Dir{path: d.Path(name), hook: d.hook}
	err := d.at("openat", name, func() (err error) {
		sub.fd, err = unix.Openat(d.fd, name, dirFlags|unix.O_NOFOLLOW, 0)
		if err == unix.ELOOP || err == unix.ENOTDIR {
			return ErrNotDir
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return sub, nil
}

// Mkdir makes the directory name with mode 0700. One that is there already is
// [fs.ErrExist]. It does not sync d.
func (d *Dir) Mkdir(name string) error {
	return d.at("mkdirat", name, func() error { return unix.Mkdirat(d.fd, name, 0o700) })
}

// Rmdir removes the empty directory name. One that is not empty is
// [fs.ErrExist] (ENOTEMPTY).
func (d *Dir) Rmdir(name string) error {
	return d.at("rmdir", name, func() error { return unix.Unlinkat(d.fd, name, unix.AT_REMOVEDIR) })
}

// Remove removes the file name, which may be anything but a directory. It does
// not sync d: after a loss of power the file may be there again.
func (d *Dir) Remove(name string) error {
	return d.at("unlinkat", name, func() error { return unix.Unlinkat(d.fd, name, 0) })
}

// Rename gives the file from the name to, in place of a file that has it. It
// does not sync d.
func (d *Dir) Rename(from, to string) error {
	if !plain(to) {
		return d.fail("renameat", to, unix.EINVAL)
	}
	return d.at("renameat", from, func() error { return unix.Renameat(d.fd, from, d.fd, to) })
}

// Sync makes the names in d survive a loss of power.
func (d *Dir) Sync() error {
	return d.do("fsync", ".", func() error {
		err := unix.Fsync(d.fd)
		if err == unix.EINVAL {
			return nil // this file system has nothing to sync for a directory
		}
		return err
	})
}

// Stat returns what is known of the entry name, without following a link.
func (d *Dir) Stat(name string) (Info, error) {
	var st unix.Stat_t
	err := d.at("fstatat", name, func() error {
		return unix.Fstatat(d.fd, name, &st, unix.AT_SYMLINK_NOFOLLOW)
	})
	if err != nil {
		return Info{}, err
	}
	return Info{ID: IDOf(&st), Size: st.Size, IsDir: st.Mode&unix.S_IFMT == unix.S_IFDIR}, nil
}

// Names returns the names in d, sorted. A directory that has been removed since
// it was opened has none.
func (d *Dir) Names() ([]string, error) {
	var names []string
	err := d.do("getdents", ".", func() error {
		names = nil
		if _, err := unix.Seek(d.fd, 0, unix.SEEK_SET); err != nil {
			return err
		}
		buf := make([]byte, 16<<10)
		for {
			n, err := unix.ReadDirent(d.fd, buf)
			if err == unix.ENOENT {
				return nil
			}
			if err != nil || n == 0 {
				return err
			}
			_, _, names = unix.ParseDirent(buf[:n], -1, names)
		}
	})
	if err != nil {
		return nil, err
	}
	slices.Sort(names)
	return names, nil
}

// OpenFile opens the regular file name for reading and writing, making it with
// mode 0600 when it is missing, and returns its identity as well. Children do
// not inherit it unless told to.
func (d *Dir) OpenFile(name string) (*os.File, ID, error) {
	fd, st, err := d.open(name, unix.O_RDWR|unix.O_CREAT)
	if err != nil {
		return nil, ID{}, err
	}
	return os.NewFile(uintptr(fd), d.Path(name)), IDOf(&st), nil
}

// open opens name, which must be a regular file.
func (d *Dir) open(name string, flags int) (int, unix.Stat_t, error) {
	var fd int
	var st unix.Stat_t
	err := d.at("openat", name, func() (err error) {
		fd, err = unix.Openat(d.fd, name, flags|unix.O_NOFOLLOW|unix.O_NOCTTY|unix.O_CLOEXEC, 0o600)
		switch err {
		case unix.ELOOP, unix.ENXIO, unix.EISDIR, unix.ENODEV:
			return ErrNotRegular
		}
		return err
	})
	if err != nil {
		return -1, st, err
	}
	err = d.at("fstat", name, func() error { return unix.Fstat(fd, &st) })
	if err == nil && st.Mode&unix.S_IFMT != unix.S_IFREG {
		err = d.fail("openat", name, ErrNotRegular)
	}
	if err != nil {
		_ = unix.Close(fd)
		return -1, st, err
	}
	return fd, st, nil
}

// IDOf returns the identity of the file that st is about.
func IDOf(st *unix.Stat_t) ID {
	return ID{Dev: uint64(st.Dev), Ino: st.Ino} //nolint:unconvert // 32 bits on mips
}

// plain reports whether name can only be an entry of a directory.
func plain(name string) bool {
	return name != "" && name != "." && name != ".." && !strings.ContainsAny(name, "/\x00")
}

// at is do for an entry of d.
func (d *Dir) at(call, name string, f func() error) error {
	if !plain(name) {
		return d.fail(call, name, unix.EINVAL)
	}
	return d.do(call, name, f)
}

// do makes one system call.
func (d *Dir) do(call, name string, f func() error) error {
	Step(call, name)
	if d.hook != nil {
		if err := d.hook(call, name); err != nil {
			return d.fail(call, name, err)
		}
	}
	for {
		err := f()
		if err == nil {
			return nil
		}
		if !errors.Is(err, unix.EINTR) {
			return d.fail(call, name, err)
		}
	}
}

func (d *Dir) fail(call, name string, err error) error {
	return &fs.PathError{Op: call, Path: d.Path(name), Err: err}
}
