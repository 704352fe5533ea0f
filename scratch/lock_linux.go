package scratch

import (
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/metacni/metacni/internal/durable"
)

func dup(fd int) (int, error) { return unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 3) }

func closeFD(fd int) { _ = unix.Close(fd) }

// inherited reports whether this process has a lock of the file id that it did
// not take: what Go opens is closed on exec, what a parent handed down is not.
// The descriptor self does not count.
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
		// The parent may have released the lock, and the file may be another's now.
		data, err := os.ReadFile("/proc/self/fdinfo/" + name)
		if d := parseFdinfo(data); err == nil && d.locked && d.inherited {
			return true
		}
	}
	return false
}
