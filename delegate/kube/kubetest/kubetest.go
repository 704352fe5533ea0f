// Package kubetest is a Kubernetes API server for tests. It serves pods, nodes, events
// (events.k8s.io/v1), ResourceClaims and ResourceSlices (resource.k8s.io/v1) and
// NetworkAttachmentDefinitions from memory, over TLS on a loopback address, and fails on demand.
//
//	s := kubetest.NewServer()
//	defer s.Close()
//	s.SetDefinition(kubetest.Definition{Namespace: "blue", Name: "net", Config: `{…}`})
//	client, err := corev1.NewForConfig(s.Config())
//	…
//	heal := s.Break(kubetest.Fault{Verb: "patch", Resource: "pods/status", Status: 429})
//
// The server implements these parts of the Kubernetes API:
//
//   - get, list, watch, create and delete of pods, events, claims, slices and definitions, and
//     get, list and watch of nodes; in JSON, and all but definitions also in protobuf
//   - merge and JSON patches of pods, pods/status, nodes and definitions, also answered with the
//     PartialObjectMetadata, and updates of resourceclaims/status and resourceslices
//   - selectors of labels, and of the fields name, namespace, node and driver
//   - watches with sendInitialEvents, bookmarks, timeoutSeconds, and 410 for a
//     resource version that is too old
//   - 409 for an outdated resourceVersion in a patch, 422 for another UID, for
//     annotations of more than 256 KiB, for incomplete events, for another allocation of a
//     claim and for the status of a device that is not in it, 404, 409 for a name that
//     exists
//
// The tests hold its answers to those of kube-apiserver 1.36.
//
// The server has no discovery, no authorization, no admission and no defaults, and no
// authentication but [Server.SetToken]. Lists ignore limit. Other patches are answered 415,
// other verbs 405, other resources 404.
package kubetest

import (
	"context"
	"net"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"sync"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// A Server is an API server; use NewServer to start one. Goroutines may share it, and
// objects and faults may change while clients use it.
type Server struct {
	// URL is the address of the server, such as https://127.0.0.1:40321. It never
	// changes.
	URL string

	mu       sync.Mutex // protects the following
	http     *httptest.Server
	addr     net.TCPAddr   // to listen at
	ca       []byte        // PEM
	down     chan struct{} // closed by Stop; nil while the server does not listen
	hold     func()        // gives up the port of a stopped server; may be nil
	changed  chan struct{} // closed and replaced after each change
	token    string
	requests []Request
	faults   []*fault
	watches  []*watcher
	store
}

// NewServer starts a server without objects. The caller closes it. Like
// httptest.NewServer it panics if it cannot listen.
func NewServer() *Server {
	s := &Server{addr: net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)}, changed: make(chan struct{}), store: newStore()}
	s.Start()
	return s
}

// Config returns a configuration for clients, with the server's CA and its token (see
// [Server.SetToken]). The caller may change it.
func (s *Server) Config() *rest.Config {
	s.mu.Lock()
	defer s.mu.Unlock()
	return &rest.Config{
		Host:            s.URL,
		BearerToken:     s.token,
		TLSClientConfig: rest.TLSClientConfig{CAData: slices.Clone(s.ca)},
	}
}

// Kubeconfig writes what Config returns to the file kubeconfig in dir, and returns the
// path. A file that exists is overwritten.
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

// SetToken makes the server answer 401 to requests without this bearer token. With an
// empty token, the initial state, it accepts all requests. Open watches continue.
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
}

// Requests returns the requests so far, in the order of their arrival. A watch is one
// request. Where the path is not that of a resource, such as /version, Verb is empty and
// Resource is the path.
func (s *Server) Requests() []Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.requests)
}

// Count returns the number of requests so far with this verb and this resource, such as
// "patch" and "pods/status". An empty verb or resource matches all.
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

// Wait waits until done returns true. It calls done at once, and again after each
// request, each change of an object or a fault, and each watch that begins or ends. If
// ctx ends first, it returns the cause of ctx.
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
