package delegatetest

import (
	"errors"
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// NewNetNS makes a network namespace, for the NetNS of a [Config]. It ignores its
// arguments. The path is below /proc: nothing is mounted. Remove removes the
// namespace with the interfaces in it, and so does the end of the process.
//
// It needs CAP_SYS_ADMIN. Where no namespace can be made, the error is an
// [errors.ErrUnsupported]; it always is on systems other than Linux.
func NewNetNS(_, _ string) (path string, remove func(), err error) {
	done := make(chan struct{})
	var file *os.File
	go func() {
		defer close(done)
		file, err = newNetNS()
	}()
	<-done
	if err != nil {
		return "", nil, err
	}
	return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), file.Fd()), func() { _ = file.Close() }, nil
}

// newNetNS uses up the thread of its goroutine, unless that is back in its own
// namespace at the end.
func newNetNS() (*os.File, error) {
	const self = "/proc/thread-self/ns/net"
	runtime.LockOSThread()
	here, err := os.Open(self)
	if err != nil {
		runtime.UnlockOSThread()
		return nil, err
	}
	defer func() { _ = here.Close() }()
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		runtime.UnlockOSThread()
		return nil, fmt.Errorf("%w: no network namespace can be made: %w", errors.ErrUnsupported, err)
	}
	file, err := os.Open(self)
	if unix.Setns(int(here.Fd()), unix.CLONE_NEWNET) == nil {
		runtime.UnlockOSThread()
	}
	return file, err
}
