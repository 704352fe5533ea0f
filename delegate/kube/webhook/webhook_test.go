package webhook

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	admissionv1 "k8s.io/api/admission/v1"

	nodetest "github.com/metacni/metacni/internal/test/node"
	"github.com/metacni/metacni/netconf"
	"github.com/metacni/metacni/netconf/nad"
)

// handler reviews as a plugin would: with what an ADD uses.
func handler() Handler {
	policy := nad.Policy{Isolation: true}
	return Handler{
		Definition: func(d nad.Definition) error {
			if strings.TrimSpace(d.Config) == "" {
				return nil
			}
			_, err := d.Network(nad.Rules{Own: []string{"meta"}, Allowed: []string{"macvlan", "meta"}})
			return err
		},
		Pod: func(namespace string, annotations map[string]string) error {
			selections, err := netconf.ParseSelection(annotations[nad.NetworksAnnotation])
			for _, s := range selections {
				ref, bad := policy.Ref(namespace, s, nad.UseSelected)
				if bad == nil {
					_, bad = policy.Decide(namespace, ref, nad.UseSelected)
				}
				err = errors.Join(err, bad)
			}
			return err
		},
	}
}

const (
	definitionKind = `{"group":"k8s.cni.cncf.io","version":"v1","kind":"NetworkAttachmentDefinition"}`
	podKind        = `{"group":"","version":"v1","kind":"Pod"}`
)

// definition is a NetworkAttachmentDefinition with more keys.
func definition(rest string) string {
	return `{"apiVersion":"k8s.cni.cncf.io/v1","kind":"NetworkAttachmentDefinition","metadata":{"namespace":"a","name":"blue"}` + rest + `}`
}

// config is a definition with a spec.config.
func config(text string) string {
	quoted, _ := json.Marshal(text) //nolint:errchkjson // a string
	return definition(`,"spec":{"config":` + string(quoted) + `}`)
}

// pod is a pod that selects networks.
func pod(networks, more string) string {
	quoted, _ := json.Marshal(networks) //nolint:errchkjson // a string
	return `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"web","annotations":{"k8s.v1.cni.cncf.io/networks":` + string(quoted) + `}}` + more + `}`
}

