package delegate

import (
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// killTree sends SIGKILL to the process of the pidfd, whose ID is pid, and to
// its descendants. A signal through a pidfd cannot reach another process that
// has got the same ID meanwhile.
func killTree(pid, pidfd int) {
	type process struct{ pid, pidfd int }
	var born []process
	for _, child := range childrenOf(pid) {
		if fd, err := unix.PidfdOpen(child, 0); err == nil {
			defer unix.Close(fd) //nolint:errcheck // nothing was written
			born = append(born, process{child, fd})
		}
	}
	still := childrenOf(pid)
	if unix.PidfdSendSignal(pidfd, unix.SIGKILL, nil, 0) != nil {
		return // these may be the children of another
	}
	for _, child := range born {
		if slices.Contains(still, child.pid) {
			killTree(child.pid, child.pidfd)
		}
	}
}

// childrenOf lists the children of a process, or none where proc(5) does not
// tell or is about another PID namespace.
func childrenOf(pid int) []int {
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
