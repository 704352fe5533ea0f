package thick

import (
	"context"
	"fmt"
	"net"
)

// Listen listens on the unix socket at the path socket. Only one Listener has the
// socket: while another one has it, in this or in another process, Listen waits
// until that one hands it over or dies, or until ctx ends.
//
// Only this user and root may connect. Listen makes the directory of the socket
// and its parents if they are missing. An existing directory is never changed: it
// must be a directory, not a link, that belongs to this user and that nobody else
// may enter. An existing socket is replaced, and at no moment is there none. It is an
// error if somebody else listens on it, such as a service manager or another
// program, or if there is another file in its place. Three more names beside the socket are in
// use: socket with ".lock", ".next" and "~" added.
//
// On systems other than Linux it returns [errors.ErrUnsupported].
func Listen(ctx context.Context, socket string) (*Listener, error) {
	l, err := listen(ctx, socket)
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", socket, err)
	}
	return l, nil
}

// A Listener is a [net.Listener] that can hand its socket over to the next daemon,
// see [Listen]. Its methods may be called by several goroutines at once.
//
// Accept returns a [*net.UnixConn]. It fails with [net.ErrClosed] after Close. After
// HandOver it first returns all connections that were made before, and then fails the
// same way. Close loses the connections that were not accepted, and removes the socket
// if this listener still has it and nobody waits for it. Later calls do nothing and
// return nil.
type Listener struct {
	net.Listener

	handOver func(context.Context) error
}

// HandOver lets the next daemon have the socket. Call it when this process has
// nothing left to do, and go on calling Accept until it fails. If another daemon
// waits in Listen, HandOver returns when that has taken over. If none waits, or if
// ctx ends first, which is an error, further connections are refused.
func (l *Listener) HandOver(ctx context.Context) error { return l.handOver(ctx) }

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
	l, err := activated(ctx, env)
	if err != nil {
		return nil, fmt.Errorf("socket activation: %w", err)
	}
	return l, nil
}
