package flock

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// End ends what a dead holder of the lock on the file at path has left behind, by the note in the
// file, see [Start]. It reports whether the lock is free now.
//
//   - The process groups of programs that the holder has not reaped get SIGKILL, and so do
//     processes with the lock that stayed in the holder's own group.
//   - Others that have inherited the lock, such as a daemon in a session of its own, live on.
//     For them the file keeps its lock, and loses its name: whoever locks path makes another.
//
// End waits until those that it has killed are dead, for limit at most, also when ctx has ended.
// It changes nothing, and reports false, while the holder lives or may live, without a note, when
// this process has inherited the lock itself, and where it does not see enough: the note is of
// another PID namespace, or a process with the lock may be a program that is not noted. A
// symbolic link at path is not followed; in the rest of path there must be none.
func End(ctx context.Context, path string, limit time.Duration) (bool, error) {
	killed := make(map[int]bool)
	err := Wait(context.WithoutCancel(ctx), limit, func() (bool, error) { return end(path, killed) })
	if errors.Is(err, errUnknown) || errors.Is(err, context.DeadlineExceeded) {
		return false, nil
	}
	return err == nil, err
}

// errUnknown means that the holder lives, or that not enough is known.
var errUnknown = errors.New("the lock may have a holder")

// end does what can be done now. It reports whether the lock is free. killed are the process
// groups that it has killed.
func end(path string, killed map[int]bool) (bool, error) {
	const flags = unix.O_NOFOLLOW | unix.O_NOCTTY | unix.O_NONBLOCK | unix.O_CLOEXEC
	fd, err := unix.Open(path, unix.O_RDWR|flags, 0)
	if errors.Is(err, fs.ErrPermission) { // it tells at least whether the lock is free
		fd, err = unix.Open(path, unix.O_RDONLY|flags, 0)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return true, nil
	}
	if err != nil {
		return false, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	f := os.NewFile(uintptr(fd), path)
	defer func() { _ = f.Close() }() // nothing was written
	if held, err := Try(fd, true); held || err != nil {
		return held, errors.Join(err, Unlock(fd))
	}
	// From here on, nobody becomes a holder: see Claim.
	if err := guard(fd, unix.F_WRLCK); err != nil {
		if busy(err) {
			return false, nil
		}
		return false, errUnknown
	}
	defer Settle(fd)
	info, err := f.Stat()
	if err != nil {
		return false, err
	}
	if now, err := os.Lstat(path); err != nil || !os.SameFile(info, now) {
		return false, nil
	}
	n, err := noteOfDead(f)
	if err != nil {
		return false, err
	}
	left, err := lockFile{filepath.Base(path), info}.kill(n, killed)
	if left || err != nil {
		return false, err
	}
	if err := unix.Unlink(path); err != nil {
		return false, &fs.PathError{Op: "unlink", Path: path, Err: err}
	}
	return true, nil
}

// noteOfDead returns the note in f, if its holder is certainly dead.
func noteOfDead(f *os.File) (note, error) {
	n, ok := readNote(f)
	self, err := os.Readlink("/proc/self")
	if !ok || err != nil || self != strconv.Itoa(os.Getpid()) || n.Namespaces != namespaces() || lives(n.PID, n.At) {
		return note{}, errUnknown
	}
	n, ok = readNote(f) // it was the holder's to change until it died
	if !ok {
		return note{}, errUnknown
	}
	return n, nil
}

// lives reports whether the process that had the PID at a time lives, or may live.
func lives(pid int, at int64) bool {
	p, err := stat(strconv.Itoa(pid))
	if err != nil { // it may be hidden
		return unix.Kill(pid, 0) != unix.ESRCH
	}
	return p.at(at)
}

// namespaces identifies the namespaces in which the numbers in a note have their meaning. It
// is empty where it is unknown.
func namespaces() string {
	pids, err := os.Readlink("/proc/self/ns/pid")
	if err != nil {
		return ""
	}
	times, _ := os.Readlink("/proc/self/ns/time") // Linux 5.6
	return pids + times
}

func noteOfSelf() note {
	return note{Namespaces: namespaces(), PID: os.Getpid(), Group: unix.Getpgrp(), At: sinceBoot()}
}

func sinceBoot() int64 {
	var now unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_BOOTTIME, &now) // Linux 2.6.39
	return now.Nano()
}

func stat(pid string) (process, error) {
	data, err := os.ReadFile("/proc/" + pid + "/stat")
	if err != nil {
		return process{}, err
	}
	p, ok := parseStat(data)
	if !ok {
		return p, fs.ErrInvalid
	}
	return p, nil
}

// A lockFile is a lock's file as other processes have it open.
type lockFile struct {
	name string
	info os.FileInfo
}

