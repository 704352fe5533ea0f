package kube

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/util/connrotation"

	"github.com/metacni/metacni/delegate/kube/internal/bounded"
)

// placeholder is the host that the clients name. The transport puts in the real one.
const placeholder = "kubernetes"

// headerTimeout is the time in which an API server begins its answer. It answers a
// watch at once.
const headerTimeout = 30 * time.Second

// A Request is a request that was made to the API server.
type Request struct {
	Verb     string // as in a role: get, list, watch, create, update, patch, delete
	Resource string // as in a role: "pods", "pods/status"
	Code     int    // the HTTP status, or 0 where there was no answer
}

// A transport sends all requests, with the credentials as they are now: when one of
// the files that they come from has changed, they are read again. A kubeconfig that
// appears, is repaired or replaced after the start needs no more attention than that.
//
// The transports of client-go read tokens and certificates again, but no kubeconfig, and
// are kept in a global cache.
type transport struct {
	kubeconfig string // empty: in the cluster
	userAgent  string
	observe    func(Request)
	dial       func(ctx context.Context, network, address string) (net.Conn, error)
	proxy      func(*http.Request) (*url.URL, error) // not nil: client-go caches no transport that has one

	mu    sync.Mutex
	now   *session // nil until the credentials could be read
	epoch int      // how many sessions there have been
}

// A session is how requests are sent until a file changes.
type session struct {
	stamp  string   // of the files when they were read
	files  []string // what the credentials come from, except for tokens
	server *url.URL // of the API
	dialer *connrotation.Dialer
	next   http.RoundTripper
}

func newTransport(c Config) *transport {
	t := &transport{kubeconfig: c.Kubeconfig, userAgent: c.userAgent(), observe: c.Observer, dial: c.Dial, proxy: noProxy}
	if t.dial == nil {
		t.dial, t.proxy = (&net.Dialer{Timeout: 10 * time.Second, KeepAlive: 15 * time.Second}).DialContext, http.ProxyFromEnvironment
	}
	if t.observe == nil {
		t.observe = func(Request) {}
	}
	return t
}

func noProxy(*http.Request) (*url.URL, error) { return nil, nil } //nolint:nilnil // as net/http has it

// RoundTrip sends a request of a client.
func (t *transport) RoundTrip(req *http.Request) (*http.Response, error) {
	done := described(req)
	defer func() { t.observe(done) }()
	s, err := t.session()
	if err != nil {
		if req.Body != nil {
			_ = req.Body.Close()
		}
		return nil, err
	}
	req = req.Clone(req.Context())
	req.URL.Scheme, req.URL.Host, req.Host = s.server.Scheme, s.server.Host, ""
	req.URL.Path = strings.TrimSuffix(s.server.Path, "/") + req.URL.Path
	resp, err := s.next.RoundTrip(req)
	if resp != nil {
		done.Code = resp.StatusCode
	}
	return resp, err
}

// described returns the verb and the resource of a request, in the words of a role.
func described(req *http.Request) Request {
	verb := map[string]string{"GET": "get", "POST": "create", "PUT": "update"}[req.Method]
	r := Request{Verb: cmp.Or(verb, strings.ToLower(req.Method))}
	parts := strings.Split(strings.Trim(req.URL.Path, "/"), "/")
	prefix := map[string]int{"api": 2, "apis": 3}[parts[0]] // with the group and its version
	if prefix == 0 || len(parts) <= prefix {
		return r
	}
	parts = parts[prefix:]
	if len(parts) > 2 && parts[0] == "namespaces" {
		parts = parts[2:]
	}
	named := len(parts) > 1
	if named {
		parts = slices.Delete(parts, 1, 2)
	}
	r.Resource = strings.Join(parts, "/")
	switch {
	case r.Verb != "get" || named:
	case req.URL.Query().Has("watch"):
		r.Verb = "watch"
	default:
		r.Verb = "list"
	}
	return r
}

