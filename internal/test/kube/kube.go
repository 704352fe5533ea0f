// Package kubetest is a Kubernetes API server for tests. It serves pods, nodes, events,
// ResourceClaims, ResourceSlices and NetworkAttachmentDefinitions from memory, over TLS on a
// loopback address, and fails on demand. It knows JSON and no Go types of Kubernetes: a test
// passes any value whose JSON is the object.
//
//	s := kubetest.NewServer(scheme.Codecs.UniversalDeserializer().Decode)
//	defer s.Close()
//	kubetest.Put(s, kubetest.Definition{Namespace: "blue", Name: "net", Config: `{…}`})
//	web := kubetest.Put(s, &corev1.Pod{…})
//	heal := s.Break(kubetest.Fault{Verb: "patch", Resource: "pods/status", Status: 429})
//	…
//	web = kubetest.Get[corev1.Pod](s, "blue", "web")
//
// The server answers requests as kube-apiserver does, and one contract test is for both:
//
//   - get, list, watch, create, update, patch and delete; status is a subresource
//   - merge patches
//   - selectors of the name and of fields of the spec
//   - watches with sendInitialEvents, a bookmark at their end, and 410 for a
//     resource version that is too old
//   - 409 for an outdated resourceVersion, 404, and 422 for another UID
//
// It has no discovery, no admission, no defaults, and no authentication but [Server.SetToken].
// It reads JSON and protobuf, and answers in JSON whatever the client accepts, also with the
// PartialObjectMetadata.
package kubetest

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"encoding/pem"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"
)

// A Server is an API server; use [NewServer] to start one. Goroutines may share it, and objects
// and faults may change while clients use it.
type Server struct {
	decode func(protobuf []byte) (any, error)

	mu       sync.Mutex // protects the following
	url      string     // never changes
	ca       []byte     // PEM
	addr     net.TCPAddr
	http     *httptest.Server // nil while the server is stopped
	end      func()           // ends the requests of http
	changed  chan struct{}    // closed and replaced after each change
	token    string
	requests []Request
	faults   []*fault
	watches  []*watcher
	store
}

// NewServer starts a server without objects. The caller closes it. Like httptest.NewServer it
// panics if it cannot listen.
//
// The server uses decode for bodies in protobuf. It is the method Decode of a decoder such as
// scheme.Codecs.UniversalDeserializer() of client-go.
func NewServer[Kind, Object any](decode func([]byte, *Kind, Object) (Object, *Kind, error)) *Server {
	s := New(decode)
	s.Start()
	return s
}

// New is NewServer without a listener, see [Server.RoundTrip] and [Server.ServeHTTP].
func New[Kind, Object any](decode func([]byte, *Kind, Object) (Object, *Kind, error)) *Server {
	// Linux has all addresses of 127.0.0.0/8. With one of its own, a server that is stopped
	// finds its port free when it starts again.
	own := make([]byte, 2)
	_, _ = rand.Read(own) // never fails
	return &Server{
		decode: func(protobuf []byte) (any, error) {
			var none Object
			o, _, err := decode(protobuf, nil, none)
			return o, err
		},
		addr: net.TCPAddr{IP: net.IPv4(127, 1, own[0], own[1])}, changed: make(chan struct{}), store: newStore(),
	}
}

// RoundTrip answers a request without a connection. It makes the server the transport of a client
// in the same bubble of package synctest, for which time stands still. A watch has no answer
// before it ends.
func (s *Server) RoundTrip(q *http.Request) (resp *http.Response, err error) {
	defer func() {
		if e := recover(); e == http.ErrAbortHandler { //nolint:errorlint // as net/http compares it
			err = cmp.Or(q.Context().Err(), io.ErrUnexpectedEOF)
		} else if e != nil {
			panic(e)
		}
	}()
	w := httptest.NewRecorder()
	s.ServeHTTP(w, q)
	return w.Result(), nil
}

