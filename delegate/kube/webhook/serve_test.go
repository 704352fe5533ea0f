package webhook

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	nodetest "github.com/metacni/metacni/internal/test/node"
)

// A pair are the files of a certificate and its key.
type pair struct{ certFile, keyFile string }

func newPair(dir string) pair {
	return pair{filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")}
}

// issue replaces the certificate by one with another serial number.
func (p pair) issue(t *testing.T, serial int64, begin time.Time) (cert []byte) {
	t.Helper()
	cert, key := issue(t, serial, begin)
	put(t, p.certFile, cert)
	put(t, p.keyFile, key)
	return cert
}

// load loads the certificate, and returns its log.
func (p pair) load(t *testing.T) (*Certificate, *bytes.Buffer) {
	t.Helper()
	var log bytes.Buffer
	c, err := LoadCertificate(p.certFile, p.keyFile, slog.New(slog.NewTextHandler(&log, nil)))
	nodetest.OK(t, err)
	return c, &log
}

// A server is a running webhook. Clients connect to address and trust roots. end ends it
// and returns its error.
type server struct {
	pair
	address string
	roots   *x509.CertPool
	log     bytes.Buffer // complete after end
	end     func() error
}

// serve serves h with a certificate that is valid from begin.
func serve(t *testing.T, h http.Handler, begin time.Time) *server {
	t.Helper()
	s := &server{pair: newPair(t.TempDir()), roots: x509.NewCertPool()}
	s.certify(t, 1, begin)
	log := slog.New(slog.NewTextHandler(&s.log, nil))
	c, _ := s.load(t)
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	nodetest.OK(t, err)
	s.address = l.Addr().String()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- Serve(ctx, l, h, c, log) }()
	s.end = func() error {
		cancel()
		return <-ended
	}
	return s
}

// certify replaces the certificate by one that clients trust as well.
func (s *server) certify(t *testing.T, serial int64, begin time.Time) {
	t.Helper()
	s.roots.AppendCertsFromPEM(s.issue(t, serial, begin))
}

// client returns a client like an API server.
func (s *server) client() *http.Client {
	return &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: s.roots, MinVersion: tls.VersionTLS12}, ForceAttemptHTTP2: true}}
}

// get returns the answer to a GET, whose body is read.
func (s *server) get(t *testing.T, client *http.Client, path string) (resp *http.Response, body string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+s.address+path, nil)
	nodetest.OK(t, err)
	resp, err = client.Do(req)
	nodetest.OK(t, err)
	text, err := io.ReadAll(resp.Body)
	nodetest.OK(t, errors.Join(err, resp.Body.Close()))
	return resp, string(text)
}

// An API server asks over HTTP/2. Probes have two pages, and nothing else does.
func TestServe(t *testing.T) {
	t.Parallel()
	s := serve(t, handler(), time.Now())
	client := s.client()
	for path, code := range map[string]int{"/healthz": 200, "/readyz": 200, "/validate": 405, "/": 404, "/metrics": 404} {
		if resp, _ := s.get(t, client, path); resp.StatusCode != code || resp.ProtoMajor != 2 {
			t.Errorf("%s: %s %d", path, resp.Proto, resp.StatusCode)
		}
	}
	client.CloseIdleConnections()
	nodetest.OK(t, s.end())
}

// While API servers would refuse the certificate the webhook runs and is not ready. Probes
// do not look at the certificate.
func TestServerIsReadyWhileItsCertificateIsValid(t *testing.T) {
	t.Parallel()
	s := serve(t, handler(), time.Now().Add(-2*time.Hour))
	probe := func() *http.Client { // each with a connection of its own
		return &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableKeepAlives: true}} //nolint:gosec // as the kubelet
	}
	if resp, _ := s.get(t, probe(), "/healthz"); resp.StatusCode != http.StatusOK {
		t.Errorf("/healthz: %d", resp.StatusCode)
	}
	if resp, text := s.get(t, probe(), "/readyz"); resp.StatusCode != http.StatusServiceUnavailable || !strings.Contains(text, "expired at") {
		t.Errorf("/readyz: %d %s", resp.StatusCode, text)
	}
	s.certify(t, 2, time.Now())
	if resp, text := s.get(t, probe(), "/readyz"); resp.StatusCode != http.StatusOK {
		t.Errorf("/readyz with a new certificate: %d %s", resp.StatusCode, text)
	}
	nodetest.OK(t, s.end())
}

