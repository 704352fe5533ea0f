package thick

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// firstFD is the first file descriptor that a service manager passes.
const firstFD = 3

// activated returns the socket that the service manager has passed, with its lock, or
// nil if there is none.
func activated(ctx context.Context, env []string) (net.Listener, error) {
	l, err := passed(env)
	if err != nil {
		return nil, fmt.Errorf("socket activation: %w", err)
	}
	if l == nil {
		return nil, nil
	}
	own := &listener{UnixListener: l}
	if path := l.Addr().String(); filepath.IsAbs(path) { // only a socket that has a file has a lock
		if own.lock, err = takeLock(ctx, path+".lock"); err != nil {
			return nil, fmt.Errorf("socket activation: %w", errors.Join(err, l.Close()))
		}
	}
	return own, nil
}

// passed returns the socket that the service manager has passed, or nil.
func passed(env []string) (*net.UnixListener, error) {
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
	listening, err := unix.GetsockoptInt(firstFD, unix.SOL_SOCKET, unix.SO_ACCEPTCONN)
	if err != nil {
		return nil, fmt.Errorf("file descriptor %d: %w", firstFD, os.NewSyscallError("getsockopt", err))
	}
	if listening == 0 {
		return nil, fmt.Errorf("file descriptor %d: not listening", firstFD)
	}
	unix.CloseOnExec(firstFD)
	f := os.NewFile(firstFD, "LISTEN_FD_3")
	defer func() { _ = f.Close() }()
	l, err := net.FileListener(f)
	if err != nil {
		return nil, err
	}
	u, ok := l.(*net.UnixListener)
	if !ok || l.Addr().Network() != "unix" {
		return nil, errors.Join(fmt.Errorf("file descriptor %d: not a unix stream socket", firstFD), l.Close())
	}
	return u, nil
}

// number returns the value of the variable key, and 0 if there is none.
func number(env []string, key string) (int, error) {
	i := slices.IndexFunc(env, func(e string) bool { return strings.HasPrefix(e, key+"=") })
	if i < 0 {
		return 0, nil
	}
	value := env[i][len(key)+1:]
	n, err := strconv.Atoi(value)
	if err != nil || n < 0 {
		return 0, fmt.Errorf("%s is not a number: %q", key, value)
	}
	return n, nil
}