// Start makes the server listen again after Stop, at the same address and with the same
// objects. It does nothing if the server listens already. It panics if it cannot listen.
func (s *Server) Start() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.http != nil {
		return
	}
	l, err := net.ListenTCP("tcp", &s.addr)
	if err != nil {
		panic("kubetest: " + err.Error())
	}
	s.http = httptest.NewUnstartedServer(s)
	_ = s.http.Listener.Close() // in favour of ours
	s.http.Listener = l
	s.http.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	s.http.EnableHTTP2 = true
	ctx, end := context.WithCancel(context.Background()) //nolint:forbidigo // Stop ends it
	s.http.Config.BaseContext = func(net.Listener) context.Context { return ctx }
	s.end = end
	s.http.StartTLS()
	if s.url == "" {
		s.url = s.http.URL
		if a, ok := l.Addr().(*net.TCPAddr); ok {
			s.addr.Port = a.Port
		}
		s.ca = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.http.Certificate().Raw})
	}
}

// Stop closes the listener and all connections. New connections are refused until Start.
// Objects, requests and faults are kept.
func (s *Server) Stop() {
	s.mu.Lock()
	running, end := s.http, s.end
	s.http = nil
	s.mu.Unlock()
	if running == nil {
		return
	}
	running.CloseClientConnections()
	end() // of requests on connections that came meanwhile
	running.Close()
}

// Close stops the server for good.
func (s *Server) Close() { s.Stop() }

// certified is a name in the certificate of each server, which has not the address.
const certified = "example.com"

// Kubeconfig writes a configuration for clients to the file kubeconfig in dir, with the server's
// CA and its token (see [Server.SetToken]), and returns the path. A file that exists is
// overwritten.
func (s *Server) Kubeconfig(dir string) (string, error) {
	type named map[string]any
	s.mu.Lock()
	text, err := json.Marshal(named{
		"apiVersion": "v1", "kind": "Config", "current-context": "test",
		"clusters": []named{{"name": "test", "cluster": named{"server": s.url, "tls-server-name": certified, "certificate-authority-data": s.ca}}},
		"users":    []named{{"name": "test", "user": named{"token": s.token}}},
		"contexts": []named{{"name": "test", "context": named{"cluster": "test", "user": "test"}}},
	})
	s.mu.Unlock()
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "kubeconfig")
	return path, os.WriteFile(path, text, 0o600)
}

// SetToken makes the server answer 401 to requests without this bearer token. With an empty
// token, the initial state, it accepts all requests. Open watches continue.
func (s *Server) SetToken(token string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.token = token
}

// A Request is a request that the server has received, also one that failed.
type Request struct {
	Verb      string // get, list, watch, create, update, patch, delete
	Resource  string // such as pods or pods/status
	Namespace string // empty: all namespaces
	Name      string // the object's; empty for list, watch and create
	Query     string // the URL's, encoded, such as fieldSelector=spec.nodeName%3Dn1
	UserAgent string
	Body      string
	Time      time.Time // of its arrival
}

// Requests returns the requests so far, in the order of their arrival. A watch is one request.
// Where the path is not that of a resource, such as /version, Verb is empty and Resource is the
// path.
func (s *Server) Requests() []Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.requests)
}

// Count returns the number of requests so far with this verb and this resource, such as "patch"
// and "pods/status". An empty verb or resource matches all.
func (s *Server) Count(verb, resource string) int {
	n := 0
	for _, r := range s.Requests() {
		if r.matches(verb, resource) {
			n++
		}
	}
	return n
}

func (r Request) matches(verb, resource string) bool {
	return (verb == "" || verb == r.Verb) && (resource == "" || resource == r.Resource)
}

// Wait waits until done returns true. It calls done at once, and again after each request, each
// change of an object or a fault, and each watch that begins or ends. If ctx ends first, it
// returns the cause of ctx.
//
//	err := s.Wait(ctx, func() bool { return s.Count("patch", "pods/status") == 2 })
func (s *Server) Wait(ctx context.Context, done func() bool) error {
	for {
		s.mu.Lock()
		changed := s.changed
		s.mu.Unlock()
		if done() {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// change wakes Wait and the watches. Called with mu held.
func (s *Server) change() {
	close(s.changed)
	s.changed = make(chan struct{})
}
