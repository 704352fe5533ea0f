package thick

import (
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// firstFD is the first file descriptor that a service manager hands on.
const firstFD = 3

// Activated returns the unix socket that a service manager has opened for this
// process, as systemd does for a socket unit, and nil if there is none. env is
// the environment of the process, as "key=value", in which LISTEN_PID and
// LISTEN_FDS speak of it. It is an error when there is more than one socket, or
// when it is not a unix stream socket that listens.
//
// Call it once, at the start. Children do not inherit the socket, and closing
// it does not remove it: the service manager goes on listening. So there is
// nothing to hand over, and who may reach the socket is that one's to decide:
// see [Server.AllowUIDs].
//
// On other systems than Linux it returns [errors.ErrUnsupported].
func Activated(env []string) (net.Listener, error) {
	l, err := activated(env)
	if err != nil {
		return nil, fmt.Errorf("thick: activation: %w", err)
	}
	return l, nil
}

func activated(env []string) (net.Listener, error) {
	pid, err := number(env, "LISTEN_PID")
	if err != nil || pid != os.Getpid() {
		return nil, err // what is for another is none of ours
	}
	n, err := number(env, "LISTEN_FDS")
	if err != nil || n == 0 {
		return nil, err
	}
	if n != 1 {
		return nil, fmt.Errorf("there are %d sockets, and one is wanted", n)
	}
	for _, want := range []struct {
		opt, value int
		not        string
	}{
		{unix.SO_DOMAIN, unix.AF_UNIX, "not a unix socket"},
		{unix.SO_TYPE, unix.SOCK_STREAM, "not a stream socket"},
		{unix.SO_ACCEPTCONN, 1, "not listening"},
	} {
		value, err := unix.GetsockoptInt(firstFD, unix.SOL_SOCKET, want.opt)
		if err != nil {
			return nil, fmt.Errorf("file descriptor %d: %w", firstFD, os.NewSyscallError("getsockopt", err))
		}
		if value != want.value {
			return nil, fmt.Errorf("file descriptor %d: %s", firstFD, want.not)
		}
	}
	unix.CloseOnExec(firstFD)
	f := os.NewFile(firstFD, "LISTEN_FD_3")
	defer func() { _ = f.Close() }()
	return net.FileListener(f)
}

// number returns the value of the variable key, and 0 if there is none.
func number(env []string, key string) (int, error) {
	for _, e := range env {
		value, found := strings.CutPrefix(e, key+"=")
		if !found {
			continue
		}
		n, err := strconv.Atoi(value)
		if err != nil || n < 0 {
			return 0, fmt.Errorf("%s is not a number: %q", key, value)
		}
		return n, nil
	}
	return 0, nil
}
