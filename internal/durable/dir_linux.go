package durable

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/metacni/metacni/internal/flock"
)

// A Dir is an open directory. Close it. Its methods may be called by several
// goroutines at once, except Close.
type Dir struct {
	fd   int
	path string
	hook Hook

	listing sync.Mutex // guards the position in fd
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
// directory above it, with mode 0700. What it makes survives a loss of power.
func MakeDir(path string, hook Hook) (*Dir, error) {
	path = filepath.Clean(path)
	d, err := OpenDir(path, hook)
	if !errors.Is(err, fs.ErrNotExist) || filepath.Dir(path) == path {
		return d, err
	}
	if err := mkdir(path, hook); err != nil {
		return nil, err
	}
	return OpenDir(path, hook)
}

// mkdir makes the directory at path, which may be there already.
func mkdir(path string, hook Hook) error {
	parent, err := MakeDir(filepath.Dir(path), hook)
	if err != nil {
		return err
	}
	defer parent.Close()
	name := filepath.Base(path)
	err = parent.at("mkdirat", name, func() error { return unix.Mkdirat(parent.fd, name, 0o700) })
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	if err != nil {
		return err
	}
	// fsync(2) asks for it. ext4, XFS and btrfs keep a directory in which a file was
	// synced without it: where a process dies before this, nothing is lost.
	return parent.Sync()
}

// Close closes d. There is nothing in a directory that closing could lose.
func (d *Dir) Close() { Close(d.fd) }

// Path returns the path of the entry name, for messages.
func (d *Dir) Path(name string) string { return filepath.Join(d.path, name) }

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
	err := d.do("fsync", ".", func() error { return unix.Fsync(d.fd) })
	if errors.Is(err, unix.EINVAL) {
		return nil // this file system has nothing to sync for a directory
	}
	return err
}

// Flock takes the lock of d itself, without waiting, and reports whether it
// was free.
func (d *Dir) Flock(exclusive bool) (bool, error) {
	var held bool
	err := d.do("flock", ".", func() (err error) {
		held, err = flock.Try(d.fd, exclusive)
		return err
	})
	return held, err
}

// Dup returns a new descriptor of the open file fd, for child processes, or nil if the
// system has none left. The caller closes it.
func Dup(fd int, path string) *os.File {
	fd, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		return nil
	}
	return os.NewFile(uintptr(fd), path)
}

// Close closes a descriptor to which nothing was written.
func Close(fd int) { _ = unix.Close(fd) }

// Unflock releases the lock of d, for those too who share its descriptor.
func (d *Dir) Unflock() error {
	return d.do("unflock", ".", func() error { return flock.Unlock(d.fd) })
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
	kind := st.Mode & unix.S_IFMT
	return Info{
		ID: IDOf(&st), Mode: st.Mode & 0o7777, Changed: time.Unix(st.Mtim.Unix()),
		IsDir: kind == unix.S_IFDIR, IsFile: kind == unix.S_IFREG,
		Version: strconv.FormatUint(st.Ino, 36) + "." + strconv.FormatInt(st.Size, 36) + "." + strconv.FormatInt(unix.TimespecToNsec(st.Ctim), 36),
	}, nil
}

// Names returns the names in d, sorted. A directory that has been removed since
// it was opened has none.
func (d *Dir) Names() ([]string, error) { return d.NamesWith("") }

// NamesWith returns those of the names in d that begin with one of prefixes, sorted.
func (d *Dir) NamesWith(prefixes ...string) ([]string, error) {
	d.listing.Lock()
	defer d.listing.Unlock()
	var names []string
	err := d.do("getdents", ".", func() error {
		names = nil
		if _, err := unix.Seek(d.fd, 0, unix.SEEK_SET); err != nil {
			return err
		}
		buf := make([]byte, 64<<10)
		for {
			n, err := unix.ReadDirent(d.fd, buf)
			if err == unix.ENOENT {
				return nil
			}
			if err != nil || n == 0 {
				return err
			}
			names = appendNames(names, buf[:n], prefixes)
		}
	})
	if err != nil {
		return nil, err
	}
	slices.Sort(names)
	return names, nil
}

