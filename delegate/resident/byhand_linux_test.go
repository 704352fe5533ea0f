package resident_test

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/metacni/metacni/delegate/resident"
)

// A peer is the other end of a connection to a host, by hand.
type peer struct {
	net.Conn
	in *bufio.Reader
	t  testing.TB
}

func (n *node) dial() *peer {
	n.t.Helper()
	c, err := net.Dial("unix", n.socket)
	ok(n.t, err)
	n.t.Cleanup(func() { _ = c.Close() })
	ok(n.t, c.SetDeadline(time.Now().Add(patience)))
	return &peer{c, bufio.NewReader(c), n.t}
}

func (p *peer) say(text string) *peer {
	_, _ = io.WriteString(p.Conn, text) // it may have been refused already
	return p
}

// hear returns the host's answer to the hello.
func (p *peer) hear() (answer struct {
	Version  int
	Error    string
	Requests bool
},
) {
	p.t.Helper()
	line, err := p.in.ReadBytes('\n')
	ok(p.t, err)
	ok(p.t, json.Unmarshal(line, &answer))
	return answer
}

// closed waits until the host has closed the connection.
func (p *peer) closed() {
	p.t.Helper()
	if _, err := io.Copy(io.Discard, p.in); err != nil && cmp.Or(os.IsTimeout(err), false) {
		p.t.Errorf("the connection is open: %v", err)
	}
}

func hello(index, name string, types ...string) string {
	data, err := json.Marshal(map[string]any{"version": 1, "index": index, "name": name, "types": types})
	if err != nil {
		panic(err)
	}
	return string(data) + "\n"
}

// serveByHand registers a resident that answers the first calls and then
// nothing more, not even pings.
func (n *node) serveByHand(index, name string) net.Conn {
	n.t.Helper()
	d := simple(index, name)
	c, err := net.Dial("unix", n.socket)
	ok(n.t, err)
	m := &mute{Conn: c, quiet: make(chan struct{})}
	d.Synchronize = func(context.Context, []resident.Known) error { return nil }
	done := make(chan struct{})
	ctx, cancel := context.WithCancel(context.WithoutCancel(n.t.Context()))
	go func() {
		defer close(done)
		_ = d.Serve(ctx, m)
	}()
	n.await(index+"-"+name+" ready", 1)
	close(m.quiet)
	n.t.Cleanup(func() {
		cancel()
		_ = c.Close()
		<-done
	})
	return c
}

// A mute connection drops what is written once it is quiet.
type mute struct {
	net.Conn
	quiet chan struct{}
}

func (m *mute) Write(p []byte) (int, error) {
	select {
	case <-m.quiet:
		return len(p), nil
	default:
		return m.Conn.Write(p)
	}
}

// serveHTTP answers the host at the other end of p by hand, until it is
// stopped.
func serveHTTP(p *peer, answer func(path string, w io.Writer)) (srv *http.Server, stop func()) {
	srv = &http.Server{Protocols: new(http.Protocols), Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		answer(r.URL.Path, w)
	})}
	srv.Protocols.SetUnencryptedHTTP2(true)
	l := &once{conn: make(chan net.Conn, 1), closed: make(chan struct{})}
	l.conn <- buffered{p.Conn, p.in}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = srv.Serve(l)
	}()
	return srv, func() {
		_ = srv.Close()
		<-done
	}
}

// buffered is a connection of which something has been read already.
type buffered struct {
	net.Conn
	in io.Reader
}

func (b buffered) Read(p []byte) (int, error) { return b.in.Read(p) }

// once is a listener of one connection.
type once struct {
	conn   chan net.Conn
	closed chan struct{}
	close  sync.Once
}

func (l *once) Accept() (net.Conn, error) {
	select {
	case c := <-l.conn:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *once) Close() error {
	l.close.Do(func() { close(l.closed) })
	return nil
}

func (l *once) Addr() net.Addr { return &net.UnixAddr{} }
