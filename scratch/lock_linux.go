package scratch

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/metacni/metacni/internal/durable"
)

// flock tries to take the lock on f, without waiting.
func flock(f *os.File) (bool, error) {
	durable.Step("flock", filepath.Base(f.Name()))
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
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

func unflock(f *os.File) error {
	durable.Step("unflock", filepath.Base(f.Name()))
	if err := unix.Flock(int(f.Fd()), unix.LOCK_UN); err != nil {
		return &fs.PathError{Op: "flock", Path: f.Name(), Err: err}
	}
	return nil
}

// inherited reports whether this process has the file id open otherwise than
// by opening it: what Go opens is closed on exec, what a parent handed down is
// not. self is a file that does not count.
func inherited(self *os.File, id durable.ID) bool {
	dir, err := os.Open("/proc/self/fd")
	if err != nil {
		return false
	}
	defer func() { _ = dir.Close() }()
	names, _ := dir.Readdirnames(-1) // what could be read will do
	for _, name := range names {
		fd, err := strconv.Atoi(name)
		if err != nil || fd == int(self.Fd()) {
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

// self returns this process as the owner of a lock.
func self() (owner, error) {
	st, err := readStat("self")
	if err != nil {
		return owner{}, err
	}
	if st.pid != os.Getpid() {
		return owner{}, errors.New("/proc is that of another PID namespace")
	}
	const path = "/proc/self/ns/pid"
	var ns unix.Stat_t
	if err := unix.Stat(path, &ns); err != nil {
		return owner{}, &fs.PathError{Op: "stat", Path: path, Err: err}
	}
	return owner{process: st.process, pidns: ns.Ino}, nil
}

func startTime(pid int) (uint64, error) {
	st, err := readStat(strconv.Itoa(pid))
	return st.start, err
}

// readStat reads /proc/PID/stat with as few system calls as there can be: it
// is on the path of every lock.
func readStat(pid string) (procStat, error) {
	path := "/proc/" + pid + "/stat"
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return procStat{}, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	defer func() { _ = unix.Close(fd) }()
	buf := make([]byte, 1024) // 52 numbers and a name of 15 bytes
	n, err := unix.Read(fd, buf)
	if err != nil {
		return procStat{}, &fs.PathError{Op: "read", Path: path, Err: err}
	}
	st, ok := parseStat(buf[:n])
	if !ok {
		return procStat{}, &fs.PathError{Op: "read", Path: path, Err: errors.New("not understood")}
	}
	return st, nil
}
