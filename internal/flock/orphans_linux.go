package flock

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// KillOrphans kills the processes that a dead holder of the lock on the file at path has
// left behind, and that keep the lock: every process that inherited the file gets
// SIGKILL, and its process group too if it leads one. It returns the number of processes
// killed. A symbolic link at path is not followed; in the rest of path there must be
// none. Without the file nobody is killed.
//
// It kills nobody while the holder is alive or may be, or when this process has
// inherited the file itself. It does not kill processes that wait for the lock. It
// does not wait until the killed processes are gone.
func KillOrphans(path string) (killed int, err error) {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	lock := lockFile{filepath.Base(path), info}
	orphans, err := lock.orphans()
	if err != nil {
		return 0, err
	}
	killed, err = lock.kill(orphans)
	if err != nil {
		err = &fs.PathError{Op: "kill", Path: path, Err: err}
	}
	return killed, err
}

// Inherited reports whether this process shares the lock on fd and did not take it: a
// parent did. A lock that the parent has released does not count: another process may
// hold the lock now.
func Inherited(fd int) bool {
	self := "/proc/self/fd/" + strconv.Itoa(fd)
	path, _ := os.Readlink(self) // what it cannot tell is not inherited
	info, err := os.Stat(self)
	if err != nil {
		return false
	}
	d := lockFile{filepath.Base(path), info}.look("self")
	return d.locked && d.inherited
}

// kill kills those of pids that still share the lock. A process may have ended
// meanwhile, and its number may be another's.
func (l lockFile) kill(pids []int) (killed int, err error) {
	for _, pid := range pids {
		if !l.look(strconv.Itoa(pid)).locked {
			continue
		}
		if err := kill(pid); err != nil {
			return killed, fmt.Errorf("process %d: %w", pid, err)
		}
		killed++
	}
	return killed, nil
}

// kill kills a process, and its process group if it leads one that is not ours.
func kill(pid int) error {
	if pgid, err := unix.Getpgid(pid); err == nil && pgid == pid && pgid != unix.Getpgrp() {
		_ = unix.Kill(-pid, unix.SIGKILL) // the process alone has the lock
	}
	if err := unix.Kill(pid, unix.SIGKILL); err != unix.ESRCH {
		return err
	}
	return nil
}

// A lockFile is a lock's file as other processes have it open.
type lockFile struct {
	name string
	info os.FileInfo
}

// orphans returns the processes that have inherited the lock of a process that
// is dead. Where the one that took the lock may live there are none.
func (l lockFile) orphans() ([]int, error) {
	proc, err := os.Open("/proc")
	if err != nil {
		return nil, err
	}
	defer func() { _ = proc.Close() }()
	names, _ := proc.Readdirnames(-1) // what could be read will do
	var pids []int
	taker := 0
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		d := l.look(name)
		if !d.locked {
			continue
		}
		if !d.inherited || d.taker == pid || pid == os.Getpid() || pid == 1 {
			return nil, nil
		}
		taker = d.taker
		pids = append(pids, pid)
	}
	if len(pids) > 0 && mayHold(taker) {
		return nil, nil
	}
	return pids, nil
}

// look returns the descriptor with which the process pid shares the lock. Of several it is
// one that was not inherited, if there is one.
func (l lockFile) look(pid string) (found descriptor) {
	proc := "/proc/" + pid
	dir, err := os.Open(proc + "/fd")
	if err != nil {
		return found // gone, or not ours to know about
	}
	defer func() { _ = dir.Close() }()
	names, _ := dir.Readdirnames(-1) // what could be read will do
	for _, name := range names {
		// By name first: stat(2) of a file on a dead server hangs.
		target, err := os.Readlink(proc + "/fd/" + name)
		if err != nil || !strings.HasSuffix(target, "/"+l.name) {
			continue
		}
		if info, err := os.Stat(proc + "/fd/" + name); err != nil || !os.SameFile(info, l.info) {
			continue
		}
		data, err := os.ReadFile(proc + "/fdinfo/" + name)
		if err != nil {
			continue
		}
		if d := parseFdinfo(data); d.locked && (!found.locked || !d.inherited) {
			found = d
		}
	}
	return found
}

// mayHold reports whether pid, which no descriptor of the lock was seen at, may
// be the process that took it. In doubt it may: a process that is hidden from
// us is not a dead one. One whose files can be seen has got the number since.
func mayHold(pid int) bool {
	if pid <= 0 {
		return false // it is in another PID namespace, or dead
	}
	proc := "/proc/" + strconv.Itoa(pid)
	status, err := os.ReadFile(proc + "/status")
	switch {
	case err != nil:
		return unix.Kill(pid, 0) != unix.ESRCH
	case ended(status):
		return false
	}
	files, err := os.ReadDir(proc + "/fd")
	return err != nil || len(files) == 0
}
