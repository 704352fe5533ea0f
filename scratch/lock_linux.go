package scratch

import (
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/metacni/metacni/internal/durable"
)

// flock tries to take the lock on fd, the file at path, without waiting.
func flock(fd int, path string) (bool, error) {
	durable.Step("flock", filepath.Base(path))
	for {
		err := unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB)
		switch err {
		case nil:
			return true, nil
		case unix.EINTR:
		case unix.EWOULDBLOCK:
			return false, nil
		default:
			return false, &fs.PathError{Op: "flock", Path: path, Err: err}
		}
	}
}

func unflock(fd int, path string) error {
	durable.Step("unflock", filepath.Base(path))
	if err := unix.Flock(fd, unix.LOCK_UN); err != nil {
		return &fs.PathError{Op: "flock", Path: path, Err: err}
	}
	return nil
}

func dup(fd int) (int, error) { return unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 3) }

func closeFD(fd int) { _ = unix.Close(fd) }

// inherited reports whether this process has the file id open otherwise than
// by opening it: what Go opens is closed on exec, what a parent handed down is
// not. The descriptor self does not count.
func inherited(self int, id durable.ID) bool {
	dir, err := os.Open("/proc/self/fd")
	if err != nil {
		return false
	}
	defer func() { _ = dir.Close() }()
	names, _ := dir.Readdirnames(-1) // what could be read will do
	for _, name := range names {
		fd, err := strconv.Atoi(name)
		if err != nil || fd == self {
			continue
		}
		var st unix.Stat_t
		if unix.Fstat(fd, &st) != nil || durable.IDOf(&st) != id {
			continue
		}
		flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
		if err == nil && flags&unix.FD_CLOEXEC == 0 {
			return true
		}
	}
	return false
}