// session returns the present session, or an error if the credentials cannot be read.
func (t *transport) session() (*session, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.now != nil && t.now.stamp == stamp(t.now.files...) {
		return t.now, nil
	}
	s, err := t.read()
	if err != nil {
		return nil, fmt.Errorf("credentials: %w", err)
	}
	if t.now != nil {
		t.now.dialer.CloseAll() // watches begin again, with the new credentials
	}
	t.now = s
	t.epoch++
	return s, nil
}

// current returns a number that changes with the credentials: the API server may be
// another one.
func (t *transport) current() int {
	_, _ = t.session() // without credentials nothing changes
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.epoch
}

// read reads the credentials and makes a session of them.
func (t *transport) read() (*session, error) {
	before := stamp(t.kubeconfig)
	config, err := t.config()
	if err != nil {
		return nil, err
	}
	s := &session{files: []string{t.kubeconfig, config.CAFile, config.CertFile, config.KeyFile}}
	s.files = slices.DeleteFunc(s.files, func(file string) bool { return file == "" })
	s.stamp = stamp(s.files...)
	if before != stamp(t.kubeconfig) {
		s.stamp = "" // it has changed meanwhile: the next request reads it again
	}
	if s.server, _, err = rest.DefaultServerUrlFor(config); err != nil {
		return nil, err
	}
	s.dialer = connrotation.NewDialer(t.dial)
	config.UserAgent, config.Dial = t.userAgent, s.dialer.DialContext
	if config.Proxy == nil {
		config.Proxy = t.proxy
	}
	config.Wrap(func(base http.RoundTripper) http.RoundTripper {
		if h, ok := base.(*http.Transport); ok {
			h.ResponseHeaderTimeout = headerTimeout
		}
		return base
	})
	if err := rest.LoadTLSFiles(config); err != nil { // otherwise a goroutine would follow the files
		return nil, err
	}
	s.next, err = rest.TransportFor(config)
	return s, err
}

// config reads the configuration of the client.
func (t *transport) config() (*rest.Config, error) {
	if t.kubeconfig == "" {
		return rest.InClusterConfig()
	}
	if err := regular(t.kubeconfig); err != nil {
		return nil, err
	}
	file, err := clientcmd.LoadFromFile(t.kubeconfig)
	if err != nil {
		return nil, err
	}
	if err := clientcmd.ResolveLocalPaths(file); err != nil {
		return nil, err
	}
	var named []string
	for _, c := range file.Clusters {
		named = append(named, c.CertificateAuthority)
	}
	for _, u := range file.AuthInfos {
		named = append(named, u.ClientCertificate, u.ClientKey, u.TokenFile)
	}
	if err := regular(named...); err != nil {
		return nil, err
	}
	return clientcmd.NewDefaultClientConfig(*file, &clientcmd.ConfigOverrides{}).ClientConfig()
}

// regular fails if one of the files is neither regular nor missing: client-go would wait for
// the writer of a FIFO.
func regular(files ...string) error {
	for _, file := range files {
		if info, err := os.Stat(file); err == nil && !info.Mode().IsRegular() {
			return fmt.Errorf("%s: not a regular file", file)
		}
	}
	return nil
}

// stamp changes when one of the files does. It reads them: they are small, requests are
// few, and the time of a change is too coarse to tell two of them apart.
func stamp(files ...string) string {
	sum := sha256.New()
	for _, file := range files {
		data, err := bounded.ReadFile(file)
		fmt.Fprintln(sum, file, len(data), err)
		sum.Write(data)
	}
	return string(sum.Sum(nil))
}

// close ends all connections.
func (t *transport) close() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.now != nil {
		t.now.dialer.CloseAll()
	}
}

// cause is err without the URL of a request, which names a placeholder.
func cause(err error) error {
	if u, ok := errors.AsType[*url.Error](err); ok {
		return u.Err
	}
	return err
}
