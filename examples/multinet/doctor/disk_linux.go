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
	switch free := disk.Bavail * uint64(disk.Bsize); {
	case disk.Flags&unix.ST_RDONLY != 0:
		n.say(Problem, dir, "the file system is read-only", "mount it for writing, or choose another cniDir")
	case disk.Blocks > 0 && (free < 1<<20 || free < 1<<30 && disk.Bavail < disk.Blocks/100) || disk.Files > 0 && disk.Ffree <= disk.Files/1000:
		n.say(Problem, dir, fmt.Sprintf("%d KiB and %d files are free", free>>10, disk.Ffree), "make room: ADD and DEL need it")
	}
}