// A new certificate is for new connections. Those that are open stay open.
func TestNewCertificateCutsNoConnection(t *testing.T) {
	t.Parallel()
	s := serve(t, handler(), time.Now())
	before, after := s.client(), s.client()
	for i, client := range []*http.Client{before, after, before} {
		if resp, _ := s.get(t, client, "/healthz"); resp.TLS.PeerCertificates[0].SerialNumber.Int64() != []int64{1, 2, 1}[i] {
			t.Errorf("request %d: certificate %v", i, resp.TLS.PeerCertificates[0].SerialNumber)
		}
		if i == 0 {
			s.certify(t, 2, time.Now())
			after = s.client()
		}
	}
	before.CloseIdleConnections()
	after.CloseIdleConnections()
	nodetest.OK(t, s.end())
}

// The log says when a client refuses the certificate, for then the webhook is of no use. It
// says nothing of those that connect and go. Old versions of TLS are refused.
func TestHandshakesThatFail(t *testing.T) {
	t.Parallel()
	s := serve(t, handler(), time.Now())
	dial := func(c *tls.Config) error {
		d := tls.Dialer{Config: c}
		conn, err := d.DialContext(t.Context(), "tcp", s.address)
		if err == nil {
			err = conn.Close()
		}
		return err
	}
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", s.address)
	if err == nil {
		err = conn.Close()
	}
	nodetest.OK(t, err)
	if err := dial(&tls.Config{RootCAs: s.roots, MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS11}); err == nil { //nolint:gosec // that is the test
		t.Error("TLS 1.1 was accepted")
	}
	if err := dial(&tls.Config{RootCAs: x509.NewCertPool(), MinVersion: tls.VersionTLS12}); err == nil {
		t.Error("an unknown certificate was accepted")
	}
	if resp, _ := s.get(t, s.client(), "/healthz"); resp.StatusCode != http.StatusOK { // afterwards
		t.Error(resp.Status)
	}
	nodetest.OK(t, s.end())
	log := s.log.String()
	if strings.Count(log, "\n") != 2 || strings.Count(log, "TLS handshake error") != 2 || !strings.Contains(log, "bad certificate") || strings.Contains(log, "EOF") {
		t.Errorf("log:\n%s", log)
	}
}

// A server that is to end answers what has been asked.
func TestServeEndsAfterTheLastAnswer(t *testing.T) {
	t.Parallel()
	asked, answer := make(chan bool), make(chan bool)
	s := serve(t, http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked <- true; <-answer }), time.Now())
	client := s.client()
	answered := make(chan error, 1)
	go func() {
		resp, err := client.Post("https://"+s.address+"/validate", "application/json", nil)
		if err == nil {
			err = resp.Body.Close()
		}
		answered <- err
	}()
	<-asked
	ended := make(chan error, 1)
	go func() { ended <- s.end() }()
	for { // until no more connections are accepted
		conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", s.address)
		if err != nil {
			break
		}
		_ = conn.Close()
	}
	select {
	case err := <-ended:
		t.Fatalf("ended before the answer: %v", err)
	default:
	}
	close(answer)
	nodetest.OK(t, errors.Join(<-answered, <-ended))
}

// issue returns a new certificate for 127.0.0.1 and its key, in PEM. It is valid for an hour.
func issue(t *testing.T, serial int64, begin time.Time) (cert, key []byte) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	nodetest.OK(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(serial), Subject: pkix.Name{CommonName: "webhook"}, NotBefore: begin, NotAfter: begin.Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, private.Public(), private)
	nodetest.OK(t, err)
	secret, err := x509.MarshalECPrivateKey(private)
	nodetest.OK(t, err)
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: secret})
}

func put(t *testing.T, file string, data []byte) {
	t.Helper()
	nodetest.OK(t, os.WriteFile(file, data, 0o600))
}