func TestReviews(t *testing.T) {
	t.Parallel()
	const (
		byFile = `warning: without spec.config this is the network "blue" in the CNI configuration files of each node`
		noType = `422 Invalid: NAD a/blue: spec.config: invalid configuration: key "plugins": missing, and there is no "type" either`
		other  = `403 Forbidden: NAD b/red: not allowed: namespaceIsolation keeps pods of namespace "a" from definitions of namespace "b": define the network in the pod's namespace, or in one of globalNamespaces`
		onNode = `warning: the pod has the network of its node (hostNetwork): the networks that it selects are ignored`
	)
	good, bad := config(`{"type":"macvlan"}`), config(`{}`)
	create := func(kind, object string) string {
		return `"operation":"CREATE","kind":` + kind + `,"object":` + object
	}
	update := func(kind, old, object string) string {
		return `"operation":"UPDATE","kind":` + kind + `,"object":` + object + `,"oldObject":` + old
	}
	for name, tt := range map[string]struct{ keys, want string }{
		"a definition":                           {create(definitionKind, good), "allowed"},
		"a definition that cannot be used":       {create(definitionKind, bad), noType},
		"a definition without spec":              {create(definitionKind, definition("")), byFile},
		"a definition with an empty config":      {create(definitionKind, config(" ")), byFile},
		"a type that is not allowed":             {create(definitionKind, config(`{"type":"bridge"}`)), `403 Forbidden: NAD a/blue: spec.config: not allowed: network "blue", key "plugins[0].type": "bridge" is not one of allowedTypes`},
		"the plugin itself":                      {create(definitionKind, config(`{"type":"meta"}`)), `422 Invalid: NAD a/blue: spec.config: invalid configuration: network "blue", key "plugins[0].type": "meta" is the meta-plugin itself, or one in its place`},
		"a config that is an object":             {create(definitionKind, definition(`,"spec":{"config":{}}`)), `422 Invalid: NAD a/blue: cannot decode configuration: key "spec.config": an object, want a string`},
		"not an object":                          {create(definitionKind, `[]`), "422 Invalid: the object cannot be decoded"},
		"changed for the better":                 {update(definitionKind, bad, good), "allowed"},
		"changed for the worse":                  {update(definitionKind, good, bad), noType},
		"changed from bad to bad":                {update(definitionKind, config(`{"type":5}`), bad), noType},
		"bad as before":                          {update(definitionKind, bad, bad), strings.Replace(noType, "422 Invalid", "warning", 1)},
		"bad as before, with a resource":         {update(definitionKind, bad, strings.Replace(bad, `"name"`, `"annotations":{"k8s.v1.cni.cncf.io/resourceName":"x/y"},"name"`, 1)), noType},
		"bad as before, with another label":      {update(definitionKind, bad, strings.Replace(bad, `"name"`, `"labels":{"x":"y"},"name"`, 1)), strings.Replace(noType, "422 Invalid", "warning", 1)},
		"a definition is deleted":                {`"operation":"DELETE","kind":` + definitionKind + `,"oldObject":` + bad, "allowed"},
		"a subresource of it":                    {create(definitionKind, bad) + `,"subResource":"status"`, "allowed"},
		"a pod":                                  {create(podKind, pod("blue,default/red", "")), "allowed"},
		"a pod that selects what it may not":     {create(podKind, pod("b/red", "")), other},
		"a broken selection":                     {create(podKind, pod("[{", "")), `422 Invalid: cannot decode configuration: line 1, column 2: unexpected end of JSON input`},
		"a pod of its node's network":            {create(podKind, pod("b/red", `,"spec":{"hostNetwork":true}`)), onNode},
		"a pod of its node's network, alone":     {create(podKind, pod("[]", `,"spec":{"hostNetwork":true}`)), "allowed"},
		"a running pod selects what it may not":  {update(podKind, pod("blue", ""), pod("b/red", "")), other},
		"a running pod selects it as before":     {update(podKind, pod("b/red", ""), pod("b/red", `,"spec":{"x":1}`)), strings.Replace(other, "403 Forbidden", "warning", 1)},
		"a running pod selects nothing any more": {update(podKind, pod("b/red", ""), pod("", "")), "allowed"},
		"a pod in the namespace of the request":  {create(podKind, pod("b/red", "")) + `,"namespace":"b"`, "allowed"},
		"another primary than before":            {update(podKind, pod("b/red", ""), strings.Replace(pod("b/red", ""), `"annotations":{`, `"annotations":{"`+nad.DefaultNetworkAnnotation+`":"b/red",`, 1)), other},
		"a primary of its node's network":        {create(podKind, strings.Replace(pod("blue", `,"spec":{"hostNetwork":true}`), nad.NetworksAnnotation, nad.DefaultNetworkAnnotation, 1)), onNode},
		"a command is executed in it":            {`"operation":"CONNECT","subResource":"exec","kind":{"version":"v1","kind":"PodExecOptions"},"object":{}`, "allowed"},
		"annotations that are none":              {create(podKind, `{"metadata":{"annotations":[]}}`), "422 Invalid: the object cannot be decoded"},
		"another kind":                           {create(`{"group":"apps","version":"v1","kind":"Deployment"}`, `{}`), "allowed"},
		"a definition of another group":          {create(strings.Replace(definitionKind, "k8s.cni.cncf.io", "x.io", 1), bad), "allowed"},
		"no object":                              {`"operation":"CREATE","kind":` + podKind, "422 Invalid: the object cannot be decoded"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			nodetest.Equal(t, "answer", reviewed(t, handler(), tt.keys), tt.want)
			nodetest.Equal(t, "without functions", reviewed(t, Handler{}, tt.keys), "allowed")
		})
	}
}

