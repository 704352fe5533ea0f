//go:build e2e && linux

package doctor

import (
	"os"
	goruntime "runtime"
	"testing"

	"golang.org/x/sys/unix"

	nodetest "github.com/metacni/metacni/internal/test/node"
)

func TestNobodyCanWriteIntoADirectory(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	for name, flag := range map[string]int{"immutable": unix.STATX_ATTR_IMMUTABLE, "append-only": unix.STATX_ATTR_APPEND} {
		dir, err := os.Open(n.doctor.StateDir)
		nodetest.OK(t, err)
		if err := unix.IoctlSetPointerInt(int(dir.Fd()), unix.FS_IOC_SETFLAGS, flag); err != nil { // the numbers are the same
			t.Skipf("no directory can be made %s: %v", name, err)
		}
		got := n.findings()
		nodetest.OK(t, unix.IoctlSetPointerInt(int(dir.Fd()), unix.FS_IOC_SETFLAGS, 0))
		nodetest.OK(t, dir.Close())
		nodetest.Equal(t, name, got, []string{"disk problem /var/lib/cni/multinet: is immutable, or append-only: records cannot be written, or not removed"})
	}
}

func TestProgramsOnAFileSystemThatIsMountedNoexec(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	got := make(chan []bool, 1)
	go func() { // its thread ends with it
		goruntime.LockOSThread()
		defer close(got)
		if unix.Unshare(unix.CLONE_FS|unix.CLONE_NEWNS) == nil && unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "") == nil &&
			unix.Mount("tmpfs", dir, "tmpfs", unix.MS_NOEXEC, "") == nil && os.WriteFile(dir+"/bridge", []byte("#!/bin/sh\n"), 0o700) == nil { //nolint:gosec // a program
			n := Node{}
			got <- []bool{n.noexec(dir + "/bridge"), n.noexec("/bin/sh"), n.noexec(dir + "/absent")}
		}
	}()
	all, ok := <-got
	if !ok {
		t.Skip("no file system can be mounted")
	}
	nodetest.Equal(t, "noexec", all, []bool{true, false, false})
}