// A certificate that is replaced is used for the next connection. Whatever is wrong with
// the files, the last good one stays in use, and one line of the log says so. A new one is also
// a line.
func TestCertificatesAreReadAgain(t *testing.T) {
	t.Parallel()
	p := newPair(t.TempDir())
	cert1, key1 := issue(t, 1, time.Now())
	cert2, key2 := issue(t, 2, time.Now())
	refused := func(why string) {
		t.Helper()
		_, err := LoadCertificate(p.certFile, p.keyFile, nil)
		nodetest.Says(t, err, why)
	}
	refused("no such file")
	nodetest.OK(t, syscall.Mkfifo(p.certFile, 0o600)) // which waits for nobody
	refused("tls.crt: not a regular file")
	nodetest.OK(t, os.Remove(p.certFile))
	put(t, p.certFile, cert1)
	put(t, p.keyFile, key2)
	refused("does not match")
	put(t, p.keyFile, key1)
	c, log := p.load(t)
	want := func(serial int64, lines int, what string) {
		t.Helper()
		for range 2 {
			got, err := c.get(&tls.ClientHelloInfo{})
			nodetest.OK(t, err)
			nodetest.Equal(t, "serial number "+what, got.Leaf.SerialNumber.Int64(), serial)
		}
		nodetest.Equal(t, "lines "+what+": "+log.String(), strings.Count(log.String(), "\n"), lines)
	}
	want(1, 0, "at the start")
	put(t, p.certFile, cert2)
	want(1, 1, "when one file is replaced")
	put(t, p.keyFile, key2)
	want(2, 2, "when both are replaced")
	nodetest.OK(t, os.Remove(p.keyFile))
	want(2, 3, "when one is missing")
	nodetest.OK(t, syscall.Mkfifo(p.keyFile, 0o600))
	want(2, 4, "when one is a FIFO")
	nodetest.OK(t, os.Remove(p.keyFile))
	put(t, p.keyFile, key2)
	want(2, 4, "when it is back")
	put(t, p.certFile, []byte("-----BEGIN"))
	want(2, 5, "when one is damaged")
	nodetest.Equal(t, "lines about a new certificate", strings.Count(log.String(), "level=INFO"), 1)
	nodetest.Equal(t, "a secret in the log", strings.Contains(log.String(), "PRIVATE"), false)
}

// The kubelet replaces the files of a Secret at once: they are in a directory to which a
// symbolic link leads, and it replaces the link.
func TestCertificateOfASecretIsReplacedByALink(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for i, name := range []string{"first", "second"} {
		nodetest.OK(t, os.Mkdir(filepath.Join(dir, name), 0o700))
		newPair(filepath.Join(dir, name)).issue(t, int64(i+1), time.Now())
	}
	link := func(to, name string) {
		t.Helper()
		temporary := filepath.Join(dir, "..data_tmp")
		nodetest.OK(t, errors.Join(os.Symlink(to, temporary), os.Rename(temporary, filepath.Join(dir, name))))
	}
	link("first", "..data")
	link("..data/tls.crt", "tls.crt")
	link("..data/tls.key", "tls.key")
	c, _ := newPair(dir).load(t)
	before := c.Expires()
	link("second", "..data")
	got, err := c.get(&tls.ClientHelloInfo{})
	if err != nil || got.Leaf.SerialNumber.Int64() != 2 || !c.Expires().Equal(got.Leaf.NotAfter) || c.Expires().Before(before) {
		t.Errorf("%v, %v, expires %v", got, err, c.Expires())
	}
}

// A certificate that API servers refuse is used, because there is no other. The log says so
// once, and the webhook is not ready until it is replaced.
func TestCertificateThatIsNotValidNow(t *testing.T) {
	t.Parallel()
	for want, begin := range map[string]time.Time{"expired at": time.Now().Add(-2 * time.Hour), "not valid before": time.Now().Add(time.Hour)} {
		p := newPair(t.TempDir())
		p.issue(t, 1, begin)
		c, log := p.load(t)
		for range 2 {
			if got, err := c.get(&tls.ClientHelloInfo{}); err != nil || got == nil {
				t.Errorf("%v, %v", got, err)
			}
		}
		if n := strings.Count(log.String(), want); n != 1 || strings.Count(log.String(), "\n") != 1 {
			t.Errorf("%d lines that say %s\n%s", n, want, log.String())
		}
		nodetest.Says(t, c.ready(), want)
		p.issue(t, 2, time.Now())
		if _, err := c.get(&tls.ClientHelloInfo{}); err != nil || c.ready() != nil {
			t.Errorf("replaced: %v, %v", err, c.ready())
		}
	}
}
