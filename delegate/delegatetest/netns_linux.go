package delegatetest

import (
	"errors"
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// NewNetNS makes a network namespace. It is meant for the NetNS of a [Config] and
// ignores its arguments. The path is below /proc: nothing is mounted. Remove, or
// the end of the process, removes the namespace with the interfaces in it.
//
// It needs CAP_SYS_ADMIN. Where it cannot make a namespace, and on systems other
// than Linux, the error is an [errors.ErrUnsupported].
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

// newNetNS makes the namespace. It must run in a goroutine of its own, whose thread
// ends with it if it cannot return to its own namespace.
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
		return nil, fmt.Errorf("%w: cannot make a network namespace: %w", errors.ErrUnsupported, err)
	}
	file, err := os.Open(self)
	if unix.Setns(int(here.Fd()), unix.CLONE_NEWNET) == nil {
		runtime.UnlockOSThread()
	}
	return file, err
}
