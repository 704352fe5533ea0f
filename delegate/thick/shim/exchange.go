package shim

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"
	"time"

	"github.com/metacni/metacni/internal/cause"
)

// dial connects to the daemon. The error is errAway if no daemon listens, and
// errBusy if the daemon does not accept at the moment.
func dial(socket string) (*net.UnixConn, error) {
	// Connecting to a unix socket never waits, so it needs no context, and
	// without a net.Dialer the resolver stays out of the program.
	conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: socket, Net: "unix"})
	if err == nil {
		return conn, nil
	}
	why := err
	var call *os.SyscallError
	if errors.As(err, &call) {
		why = call // without the path, which is in the Error
	}
	switch {
	case errors.Is(err, syscall.ENOENT), errors.Is(err, syscall.ECONNREFUSED):
		return nil, fmt.Errorf("%w: %w", errAway, why)
	case errors.Is(err, syscall.EAGAIN), errors.Is(err, syscall.EINTR):
		return nil, fmt.Errorf("%w: %w", errBusy, why)
	}
	return nil, fmt.Errorf("%w: %w", errSocket, why)
}

// exchange sends text over conn, returns the answer and closes conn. When ctx ends,
// exchange tells the daemon by closing the writing half of conn, and waits for the
// answer for up to undo; then late is true.
//
// The error is errLost, errMalformed, or why ctx ended.
func exchange(ctx context.Context, conn *net.UnixConn, text []byte, undo time.Duration) (r *response, late bool, err error) {
	defer func() { _ = conn.Close() }() // nothing can be lost any more
	stop := context.AfterFunc(ctx, func() {
		now := time.Now()
		_ = conn.SetReadDeadline(now.Add(undo))
		_ = conn.SetWriteDeadline(now) // CloseWrite does not wake every Write
		_ = conn.CloseWrite()
	})
	_, unsent := conn.Write(text)
	if unsent == nil || ctx.Err() == nil {
		// The daemon may have answered although it did not read all.
		r, err = readResponse(conn)
	}
	late = !stop()
	switch {
	case r != nil:
		return r, late, nil
	case ctx.Err() != nil:
		return nil, late, cause.Of(ctx)
	case errors.Is(err, errMalformed):
		return nil, late, err
	}
	return nil, late, fmt.Errorf("%w: %w", errLost, cmp.Or(unsent, err))
}
