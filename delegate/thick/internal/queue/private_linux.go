package queue

import (
	"errors"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// private returns an error unless only this user and root may write to dir. The
// daemon executes what it finds there, with its own rights.
func private(dir string) error {
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err != nil {
		return &fs.PathError{Op: "stat", Path: dir, Err: err}
	}
	if st.Mode&0o022 != 0 {
		return errors.New("other users may write to the directory")
	}
	if st.Uid != 0 && int(st.Uid) != os.Geteuid() {
		return errors.New("the directory belongs to another user")
	}
	return nil
}