// The observer is told of each request, and how it has ended.
func TestObserverIsToldOfEachRequest(t *testing.T) {
	t.Parallel()
	h := handler()
	var got []string
	h.Observer = func(e Event) {
		nodetest.Equal(t, "has a request and a duration", []bool{e.Request != nil, e.Duration > 0}, []bool{e.Outcome != "failed", true})
		got = append(got, e.Outcome)
	}
	for _, object := range []string{config(`{"type":"macvlan"}`), definition(""), config(`{}`)} {
		reviewed(t, h, `"operation":"CREATE","kind":`+definitionKind+`,"object":`+object)
	}
	_ = post(t.Context(), h, "application/json", strings.NewReader("{"))
	nodetest.Equal(t, "events", got, []string{"allowed", "warned", "denied", "failed"})
}

// Whatever a request says, the answer is a review with its UID, or an HTTP error.
func FuzzHandler(f *testing.F) {
	for _, object := range []string{config(`{"type":"macvlan"}`), config(`{}`), pod("b/red", ""), pod("[{", `,"spec":{"hostNetwork":true}`), "null", "5"} {
		for _, kind := range []string{definitionKind, podKind} {
			f.Add(`{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"u","operation":"UPDATE","kind":` + kind + `,"object":` + object + `,"oldObject":` + object + `}}`)
		}
	}
	f.Fuzz(func(t *testing.T, body string) {
		w := post(t.Context(), handler(), "application/json", strings.NewReader(body))
		var asked, answer admissionv1.AdmissionReview
		text := w.Body.Bytes()
		if w.Code != http.StatusOK {
			return
		}
		nodetest.OK(t, errors.Join(json.Unmarshal([]byte(body), &asked), json.Unmarshal(text, &answer)))
		if diff := cmp.Diff(asked.Request.UID, answer.Response.UID); diff != "" || answer.Response.Allowed != (answer.Response.Result == nil) {
			t.Errorf("%s\n%s", text, diff)
		}
	})
}

// readAll is a handler that reads requests, and answers 503 if that fails. It tells asked of
// each that it has read, and then waits for answer.
func readAll(asked, answer chan bool) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, err := io.ReadAll(r.Body); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		asked <- true
		<-answer
	})
}

// send sends a request to h, and returns the code and the text of the answer.
func send(ctx context.Context, h http.Handler, body io.Reader) (int, string) {
	w := post(ctx, h, "", body)
	return w.Code, w.Body.String()
}

