package scratch

import (
	"errors"
	"io/fs"
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/metacni/metacni/internal/durable"
)

// maxLockFile bounds what is read of a lock's file.
const maxLockFile = 1 << 20

func (f files) killOrphans(containerID string) (int, error) {
	if err := checkContainer(containerID); err != nil {
		return 0, err
	}
	root, err := f.open()
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	defer root.Close()
	data, id, err := root.ReadFile(lockName(containerID), maxLockFile)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	o, groups := parseLock(data)
	if len(groups) == 0 {
		return 0, nil
	}
	me, err := self()
	if err != nil {
		return 0, err
	}
	if o.pidns != me.pidns || o.alive() {
		return 0, nil // its numbers mean others here, or it is at work
	}
	killed, own := 0, unix.Getpgrp()
	for _, g := range groups {
		if g.pid == own || g.reused() || !holds(g.pid, id) {
			continue
		}
		switch err := unix.Kill(-g.pid, unix.SIGKILL); {
		case err == nil:
			killed++
		case err != unix.ESRCH: // gone by itself
			return killed, &fs.PathError{Op: "kill group " + strconv.Itoa(g.pid), Path: root.Path(lockName(containerID)), Err: err}
		}
	}
	return killed, nil
}

// alive reports whether p may still run. In doubt it does: a process that is
// hidden from us is not a dead one.
func (p process) alive() bool {
	st, err := readStat(strconv.Itoa(p.pid))
	if err != nil {
		return unix.Kill(p.pid, 0) != unix.ESRCH
	}
	return st.start == p.start && !st.dead()
}

// dead reports whether the process has ended and only its parent has not asked
// yet. While one of its threads lives it has not.
func (s procStat) dead() bool {
	return s.state == 'X' || s.state == 'x' || s.state == 'Z' && s.threads <= 1
}

// reused reports whether p's number belongs to another process by now. A group
// whose leader is gone keeps the number from being used again.
func (p process) reused() bool {
	st, err := readStat(strconv.Itoa(p.pid))
	return err == nil && st.start != p.start
}

// holds reports whether a process of the group pgid has the file id open.
func holds(pgid int, id durable.ID) bool {
	proc, err := os.Open("/proc")
	if err != nil {
		return false
	}
	defer func() { _ = proc.Close() }()
	names, _ := proc.Readdirnames(-1) // what could be read will do
	for _, name := range names {
		if name[0] < '1' || name[0] > '9' {
			continue
		}
		st, err := readStat(name)
		if err == nil && st.pgrp == pgid && hasOpen(name, id) {
			return true
		}
	}
	return false
}

func hasOpen(pid string, id durable.ID) bool {
	path := "/proc/" + pid + "/fd"
	dir, err := os.Open(path)
	if err != nil {
		return false // gone, or not ours to know about
	}
	defer func() { _ = dir.Close() }()
	names, _ := dir.Readdirnames(-1)
	for _, name := range names {
		var st unix.Stat_t
		if unix.Stat(path+"/"+name, &st) == nil && durable.IDOf(&st) == id {
			return true
		}
	}
	return false
}
