package proctree

import (
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// A process is held by a descriptor. A signal through that cannot reach another
// process that has got the same ID meanwhile.
type process struct{ pid, pidfd int }

// Kill sends SIGKILL to the process of pidfd, whose ID is pid, and to its
// descendants.
func Kill(pid, pidfd int) {
	born := childrenOf(pid)
	defer born.close()
	if unix.PidfdSendSignal(pidfd, unix.SIGKILL, nil, 0) != nil {
		return // these may be the children of another
	}
	for _, p := range born {
		Kill(p.pid, p.pidfd)
	}
}

// A Tree is the descendants that a process had at one time. Kill it, once.
type Tree []process

// Below returns the descendants of process pid, which the caller has not reaped.
func Below(pid int) Tree {
	all := childrenOf(pid)
	for _, p := range all {
		below := Below(p.pid)
		if unix.PidfdSendSignal(p.pidfd, 0, nil, 0) != nil {
			below.close() // these may be the descendants of another
			continue
		}
		all = append(all, below...)
	}
	return all
}

// Kill sends SIGKILL to those of t that are still there, and to their
// descendants.
func (t Tree) Kill() {
	defer t.close()
	for _, p := range t {
		Kill(p.pid, p.pidfd)
	}
}

func (t Tree) close() {
	for _, p := range t {
		_ = unix.Close(p.pidfd) // nothing was written
	}
}

// childrenOf returns the children of a process.
func childrenOf(pid int) (born Tree) {
	for _, child := range list(pid) {
		if fd, err := unix.PidfdOpen(child, 0); err == nil {
			born = append(born, process{child, fd})
		}
	}
	still := list(pid)
	return slices.DeleteFunc(born, func(p process) bool {
		if slices.Contains(still, p.pid) {
			return false
		}
		_ = unix.Close(p.pidfd) // another may have its number
		return true
	})
}

// list lists the children of a process, or none where proc(5) does not tell or
// is about another PID namespace.
func list(pid int) []int {
	if self, err := os.Readlink("/proc/self"); err != nil || self != strconv.Itoa(os.Getpid()) {
		return nil
	}
	tasks := "/proc/" + strconv.Itoa(pid) + "/task/"
	threads, _ := os.ReadDir(tasks) // none of a process that has gone
	var all []int
	for _, thread := range threads {
		text, _ := os.ReadFile(tasks + thread.Name() + "/children")
		for id := range strings.FieldsSeq(string(text)) {
			if child, err := strconv.Atoi(id); err == nil {
				all = append(all, child)
			}
		}
	}
	return all
}
