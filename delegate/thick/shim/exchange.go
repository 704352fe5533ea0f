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

// dial connects to the daemon. The error is ErrAway where there is none, and
// errBusy where one does not accept at the moment.
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
		why = call // without the path, which the Error has
	}
	switch {
	case errors.Is(err, syscall.ENOENT), errors.Is(err, syscall.ECONNREFUSED):
		return nil, fmt.Errorf("%w: %w", ErrAway, why)
	case errors.Is(err, syscall.EAGAIN), errors.Is(err, syscall.EINTR):
		return nil, fmt.Errorf("%w: %w", errBusy, why)
	}
	return nil, fmt.Errorf("%w: %w", errSocket, why)
}

// exchange sends text, and returns the answer. When ctx ends it tells the
// daemon so by closing one half of conn, and waits a little longer, with undo as
// its limit. Then late is true whether or not there is an answer.
//
// The error is ErrLost, errMalformed, or why ctx ended.
func exchange(ctx context.Context, conn *net.UnixConn, text []byte, undo time.Duration) (r *response, late bool, err error) {
	defer func() { _ = conn.Close() }() // there is nothing left that it could lose
	stop := context.AfterFunc(ctx, func() {
		now := time.Now()
		_ = conn.SetReadDeadline(now.Add(undo))
		_ = conn.SetWriteDeadline(now) // CloseWrite does not wake every Write
		_ = conn.CloseWrite()
	})
	_, unsent := conn.Write(text)
	if unsent == nil || ctx.Err() == nil {
		// Even of a request that it did not want to read all the daemon may
		// have said why.
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
	return nil, late, fmt.Errorf("%w: %w", ErrLost, cmp.Or(unsent, err))
}