// post sends a body to h, and returns the answer.
func post(ctx context.Context, h http.Handler, kind string, body io.Reader) *httptest.ResponseRecorder {
	r := httptest.NewRequestWithContext(ctx, http.MethodPost, "/validate?timeout=5s", body)
	r.Header.Set("Content-Type", kind)
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

// reviewed is the answer to a request with these keys.
func reviewed(t testing.TB, h http.Handler, keys string) string {
	t.Helper()
	w := post(t.Context(), h, "application/json", strings.NewReader(`{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"u1","namespace":"a","userInfo":{},`+keys+`}}`))
	var answer admissionv1.AdmissionReview
	nodetest.OK(t, json.Unmarshal(w.Body.Bytes(), &answer))
	r := answer.Response
	if w.Code != http.StatusOK || w.Header().Get("Content-Type") != "application/json" || answer.APIVersion != "admission.k8s.io/v1" || answer.Kind != "AdmissionReview" || r.UID != "u1" || r.Allowed != (r.Result == nil) {
		t.Fatalf("%d %s", w.Code, w.Body)
	}
	switch {
	case r.Result != nil:
		return fmt.Sprintf("%d %s: %s", r.Result.Code, r.Result.Reason, r.Result.Message)
	case len(r.Warnings) > 0:
		return "warning: " + strings.Join(r.Warnings, "; ")
	}
	return "allowed"
}

// What is no review gets an HTTP error: for an API server the webhook is away then.
func TestRequestsThatAreNoReviews(t *testing.T) {
	t.Parallel()
	const review = `{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"u"}}`
	for name, tt := range map[string]struct {
		kind, body string
		code       int
	}{
		"a review":                        {"application/json", review, 200},
		"a review with a charset":         {"application/json; charset=utf-8", review, 200},
		"a form":                          {"application/x-www-form-urlencoded", "a=b", 415},
		"no type":                         {"", review, 415},
		"nothing":                         {"application/json", "", 400},
		"not JSON":                        {"application/json", "{", 400},
		"null":                            {"application/json", "null", 400},
		"another object":                  {"application/json", `{"kind":"Pod"}`, 400},
		"another version":                 {"application/json", strings.Replace(review, "/v1", "/v1beta1", 1), 400},
		"no request":                      {"application/json", `{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview"}`, 400},
		"as large as it may be":           {"application/json", review + strings.Repeat(" ", maxBody-len(review)), 200},
		"a byte larger than it may be":    {"application/json", review + strings.Repeat(" ", maxBody+1-len(review)), 413},
		"much deeper than an object goes": {"application/json", strings.Repeat("[", 1<<20), 400},
	} {
		nodetest.Equal(t, name, post(t.Context(), handler(), tt.kind, strings.NewReader(tt.body)).Code, tt.code)
	}
}

// A server is a running webhook, with the files of its certificate. Clients trust roots. end ends it
// and returns its error.
type server struct {
	*nodetest.Node
	address string
	roots   *x509.CertPool
	log     nodetest.Log
	end     func() error
}

// files returns a server that does not run yet.
func files(t *testing.T) *server {
	t.Helper()
	return &server{Node: nodetest.New(t), roots: x509.NewCertPool()}
}

// serve serves h with a certificate that is valid from begin.
func serve(t *testing.T, h http.Handler, begin time.Time) *server {
	t.Helper()
	s := files(t)
	s.certify(1, begin)
	c := s.load()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	nodetest.OK(t, err)
	s.address = l.Addr().String()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- Serve(ctx, l, h, c, slog.New(slog.NewTextHandler(&s.log, nil))) }()
	s.end = func() error {
		cancel()
		return <-ended
	}
	return s
}

// certify replaces the certificate by one with another serial number that clients trust as well.
func (s *server) certify(serial int64, begin time.Time) {
	cert, key := issue(s, serial, begin)
	s.Write("tls.crt", cert)
	s.Write("tls.key", key)
	s.roots.AppendCertsFromPEM([]byte(cert))
}

// load loads the certificate, with the log of s.
func (s *server) load() *Certificate {
	s.Helper()
	c, err := LoadCertificate(s.Path("tls.crt"), s.Path("tls.key"), slog.New(slog.NewTextHandler(&s.log, nil)))
	nodetest.OK(s, err)
	return c
}

// issue returns a new certificate for 127.0.0.1 and its key, in PEM. It is valid for an hour.
func issue(tb testing.TB, serial int64, begin time.Time) (cert, key string) {
	tb.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	nodetest.OK(tb, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(serial), Subject: pkix.Name{CommonName: "webhook"}, NotBefore: begin, NotAfter: begin.Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, private.Public(), private)
	nodetest.OK(tb, err)
	secret, err := x509.MarshalECPrivateKey(private)
	nodetest.OK(tb, err)
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})), string(pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: secret}))
}

// client returns a client like an API server.
func (s *server) client() *http.Client {
	return &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: s.roots, MinVersion: tls.VersionTLS12}, ForceAttemptHTTP2: true}}
}

// get returns the answer to a GET, whose body is read.
func (s *server) get(client *http.Client, path string) (resp *http.Response, body string) {
	s.Helper()
	req, err := http.NewRequestWithContext(s.Context(), http.MethodGet, "https://"+s.address+path, nil)
	nodetest.OK(s, err)
	resp, err = client.Do(req)
	nodetest.OK(s, err)
	text, err := io.ReadAll(resp.Body)
	nodetest.OK(s, errors.Join(err, resp.Body.Close()))
	return resp, string(text)
}

