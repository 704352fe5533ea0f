package queue

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/metacni/metacni/internal/durable"
)

// flock tries to take the lock on f, without waiting.
func flock(f *os.File, m mode) (bool, error) {
	how := unix.LOCK_SH
	if m == exclusive {
		how = unix.LOCK_EX
	}
	durable.Step("flock", filepath.Base(f.Name()))
	for {
		err := unix.Flock(int(f.Fd()), how|unix.LOCK_NB)
		switch err {
		case nil:
			return true, nil
		case unix.EINTR:
		case unix.EWOULDBLOCK:
			return false, nil
		default:
			return false, &fs.PathError{Op: "flock", Path: f.Name(), Err: err}
		}
	}
}

func unflock(f *os.File) error { return unix.Flock(int(f.Fd()), unix.LOCK_UN) }

// private returns an error unless only this user and root may write to dir:
// what is planted there would be run with the rights of the daemon.
func private(dir string) error {
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err != nil {
		return &fs.PathError{Op: "stat", Path: dir, Err: err}
	}
	if st.Mode&0o022 != 0 {
		return errors.New("others may write to the directory")
	}
	if st.Uid != 0 && int(st.Uid) != os.Geteuid() {
		return errors.New("the directory is another user's")
	}
	return nil
}
