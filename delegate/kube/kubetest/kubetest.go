// Package kubetest is a Kubernetes API server for tests: it serves pods, events
// (events.k8s.io/v1) and NetworkAttachmentDefinitions from memory, over TLS on a
// loopback address, and misbehaves as it is told.
//
//	s := kubetest.NewServer()
//	defer s.Close()
//	s.SetDefinition(kubetest.Definition{Namespace: "blue", Name: "net", Config: `{…}`})
//	client, err := corev1.NewForConfig(s.Config())
//	…
//	heal := s.Break(kubetest.Fault{Verb: "patch", Resource: "pods/status", Status: 429})
//
// It answers as the real server does where a node's plugin or daemon can tell the
// difference: field selectors, resource versions, watches with initial events and
// bookmarks, 410 for versions that are forgotten, UIDs that cannot change, 409 for
// an old resource version. Package contract holds it to that, with requests whose
// answers are the same from a real API server.
//
// It does not do what they need not: it authenticates nobody (but see
// [Server.SetToken]) and authorizes everybody, sets no defaults, answers no list in
// chunks, has no discovery and no OpenAPI, and knows no finalizers. It answers 404 for
// other resources, 405 for PUT and 415 for JSON patches and server-side apply.
package kubetest

import (
	"context"
	"encoding/pem"
	"net"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"sync"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// A Server is an API server. NewServer makes one; the zero Server is of no use.
// Goroutines may share it: objects and faults can change while it serves.
type Server struct {
	// URL is where the server listens, such as https://127.0.0.1:40321.
	URL string

	mu       sync.Mutex // protects the following
	http     *httptest.Server
	addr     net.TCPAddr   // to listen at
	ca       []byte        // PEM
	down     chan struct{} // closed by Stop; nil while the server does not listen
	changed  chan struct{} // closed and replaced after each change
	token    string
	requests []Request
	faults   []*fault
	watches  []*watcher
	store
}

// NewServer starts a server without objects. It panics if it cannot listen, as
// httptest.NewServer does.
func NewServer() *Server {
	s := &Server{addr: net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)}, changed: make(chan struct{}), store: newStore()}
	s.Start()
	return s
}

// Start makes the server listen again after Stop, at the same address and with the
// same objects. It does nothing if the server listens, and panics if it cannot.
func (s *Server) Start() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.down != nil {
		return
	}
	l, err := net.ListenTCP("tcp", &s.addr)
	if err != nil {
		panic("kubetest: " + err.Error())
	}
	s.down = make(chan struct{})
	h := httptest.NewUnstartedServer(handler{s, s.down})
	_ = h.Listener.Close() // in favour of ours
	h.Listener = listener{l, s, s.down}
	h.EnableHTTP2 = true
	h.StartTLS()
	if a, ok := l.Addr().(*net.TCPAddr); ok {
		s.addr = *a
	}
	s.http, s.URL = h, h.URL
	s.ca = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: h.Certificate().Raw})
}

// Stop closes the listener and every connection: from now on connections are refused.
// Objects, requests and faults are kept for Start.
func (s *Server) Stop() {
	s.mu.Lock()
	h, down := s.http, s.down
	s.http, s.down = nil, nil
	s.mu.Unlock()
	if down == nil {
		return
	}
	close(down)
	h.CloseClientConnections()
	h.Close()
}

// Close stops the server for good.
func (s *Server) Close() { s.Stop() }

// Config returns the configuration of a client of the server. It belongs to the
// caller.
func (s *Server) Config() *rest.Config {
	s.mu.Lock()
	defer s.mu.Unlock()
	return &rest.Config{
		Host:            s.URL,
		BearerToken:     s.token,
		TLSClientConfig: rest.TLSClientConfig{CAData: slices.Clone(s.ca)},
	}
}

// Kubeconfig writes the file kubeconfig in dir for clients of the server, with its CA
// and its token (see [Server.SetToken]), and returns its path.
func (s *Server) Kubeconfig(dir string) (string, error) {
	c := s.Config()
	k := clientcmdapi.NewConfig()
	k.Clusters["test"] = &clientcmdapi.Cluster{Server: c.Host, CertificateAuthorityData: c.CAData}
	k.AuthInfos["test"] = &clientcmdapi.AuthInfo{Token: c.BearerToken}
	k.Contexts["test"] = &clientcmdapi.Context{Cluster: "test", AuthInfo: "test"}
	k.CurrentContext = "test"
	path := filepath.Join(dir, "kubeconfig")
	return path, clientcmd.WriteToFile(*k, path)
}

// SetToken makes the server answer 401 to every request without this bearer token. With
// "", as from the start, it asks for none. Watches that are open go on.
func (s *Server) SetToken(token string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.token = token
}

// A Request is a request that has reached the server, whatever came of it.
type Request struct {
	Verb      string // get, list, watch, create, patch, delete
	Resource  string // such as pods or pods/status
	Namespace string // empty: of all namespaces
	Name      string // of the object, if the path has it
	Query     string // such as fieldSelector=spec.nodeName%3Dn1
	UserAgent string
	Body      string
}

// Requests returns the requests so far, in the order in which they came. Requests for
// other paths than those of resources have no verb, and the path as their resource.
func (s *Server) Requests() []Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.requests)
}

// Count returns how many of the requests so far have this verb and this resource, such
// as "patch" and "pods/status". An empty one matches all.
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

// Wait returns as soon as done does true: it calls done now, and after each request,
// each change of an object and each watch that begins or ends. It returns the cause of
// ctx if ctx ends first.
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

// change tells everybody who waits that something has changed. Called with mu held.
func (s *Server) change() {
	close(s.changed)
	s.changed = make(chan struct{})
}
