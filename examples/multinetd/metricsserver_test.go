package main

import (
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/metacni/metacni/internal/nodetest"
)

// The previous daemon keeps the address until it has ended, which is after it has
// left the socket. Meanwhile shims are served.
func TestMetricsAddressMayBeInUseAtFirst(t *testing.T) {
	t.Parallel()
	before, err := net.Listen("tcp", "127.0.0.1:0")
	nodetest.OK(t, err)
	keys := fmt.Sprintf(`,"metricsAddress":%q`, before.Addr())
	never := newWorld(t, keys).start(t)
	never.mustRun(t, "ADD", bridge)
	if err := never.stop(); err != nil {
		t.Error(err)
	}
	w := newWorld(t, keys).start(t)
	nodetest.OK(t, before.Close())
	for len(w.logged.of(t, "serving metrics")) == 0 {
		runtime.Gosched()
	}
	w.mustRun(t, "ADD", bridge)
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+before.Addr().String()+"/healthz", nil)
	nodetest.OK(t, err)
	a, err := http.DefaultClient.Do(r)
	nodetest.OK(t, err)
	if a.Body.Close(); a.StatusCode != http.StatusOK {
		t.Errorf("/healthz over TCP: %d", a.StatusCode)
	}
}

// The connection of a client that stops in the middle of a request, or never reads,
// is closed.
func TestMetricsClientsThatStopAreClosed(t *testing.T) {
	t.Parallel()
	const get = "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"
	for _, tt := range []struct {
		name, said string
		reads      bool // what is answered
	}{
		{"says nothing", "", true},
		{"stops in a header", "GET /metrics HTTP/1.1\r\nHost:", true},
		{"stops in a body", "GET /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\n1", true},
		{"stops after an exchange", get, true},
		{"never reads", get, false},
		{"asks for ever and never reads", strings.Repeat(get, 10_000), false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				near, far := net.Pipe()
				l := &oneConn{conn: make(chan net.Conn, 1), closed: make(chan struct{})}
				l.conn <- far
				page := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, strings.Repeat("x", 1<<16)) })
				s := metricsServer(page, slog.New(slog.DiscardHandler))
				served := make(chan error, 1)
				go func() { served <- s.Serve(l) }()
				var said sync.WaitGroup
				said.Go(func() { _, _ = io.WriteString(near, tt.said) }) // until it is closed
				if !tt.reads {
					time.Sleep(metricsWriteTimeout + time.Second)
				}
				if n, err := io.Copy(io.Discard, near); err != nil || n != 0 && !tt.reads {
					t.Errorf("not closed: read %d bytes, %v", n, err)
				}
				said.Wait()
				_ = s.Close()
				<-served
			})
		})
	}
}

// A oneConn is a listener of one connection.
type oneConn struct {
	conn   chan net.Conn
	closed chan struct{}
	once   sync.Once
}

func (l *oneConn) Accept() (net.Conn, error) {
	select {
	case c := <-l.conn:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *oneConn) Close() error {
	l.once.Do(func() { close(l.closed) })
	return nil
}

func (l *oneConn) Addr() net.Addr { return &net.UnixAddr{} }