// An API server asks over HTTP/2. Probes have two pages, and nothing else does. A new certificate is
// for new connections: those that are open stay open. The log says when a client refuses the
// certificate, for then the webhook is of no use. It says nothing of those that connect and go. Old
// versions of TLS are refused.
func TestServe(t *testing.T) {
	t.Parallel()
	s := serve(t, handler(), time.Now())
	before, after := s.client(), s.client()
	for path, code := range map[string]int{"/healthz": 200, "/readyz": 200, "/validate": 405, "/": 404, "/metrics": 404} {
		if resp, _ := s.get(before, path); resp.StatusCode != code || resp.ProtoMajor != 2 {
			t.Errorf("%s: %s %d", path, resp.Proto, resp.StatusCode)
		}
	}
	s.certify(2, time.Now())
	for client, serial := range map[*http.Client]int64{after: 2, before: 1} {
		resp, _ := s.get(client, "/healthz")
		nodetest.Equal(t, "serial number", resp.TLS.PeerCertificates[0].SerialNumber.Int64(), serial)
		client.CloseIdleConnections()
	}
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", s.address)
	nodetest.OK(t, err)
	nodetest.OK(t, conn.Close())
	for what, c := range map[string]*tls.Config{
		"TLS 1.1":                {RootCAs: s.roots, MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS11}, //nolint:gosec // that is the test
		"an unknown certificate": {RootCAs: x509.NewCertPool(), MinVersion: tls.VersionTLS12},
	} {
		_, err := (&tls.Dialer{Config: c}).DialContext(t.Context(), "tcp", s.address)
		nodetest.Refused(t, what, err)
	}
	resp, _ := s.get(s.client(), "/healthz") // afterwards
	nodetest.Equal(t, "/healthz", resp.StatusCode, http.StatusOK)
	nodetest.OK(t, s.end())
	lines := []int{s.log.Count("\n"), s.log.Count("level=INFO"), s.log.Count("TLS handshake error"), s.log.Count("bad certificate"), s.log.Count("EOF")}
	nodetest.Equal(t, "lines of "+s.log.String(), lines, []int{3, 1, 2, 1, 0})
}

// While API servers would refuse the certificate the webhook runs and is not ready: it is used, because
// there is no other. The log says so once. Probes do not look at the certificate.
func TestServerIsReadyWhileItsCertificateIsValid(t *testing.T) {
	t.Parallel()
	for want, begin := range map[string]time.Time{"expired at": time.Now().Add(-2 * time.Hour), "not valid before": time.Now().Add(time.Hour)} {
		s := serve(t, handler(), begin)
		probe := func() *http.Client { // each with a connection of its own
			return &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableKeepAlives: true}} //nolint:gosec // as the kubelet
		}
		resp, _ := s.get(probe(), "/healthz")
		nodetest.Equal(t, "/healthz", resp.StatusCode, http.StatusOK)
		resp, text := s.get(probe(), "/readyz")
		nodetest.Equal(t, "/readyz", resp.StatusCode, http.StatusServiceUnavailable)
		nodetest.Equal(t, "/readyz says "+want, strings.Contains(text, want), true)
		nodetest.Equal(t, "lines that say "+want, []int{s.log.Count(want), s.log.Count("\n")}, []int{1, 1})
		s.certify(2, time.Now())
		resp, _ = s.get(probe(), "/readyz")
		nodetest.Equal(t, "/readyz with a new certificate", resp.StatusCode, http.StatusOK)
		nodetest.OK(t, s.end())
	}
}

// A server that is to end answers what has been asked.
func TestServeEndsAfterTheLastAnswer(t *testing.T) {
	t.Parallel()
	asked, answer := make(chan bool), make(chan bool)
	s := serve(t, http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked <- true; <-answer }), time.Now())
	client := s.client()
	answered, ended := make(chan error, 1), make(chan error, 1)
	go func() {
		resp, err := client.Post("https://"+s.address+"/validate", "application/json", nil)
		if err == nil {
			err = resp.Body.Close()
		}
		answered <- err
	}()
	<-asked
	go func() { ended <- s.end() }()
	nodetest.Until(t, "no more connections are accepted", func() bool {
		conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", s.address)
		return err != nil || conn.Close() != nil
	})
	select {
	case err := <-ended:
		t.Fatalf("ended before the answer: %v", err)
	default:
	}
	close(answer)
	nodetest.OK(t, errors.Join(<-answered, <-ended))
}

