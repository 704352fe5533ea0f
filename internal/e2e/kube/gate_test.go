package kube

import (
	"context"
	"crypto/tls"
	"encoding/pem"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/client-go/rest"

	"github.com/metacni/metacni/internal/e2e/kube/server"
)

// A gate stands between one client and the API server: it notes the requests of the
// client, and can keep them from being answered.
type gate struct {
	*server.Server // as the client sees it, with the address and the certificate of the gate

	real        *server.Server
	port        int
	certificate tls.Certificate
	forward     http.Handler
	server      *http.Server

	mu       sync.Mutex
	requests []*noted
	fault    fault
	healed   chan struct{} // closed when the fault has ended
	mute     chan struct{} // closed when bytes pass again; nil if they do
}

// A noted request is one that has arrived at a gate.
type noted struct {
	text  string // method and path
	again bool   // it was not answered, or the answer is to try again: the client makes one more
}

// A fault is what a gate does to requests. The zero fault lets them pass.
type fault struct {
	method  string        // of the requests that are concerned; empty means all
	swallow bool          // they never arrive, and are not answered before the fault ends
	delay   time.Duration // they arrive later
	status  int           // this is the answer
}

// newGate opens a gate to s.
func newGate(t testing.TB, s *server.Server) *gate {
	t.Helper()
	model := httptest.NewTLSServer(nil) // for its certificate
	model.Close()
	hold, port, err := server.Reserve()
	if err != nil {
		t.Fatal(err)
	}
	g := &gate{real: s, port: port, certificate: model.TLS.Certificates[0], healed: make(chan struct{})}
	t.Cleanup(func() {
		g.speak()
		g.heal()
		g.close()
		_ = unix.Close(hold)
	})
	seen := *s
	g.Server = &seen
	to, err := url.Parse(s.URL)
	if err != nil {
		t.Fatal(err)
	}
	g.URL, g.CA = "https://"+addressOf(port), t.TempDir()+"/ca.crt"
	text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: model.Certificate().Raw})
	if err := os.WriteFile(g.CA, text, 0o600); err != nil {
		t.Fatal(err)
	}
	transport, err := rest.TransportFor(s.As(""))
	if err != nil {
		t.Fatal(err)
	}
	g.forward = &httputil.ReverseProxy{
		Rewrite:   func(r *httputil.ProxyRequest) { r.SetURL(to) },
		Transport: transport, FlushInterval: -1, ErrorLog: log.New(io.Discard, "", 0),
		ErrorHandler: func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) },
	}
	g.open(t)
	return g
}

// open lets the client connect.
func (g *gate) open(t testing.TB) {
	t.Helper()
	l, err := (&net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		var failed error
		err := c.Control(func(fd uintptr) { failed = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEPORT, 1) })
		if err == nil {
			err = failed
		}
		return err
	}}).Listen(t.Context(), "tcp", addressOf(g.port))
	if err != nil {
		t.Fatal(err)
	}
	g.server = &http.Server{
		Handler: g, ErrorLog: log.New(io.Discard, "", 0), ReadHeaderTimeout: time.Minute,
		TLSConfig: &tls.Config{Certificates: []tls.Certificate{g.certificate}, MinVersion: tls.VersionTLS12},
	}
	go func() { _ = g.server.ServeTLS(mutable{l, g}, "", "") }()
}

// close ends all connections and refuses new ones, until open.
func (g *gate) close() { _ = g.server.Close() }

// cut ends all connections. The client may connect again.
func (g *gate) cut(t testing.TB) {
	t.Helper()
	g.close()
	g.open(t)
}

// silence lets no byte pass any more. Connections are accepted, and go on with speak.
func (g *gate) silence() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.mute = make(chan struct{})
}

func (g *gate) speak() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.mute != nil {
		close(g.mute)
		g.mute = nil
	}
}

// breakIt has all later requests meet a fault, until heal.
func (g *gate) breakIt(f fault) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.fault = f
}

// heal ends a fault. Requests that it has swallowed fail.
func (g *gate) heal() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.fault = fault{}
	close(g.healed)
	g.healed = make(chan struct{})
}

// ServeHTTP forwards a request.
func (g *gate) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	g.mu.Lock()
	f, healed := g.fault, g.healed
	n := &noted{text: r.Method + " " + r.URL.Path}
	g.requests = append(g.requests, n)
	g.mu.Unlock()
	if f.method != "" && f.method != r.Method {
		f = fault{}
	}
	if f.delay > 0 {
		ctx, cancel := context.WithTimeout(r.Context(), f.delay)
		defer cancel()
		<-ctx.Done()
	}
	switch {
	case f.swallow:
		select {
		case <-healed:
		case <-r.Context().Done():
		}
		panic(http.ErrAbortHandler)
	case f.status != 0:
		http.Error(w, http.StatusText(f.status), f.status)
	default:
		a := &forwarded{ResponseWriter: w}
		defer func() { // also when the API server does not answer, which is a panic
			g.mu.Lock()
			defer g.mu.Unlock()
			busy := a.status == 0 || a.status == http.StatusTooManyRequests || a.status >= http.StatusInternalServerError
			n.again = busy && r.Context().Err() == nil // else it is the client that has given up
		}()
		g.forward.ServeHTTP(a, r)
	}
}

// A forwarded answer knows its status, which is 0 before there is one.
type forwarded struct {
	http.ResponseWriter

	status int
}

func (a *forwarded) WriteHeader(status int) {
	a.status = status
	a.ResponseWriter.WriteHeader(status)
}

// Unwrap is for [http.ResponseController].
func (a *forwarded) Unwrap() http.ResponseWriter { return a.ResponseWriter }

// made returns the requests of the client that contain text, apart from watches and lists of
// definitions, and from those that a busy API server made the client repeat.
func (g *gate) made(text string) []string {
	g.mu.Lock()
	defer g.mu.Unlock()
	var all []string
	for _, n := range g.requests {
		if !n.again && n.text != "GET "+nads+"network-attachment-definitions" && strings.Contains(n.text, text) {
			all = append(all, n.text)
		}
	}
	return all
}

// A mutable listener has connections that a gate can silence.
type mutable struct {
	net.Listener

	gate *gate
}

func (m mutable) Accept() (net.Conn, error) {
	c, err := m.Listener.Accept()
	return mutableConn{c, m.gate}, err
}

type mutableConn struct {
	net.Conn

	gate *gate
}

func (c mutableConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.gate.listen()
	return n, err
}

func (c mutableConn) Write(p []byte) (int, error) {
	c.gate.listen()
	return c.Conn.Write(p)
}

// listen waits until bytes may pass.
func (g *gate) listen() {
	g.mu.Lock()
	mute := g.mute
	g.mu.Unlock()
	if mute != nil {
		<-mute
	}
}

func addressOf(port int) string {
	return (&net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: port}).String()
}
