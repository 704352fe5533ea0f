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

// isAway reports whether no daemon listens.
func isAway(socket string) bool {
	conn, err := dial(socket)
	if err == nil {
		_ = conn.Close() // nothing was written
	}
	return errors.Is(err, errAway)
}

// exchange sends the command to the daemon and returns the response. When ctx ends, exchange
// tells the daemon by closing the writing half of the connection, and waits for the answer
// for up to UndoTimeout.
//
// Once the daemon is connected, the error is errLost, errMalformed, errTooLarge, or why ctx
// ended.
func (k *call) exchange(ctx context.Context) (r *response, err error) {
	conn, err := dial(k.socket)
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }() // nothing can be lost any more
	text, err := message(ctx, k.path, k.request)
	if err != nil {
		return nil, err
	}
	undo := k.client.undoTimeout()
	if k.command == "STATUS" {
		undo = 0
	}
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
	late := !stop()
	switch {
	case r != nil && late && r.status == 200 && k.command == "ADD":
		// The daemon has been told to cancel the ADD and may undo it.
		return nil, fmt.Errorf("%w: the result came too late", cause.Of(ctx))
	case r != nil:
		return r, nil
	case ctx.Err() != nil:
		return nil, cause.Of(ctx)
	case errors.Is(err, errMalformed):
		return nil, err
	}
	return nil, fmt.Errorf("%w: %w", errLost, cmp.Or(unsent, err))
}
