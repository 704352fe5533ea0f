package resident

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/creachadair/jrpc2/channel"
)

const (
	maxFromPlugin = 8 << 20  // bytes of a message to the host
	maxFromHost   = 64 << 20 // bytes of a message to a resident: the list of attachments is the longest

	// maxQueued is how many messages may wait for the other side to read.
	maxQueued = 256

	// writeTimeout is how long the other side may take to read one message.
	writeTimeout = 10 * time.Second
)

var (
	errLong = errors.New("a message is too long")
	errSlow = errors.New("it does not read its messages")
)

// A link is one connection as a [channel.Channel]: each message is a line of JSON. A
// message that is too long, and one that is not an object, closes the connection: the
// parts of a batch would take many times its size in memory.
//
// Send never waits, since its caller holds the lock of all calls on the connection.
type link struct {
	conn  net.Conn
	lines channel.Channel
	in    *io.LimitedReader // what the lines are read from
	limit int64             // bytes of a message that is received
	out   chan []byte       // to the writer

	fail context.CancelCauseFunc // closes the connection; only the first reason counts
	done <-chan struct{}         // closed with the connection
	why  func() error            // returns why the connection was closed
}

// newLink returns a link that receives messages of up to limit bytes. The end of ctx has
// no effect.
func newLink(ctx context.Context, conn net.Conn, limit int64) *link {
	l := &link{conn: conn, in: &io.LimitedReader{R: conn}, limit: limit, out: make(chan []byte, maxQueued)}
	l.lines = channel.Line(l.in, conn)
	ctx, fail := context.WithCancelCause(context.WithoutCancel(ctx))
	l.fail, l.done, l.why = fail, ctx.Done(), func() error { return context.Cause(ctx) }
	context.AfterFunc(ctx, func() { _ = conn.Close() })
	go l.write()
	return l
}

// closed reports whether the connection is closed.
func (l *link) closed() bool { return l.why() != nil }

// Close closes the connection.
func (l *link) Close() error {
	l.fail(errLost)
	return nil
}

// Recv returns the next message.
func (l *link) Recv() ([]byte, error) {
	l.in.N = l.limit
	msg, err := l.lines.Recv()
	switch {
	case err != nil && l.in.N <= 0:
		err = errLong
	case err == nil && !bytes.HasPrefix(msg, []byte("{")):
		err = errors.New("a message is not a JSON object")
	}
	if err != nil {
		l.fail(fmt.Errorf("%w: %w", errLost, err))
		return nil, err
	}
	return msg, nil
}

// Send hands a message to the writer.
func (l *link) Send(msg []byte) error {
	if l.closed() {
		return net.ErrClosed
	}
	select {
	case l.out <- msg:
		return nil
	default:
		l.fail(fmt.Errorf("%w: %w", errLost, errSlow))
		return errSlow
	}
}

// write writes messages until the connection ends.
func (l *link) write() {
	for {
		select {
		case msg := <-l.out:
			_ = l.conn.SetWriteDeadline(time.Now().Add(writeTimeout)) // when it fails, so does Send
			if err := l.lines.Send(msg); err != nil {
				l.fail(fmt.Errorf("%w: %w", errLost, err))
			}
		case <-l.done:
			return
		}
	}
}

// pause waits for d. It reports false when stop is closed first.
func pause(stop <-chan struct{}, d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-stop:
		return false
	}
}