// appendNames appends the names in entries, which are those of getdents64(2), that begin with
// one of prefixes.
func appendNames(names []string, entries []byte, prefixes []string) []string {
	const header = int(unsafe.Offsetof(unix.Dirent{}.Name))
	for len(entries) > header {
		size := int(binary.NativeEndian.Uint16(entries[unsafe.Offsetof(unix.Dirent{}.Reclen):]))
		name, _, _ := bytes.Cut(entries[header:size], []byte{0})
		entries = entries[size:]
		if s := string(name); s != "." && s != ".." && slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(s, p) }) {
			names = append(names, s)
		}
	}
	return names
}

// OpenFile opens the regular file name for reading and writing, making it with
// mode 0600 when it is missing. Children do not inherit it unless told to.
func (d *Dir) OpenFile(name string) (*os.File, error) {
	fd, _, err := d.open(name, unix.O_RDWR|unix.O_CREAT)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), d.Path(name)), nil
}

// OpenLock opens the regular file name for locking and returns its identity too. If the
// file exists, that works on a full or read-only file system too. If it does not,
// OpenLock makes it, empty and with mode 0600. The descriptor is for reading and writing,
// unless the file cannot be written to or has other names. The caller closes
// it, and children do not inherit it.
func (d *Dir) OpenLock(name string) (fd int, id ID, err error) {
	const flags = unix.O_RDWR | unix.O_NONBLOCK
	for {
		fd, st, err := d.open(name, flags)
		if err == nil && st.Nlink > 1 {
			Close(fd)
			err = unix.EPERM
		}
		if errors.Is(err, unix.EROFS) || errors.Is(err, fs.ErrPermission) {
			fd, st, err = d.open(name, unix.O_RDONLY|unix.O_NONBLOCK)
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return fd, IDOf(&st), err
		}
		fd, err = d.create(name, flags|unix.O_EXCL)
		if err != nil && !errors.Is(err, fs.ErrExist) {
			return -1, ID{}, err
		}
		if err == nil {
			if err := d.at("fstat", name, func() error { return unix.Fstat(fd, &st) }); err != nil {
				Close(fd)
				return -1, ID{}, err
			}
			return fd, IDOf(&st), nil
		}
	}
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
		Close(fd)
		return -1, st, err
	}
	return fd, st, nil
}

// Trusted fails when other users than root and the one of this process may have written a file,
// or may put files into a directory.
func Trusted(info fs.FileInfo) error {
	st, ok := info.Sys().(*syscall.Stat_t)
	switch {
	case !ok:
		return errors.New("its owner is unknown")
	case st.Uid != 0 && int(st.Uid) != os.Geteuid():
		return fmt.Errorf("it belongs to user %d", st.Uid)
	case info.Mode().Perm()&0o022 != 0:
		return fmt.Errorf("other users may write to it: its mode is %#o", info.Mode().Perm())
	}
	return nil
}

// IDOf returns the identity of the file that st is about.
func IDOf(st *unix.Stat_t) ID {
	return ID{dev: uint64(st.Dev), ino: st.Ino} //nolint:unconvert // 32 bits on mips
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

// do makes one system call, again as long as a signal interrupts it.
func (d *Dir) do(call, name string, f func() error) error {
	Step(call, name)
	for {
		err := d.hooked(call, name)
		if err == nil {
			err = f()
		}
		if err == nil {
			return nil
		}
		if !errors.Is(err, unix.EINTR) {
			return d.fail(call, name, err)
		}
	}
}

func (d *Dir) hooked(call, name string) error {
	if d.hook == nil {
		return nil
	}
	return d.hook(call, name)
}

func (d *Dir) fail(call, name string, err error) error {
	return &fs.PathError{Op: call, Path: d.Path(name), Err: err}
}
