package kube

import (
	"encoding/pem"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"strings"
	"sync"
	"testing"

	"k8s.io/client-go/rest"

	"github.com/metacni/metacni/internal/e2e/kube/server"
)

// A gate stands between one client and the API server: it notes the requests of the
// client, and can keep some of them.
type gate struct {
	*server.Server // as the client sees it, with the address and the certificate of the gate

	forward http.Handler

	mu       sync.Mutex
	requests []*noted
	kept     string        // the method of the requests that do not arrive
	healed   chan struct{} // closed when they fail
}

// A noted request is one that has arrived at a gate.
type noted struct {
	text  string // method and path
	again bool   // it was not answered, or the answer is to try again: the client makes one more
}

// newGate opens a gate to s.
func newGate(t testing.TB, s *server.Server) *gate {
	t.Helper()
	to, err := url.Parse(s.URL)
	if err != nil {
		t.Fatal(err)
	}
	transport, err := rest.TransportFor(s.As(""))
	if err != nil {
		t.Fatal(err)
	}
	seen := *s
	g := &gate{Server: &seen, healed: make(chan struct{}), forward: &httputil.ReverseProxy{
		Rewrite:   func(r *httputil.ProxyRequest) { r.SetURL(to) },
		Transport: transport, FlushInterval: -1, ErrorLog: log.New(io.Discard, "", 0),
		ErrorHandler: func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) },
	}}
	front := httptest.NewUnstartedServer(g)
	front.Config.ErrorLog = log.New(io.Discard, "", 0)
	front.StartTLS()
	t.Cleanup(func() {
		g.heal()
		front.CloseClientConnections() // watches do not end by themselves
		front.Close()
	})
	g.URL, g.CA = front.URL, t.TempDir()+"/ca.crt"
	text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: front.Certificate().Raw})
	if err := os.WriteFile(g.CA, text, 0o600); err != nil {
		t.Fatal(err)
	}
	return g
}

// keep keeps all later requests of a method from the API server, until heal.
func (g *gate) keep(method string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.kept = method
}

// heal lets all requests pass. Those that were kept fail.
func (g *gate) heal() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.kept = ""
	close(g.healed)
	g.healed = make(chan struct{})
}

// ServeHTTP forwards a request.
func (g *gate) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	n := &noted{text: r.Method + " " + r.URL.Path}
	g.mu.Lock()
	keep, healed := g.kept == r.Method, g.healed
	g.requests = append(g.requests, n)
	g.mu.Unlock()
	if keep {
		select {
		case <-healed:
		case <-r.Context().Done():
		}
		panic(http.ErrAbortHandler)
	}
	a := &forwarded{ResponseWriter: w}
	defer func() { // also when the API server does not answer, which is a panic
		g.mu.Lock()
		defer g.mu.Unlock()
		busy := a.status == 0 || a.status == http.StatusTooManyRequests || a.status >= http.StatusInternalServerError
		n.again = busy && r.Context().Err() == nil // else it is the client that has given up
	}()
	g.forward.ServeHTTP(a, r)
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
