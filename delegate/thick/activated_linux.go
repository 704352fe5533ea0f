package thick

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// firstFD is the first file descriptor that a service manager passes.
const firstFD = 3

// Activated returns the unix socket that a service manager has opened for this
// process, as systemd does for a socket unit, or nil if there is none. env is the
// environment of the process, as "key=value", with LISTEN_PID and LISTEN_FDS. More
// than one socket is an error, and so is one that is not a listening unix stream
// socket.
//
// Call it once, at the start. Only one daemon has the socket: while another one has
// it, by Activated or by [Listen], Activated waits until that one closes it or dies,
// or until ctx ends. The name of the socket with ".lock" added is in use for that.
//
// Children do not inherit the socket. Closing it does not remove it, because the
// service manager goes on listening: no hand-over is needed. The service manager
// sets the permissions of the socket, so see [Server.AllowUIDs].
//
// On systems other than Linux it returns [errors.ErrUnsupported].
func Activated(ctx context.Context, env []string) (net.Listener, error) {
	l, err := activated(env)
	if err == nil && l != nil {
		l, err = locked(ctx, l)
	}
	if err != nil {
		return nil, fmt.Errorf("socket activation: %w", err)
	}
	return l, nil
}

// A lockedListener has the lock of its socket until it is closed.
type lockedListener struct {
	net.Listener

	release func()
}

// locked returns l, which it closes if it cannot take the lock of its socket. Only a
// socket that has a file has a lock.
func locked(ctx context.Context, l net.Listener) (net.Listener, error) {
	path := l.Addr().String()
	if !filepath.IsAbs(path) {
		return l, nil
	}
	lock, err := lockFile(ctx, path+".lock")
	if err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return &lockedListener{l, sync.OnceFunc(func() { unlockFile(lock) })}, nil
}

// Close stops listening and releases the lock.
func (l *lockedListener) Close() error {
	defer l.release()
	return l.Listener.Close()
}

func activated(env []string) (net.Listener, error) {
	pid, err := number(env, "LISTEN_PID")
	if err != nil || pid != os.Getpid() {
		return nil, err // meant for another process
	}
	n, err := number(env, "LISTEN_FDS")
	if err != nil || n == 0 {
		return nil, err
	}
	if n != 1 {
		return nil, fmt.Errorf("LISTEN_FDS passes %d sockets, want 1", n)
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