// A certificate that is replaced is used for the next connection. Whatever is wrong with
// the files, the last good one stays in use, and one line of the log says so. A new one is also
// a line.
func TestCertificatesAreReadAgain(t *testing.T) {
	t.Parallel()
	s := files(t)
	cert1, key1 := issue(t, 1, time.Now())
	cert2, key2 := issue(t, 2, time.Now())
	remove := func(name string) { nodetest.OK(t, os.Remove(s.Path(name))) }
	fifo := func(name string) { nodetest.OK(t, syscall.Mkfifo(s.Path(name), 0o600)) } // which waits for nobody
	refused := func(why string) {
		t.Helper()
		_, err := LoadCertificate(s.Path("tls.crt"), s.Path("tls.key"), nil)
		nodetest.Says(t, err, why)
	}
	refused("no such file")
	fifo("tls.crt")
	refused("tls.crt: not a regular file")
	remove("tls.crt")
	s.Write("tls.crt", cert1)
	s.Write("tls.key", key2)
	refused("does not match")
	s.Write("tls.key", key1)
	c := s.load()
	want := func(serial int64, lines int, what string) {
		t.Helper()
		for range 2 {
			got, err := c.get(&tls.ClientHelloInfo{})
			nodetest.OK(t, err)
			nodetest.Equal(t, "serial number "+what, got.Leaf.SerialNumber.Int64(), serial)
		}
		nodetest.Equal(t, "lines "+what+": "+s.log.String(), s.log.Count("\n"), lines)
	}
	want(1, 0, "at the start")
	s.Write("tls.crt", cert2)
	want(1, 1, "when one file is replaced")
	s.Write("tls.key", key2)
	want(2, 2, "when both are replaced")
	remove("tls.key")
	want(2, 3, "when one is missing")
	fifo("tls.key")
	want(2, 4, "when one is a FIFO")
	remove("tls.key")
	s.Write("tls.key", key2)
	want(2, 4, "when it is back")
	s.Write("tls.crt", "-----BEGIN")
	want(2, 5, "when one is damaged")
	nodetest.Equal(t, "lines about a new certificate", s.log.Count("level=INFO"), 1)
	nodetest.Equal(t, "secrets in the log", s.log.Count("PRIVATE"), 0)
}

// The kubelet replaces the files of a Secret at once: they are in a directory to which a
// symbolic link leads, and it replaces the link.
func TestCertificateOfASecretIsReplacedByALink(t *testing.T) {
	t.Parallel()
	s := files(t)
	for i, name := range []string{"first", "second"} {
		cert, key := issue(t, int64(i+1), time.Now())
		s.Write(name+"/tls.crt", cert)
		s.Write(name+"/tls.key", key)
	}
	link := func(to, name string) {
		t.Helper()
		nodetest.OK(t, errors.Join(os.Symlink(to, s.Path("..data_tmp")), os.Rename(s.Path("..data_tmp"), s.Path(name))))
	}
	link("first", "..data")
	link("..data/tls.crt", "tls.crt")
	link("..data/tls.key", "tls.key")
	c := s.load()
	before := c.Expires()
	link("second", "..data")
	got, err := c.get(&tls.ClientHelloInfo{})
	if err != nil || got.Leaf.SerialNumber.Int64() != 2 || !c.Expires().Equal(got.Leaf.NotAfter) || c.Expires().Before(before) {
		t.Errorf("%v, %v, expires %v", got, err, c.Expires())
	}
}

