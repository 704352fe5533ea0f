package nodetest

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// NetNS makes path a link to a new network namespace, and returns a function that ends the
// namespace. It is at the old path no more then. Without root it skips the test.
func NetNS(tb testing.TB, path string) (end func()) {
	tb.Helper()
	if os.Geteuid() != 0 {
		tb.Skip("needs root to make network namespaces")
	}
	fd, err := newNetNS()
	OK(tb, err)
	link := fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), fd)
	_ = os.Remove(path) // of another namespace
	OK(tb, os.Symlink(link, path))
	ended := false
	end = func() {
		if now, err := os.Readlink(path); err == nil && now == link {
			_ = os.Remove(path)
		}
		if !ended {
			_ = unix.Close(fd)
		}
		ended = true
	}
	tb.Cleanup(end)
	return end
}

// newNetNS returns a descriptor of a new network namespace, which nothing else has.
func newNetNS() (fd int, err error) {
	const own = "/proc/thread-self/ns/net"
	runtime.LockOSThread()
	before, err := unix.Open(own, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		runtime.UnlockOSThread()
		return -1, err
	}
	defer unix.Close(before) //nolint:errcheck // nothing was written
	if err = unix.Unshare(unix.CLONE_NEWNET); err == nil {
		fd, err = unix.Open(own, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	}
	if back := unix.Setns(before, unix.CLONE_NEWNET); back != nil {
		return -1, errors.Join(err, back) // the thread stays locked, and nobody else gets it
	}
	runtime.UnlockOSThread()
	return fd, err
}
