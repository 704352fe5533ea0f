package doctor

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// noexec reports whether the program at a path of the node cannot be run because of how its file system
// is mounted.
func (n *Node) noexec(path string) bool {
	var disk unix.Statfs_t
	err := n.root.With(path, func(path string) error {
		err := unix.Faccessat(unix.AT_FDCWD, path, unix.X_OK, unix.AT_EACCESS)
		return cmp.Or(unix.Statfs(path, &disk), err)
	})
	return errors.Is(err, unix.EACCES) && disk.Flags&unix.ST_NOEXEC != 0
}

// lookAtDisk looks at the directory of the records, and at its file system.
func (n *Node) lookAtDisk() {
	dir := n.StateDir
	info, err := os.Stat(dir)
	for errors.Is(err, fs.ErrNotExist) && dir != "/" { // the first ADD makes it
		dir = filepath.Dir(dir)
		_, err = os.Stat(dir)
	}
	var disk unix.Statfs_t
	if err = cmp.Or(err, unix.Statfs(dir, &disk)); err != nil {
		n.fail(dir, err)
		return
	}
	if info != nil && info.IsDir() && info.Mode()&0o077 != 0 {
		n.say(Problem, dir, fmt.Sprintf("has the mode %04o: others can see, or change, the records", info.Mode().Perm()), "chmod 700 "+dir)
	}
	var is unix.Statx_t // a kernel or a file system without attributes reports none
	_ = unix.Statx(unix.AT_FDCWD, dir, 0, 0, &is)
	access := unix.Faccessat(unix.AT_FDCWD, dir, unix.W_OK|unix.X_OK, unix.AT_EACCESS)
	switch free := disk.Bavail * uint64(disk.Bsize); {
	case errors.Is(access, unix.EPERM) || is.Attributes&(unix.STATX_ATTR_IMMUTABLE|unix.STATX_ATTR_APPEND) != 0:
		n.say(Problem, dir, "is immutable, or append-only: records cannot be written, or not removed", "chattr -i -a "+dir)
	case disk.Flags&unix.ST_RDONLY != 0:
		n.say(Problem, dir, "the file system is read-only", "mount it for writing, or choose another cniDir")
	case disk.Blocks > 0 && (free < 1<<20 || free < 1<<30 && disk.Bavail < disk.Blocks/100) || disk.Files > 0 && disk.Ffree <= disk.Files/1000:
		n.say(Problem, dir, fmt.Sprintf("%d KiB and %d files are free", free>>10, disk.Ffree), "make room: ADD and DEL need it")
	}
}