// While as many requests as allowed are served, others wait until their client goes, or there is no
// time for an answer any more.
func TestRequestsAtOnceAreLimited(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		asked, answer := make(chan bool), make(chan bool)
		h := newLimited(readAll(asked, answer), 2, 100)
		codes := make(chan int, 3)
		ask := func() { code, _ := send(t.Context(), h, strings.NewReader("x")); codes <- code }
		for range 2 {
			go ask()
			<-asked
		}
		gone, cancel := context.WithCancel(t.Context())
		cancel()
		for ctx, waits := range map[context.Context]time.Duration{gone: 0, t.Context(): patience} {
			start := time.Now()
			code, text := send(ctx, h, strings.NewReader("x"))
			nodetest.Equal(t, "code of one that waits", code, http.StatusServiceUnavailable)
			nodetest.Equal(t, "waited for", time.Since(start), waits)
			nodetest.Equal(t, "it is busy", strings.Contains(text, errBusy.Error()), waits > 0)
		}
		go ask()
		answer <- true
		<-asked
		close(answer)
		for range 3 {
			nodetest.Equal(t, "code", <-codes, http.StatusOK)
		}
		synctest.Wait()
		nodetest.Equal(t, "room at the end", h.room.Load(), 100)
		nodetest.Equal(t, "turns at the end", len(h.turn), 0)
	})
}

// Clients that are slow to send their request, however many, keep no other one waiting.
func TestSlowClientsKeepNobodyWaiting(t *testing.T) {
	t.Parallel()
	asked, answer := make(chan bool, 3), make(chan bool)
	close(answer)
	h := newLimited(readAll(asked, answer), 2, 100)
	var rest []*io.PipeWriter
	codes := make(chan int, 3)
	ask := func(body io.Reader) { code, _ := send(t.Context(), h, body); codes <- code }
	for range 2 { // as many as have a turn at once
		r, w := io.Pipe()
		rest = append(rest, w)
		go ask(r)
		for _, text := range []string{"b", "e"} {
			_, err := io.WriteString(w, text) // returns when it is read: the second, when the first was
			nodetest.OK(t, err)
		}
	}
	go ask(strings.NewReader("all"))
	nodetest.Equal(t, "code", nodetest.Come(t, codes, "the answer"), http.StatusOK)
	for _, w := range rest {
		_, _ = io.WriteString(w, "gin")
		_ = w.Close()
	}
	for range rest {
		nodetest.Equal(t, "code", nodetest.Come(t, codes, "the answer"), http.StatusOK)
	}
}

// Requests for which there is no room get an error, and the next one is served when the
// others have gone. A server has room for the largest requests, and not for more than it should hold.
func TestRequestsForWhichThereIsNoRoom(t *testing.T) {
	t.Parallel()
	asked, answer := make(chan bool), make(chan bool)
	h := newLimited(readAll(asked, answer), 2, 10)
	codes := make(chan int, 2)
	ask := func(size int) int {
		code, _ := send(t.Context(), h, strings.NewReader(strings.Repeat("x", size)))
		codes <- code
		return code
	}
	go ask(6)
	<-asked
	nodetest.Equal(t, "code of 12 bytes", ask(6), http.StatusServiceUnavailable)
	<-codes
	go ask(4)
	<-asked
	close(answer)
	nodetest.Equal(t, "codes", []int{<-codes, <-codes}, []int{http.StatusOK, http.StatusOK})
	nodetest.Equal(t, "room", h.room.Load(), 10)
	go func() { <-asked }()
	for size, code := range map[int]int{maxBody: http.StatusOK, room + 1: http.StatusServiceUnavailable} {
		got, _ := send(t.Context(), pages(readAll(asked, answer), nil), io.LimitReader(zeros{}, int64(size)))
		nodetest.Equal(t, fmt.Sprintf("code of %d bytes", size), got, code)
	}
	var seen []Event // an API server that finds the webhook busy goes on without it
	busy := newLimited(Handler{Observer: func(e Event) { seen = append(seen, e) }}, 1, 1)
	nodetest.Equal(t, "code of one that is busy", post(t.Context(), busy, "application/json", strings.NewReader("{}")).Code, http.StatusServiceUnavailable)
	nodetest.Equal(t, "events", []string{seen[0].Outcome}, []string{"failed"})
}

// zeros has bytes without end.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) { return len(p), nil }