// A member is a process of a noted program's group, or one that has the lock or may have it.
type member struct {
	process
	locked, hidden bool
}

// kill kills what the dead holder of n has left, except those killed before. It reports whether
// something is left that was killed and is not dead yet. When all others that have the lock
// certainly have nothing to do with the operation, it reports false.
func (l lockFile) kill(n note, killed map[int]bool) (left bool, err error) {
	members, err := l.members(n)
	if err != nil {
		return false, err
	}
	unknown := false
	for _, p := range n.Programs {
		if p.PID == 0 {
			continue
		}
		switch fate := fateOf(p, members); {
		case fate == gone:
		case killed[p.PID]:
			left = true
		case fate == ours && p.PID != unix.Getpgrp():
			if err := unix.Kill(-p.PID, unix.SIGKILL); err != nil && err != unix.ESRCH {
				return false, fmt.Errorf("kill process group %d: %w", p.PID, err)
			}
			killed[p.PID], left = true, true
		default:
			unknown = true
		}
	}
	held := false
	for _, m := range members {
		held = held || m.locked
		switch {
		case !m.locked && !m.hidden, n.leads(m.group):
		case m.group == n.Group && m.locked && m.since(n.At):
			if err := m.signal(); err != nil {
				return false, fmt.Errorf("kill process %d: %w", m.pid, err)
			}
			left = true
		case m.locked && m.group == n.Group, m.hidden && m.group == n.Group && m.since(n.At), n.unnoted(m.process):
			unknown = true
		}
	}
	if unknown && !left {
		return false, errUnknown
	}
	return left || !held, nil // if nobody is seen to have it, it may be free
}

// leads reports whether a noted program leads a process group.
func (n note) leads(group int) bool {
	return slices.ContainsFunc(n.Programs, func(p program) bool { return p.PID == group })
}

// unnoted reports whether p may be a program of which n does not say which process it is.
func (n note) unnoted(p process) bool {
	return slices.ContainsFunc(n.Programs, func(q program) bool { return q.PID == 0 && p.since(q.At) })
}

// A fate says what has become of a program's process group.
type fate int

const (
	unsure fate = iota // it may be the group of other programs
	gone
	ours
)

// fateOf says what has become of p's group, of which members has all processes.
func fateOf(p program, members []member) fate {
	if unix.Kill(-p.PID, 0) == unix.ESRCH {
		return gone
	}
	seen, ended, locked := 0, 0, false
	for _, m := range members {
		if m.group != p.PID {
			continue
		}
		if m.pid == p.PID && m.start > p.At {
			return gone // a group must be empty before another process has its number
		}
		seen++
		if m.ended {
			ended++
		}
		locked = locked || m.locked
	}
	switch {
	case seen > 0 && ended == seen:
		return gone
	case locked:
		return ours
	}
	return unsure
}

// signal sends SIGKILL to m, and to no other process that has its number by now.
func (m member) signal() error {
	fd, err := unix.PidfdOpen(m.pid, 0)
	if err == unix.ESRCH {
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }()
	if now, err := stat(strconv.Itoa(m.pid)); err != nil || now.start != m.start {
		return nil // it is dead
	}
	if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != unix.ESRCH {
		return err
	}
	return nil
}

// members returns the processes that matter after the death of the holder of n. It fails where
// processes are hidden from us, when this process has the lock, and when the lock is another's.
func (l lockFile) members(n note) (all []member, err error) {
	if _, err := stat("1"); err != nil {
		return nil, errUnknown // mounted with hidepid
	}
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	for _, entry := range entries {
		name := entry.Name()
		if _, err := strconv.Atoi(name); err != nil {
			continue
		}
		p, err := stat(name)
		if err != nil {
			continue // it is dead
		}
		d, err := l.look(name)
		m := member{p, d.locked, err != nil && !p.ended}
		if !m.locked && !m.hidden && !n.leads(p.group) {
			continue
		}
		// Only the kernel of the initial PID namespace has the numbers of the dead.
		if m.locked && (p.pid == os.Getpid() || d.taker != 0 && d.taker != n.PID) {
			return nil, errUnknown
		}
		all = append(all, m)
	}
	return all, nil
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
	d, _ := lockFile{filepath.Base(path), info}.look("self")
	return d.locked && d.inherited
}

// look returns the descriptor with which the process pid shares the lock. Of several it is
// one that was not inherited, if there is one. It fails if it may not look; a dead process has no
// descriptors.
func (l lockFile) look(pid string) (found descriptor, err error) {
	proc := "/proc/" + pid
	entries, err := os.ReadDir(proc + "/fd")
	if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ESRCH) {
		return found, err
	}
	for _, entry := range entries {
		name := entry.Name()
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
	return found, nil
}
