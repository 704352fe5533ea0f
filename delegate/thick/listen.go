package thick

import (
	"context"
	"fmt"
	"net"
	"path/filepath"
)

// Listen returns the unix socket that a service manager has opened for this process,
// as systemd does for a socket unit, or else listens on the unix socket at the path
// socket. A path that is not absolute is an error in both cases. env is the environment
// of the process, as "key=value": with LISTEN_PID and LISTEN_FDS a service manager tells
// of its socket. More than one socket is an error, and so is one that is not a listening
// unix stream socket.
//
// Only one listener has a socket: while another one has it, in this or in another
// process, Listen waits until that one hands it over, closes it or dies, or until ctx
// ends.
//
// Give the listener to [Server.Serve] itself, not one that wraps it: Serve hands the
// socket over to the next daemon, without losing a connection. Accept returns a
// [*net.UnixConn]; one goroutine at a time may call it. If somebody removes the socket or its
// directory, Accept makes the socket again within a few seconds, unless another process listens there
// by then. Until then the server is not ready. A socket of a service manager can only be made again
// by that manager: until then the server stays not ready. Close loses the connections that were not accepted. The socket's file
// stays, because it may be the next daemon's by then.
//
// To a socket that Listen makes, only this user and root may connect. Listen makes its
// directory and the parents if they are missing. An existing directory is never
// changed: it must be a directory, not a link, that belongs to this user and that
// nobody else may enter. An existing socket is replaced, and at no moment is there
// none. It is an error if somebody else listens on it, such as a service manager or
// another program, or if there is another file in its place. Three more names beside the
// socket are in use: socket with ".lock", ".next" and "~" added.
//
// The service manager sets the permissions of a socket that it has opened, so see
// [Server.AllowUIDs]. It goes on listening: that socket needs no hand-over. Children do
// not inherit the socket. Call Listen with env once, at the start.
//
// On systems other than Linux it returns [errors.ErrUnsupported].
func Listen(ctx context.Context, env []string, socket string) (net.Listener, error) {
	if !filepath.IsAbs(socket) {
		return nil, fmt.Errorf("listen on %q: not an absolute path", socket)
	}
	passed, err := activated(ctx, env)
	if passed != nil || err != nil {
		return passed, err
	}
	l, err := listen(ctx, socket)
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", socket, err)
	}
	return l, nil
}
