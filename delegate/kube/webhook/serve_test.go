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
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// issue returns a new certificate for 127.0.0.1 and its key, in PEM.
func issue(t *testing.T, serial int64) (cert, key []byte) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(serial), Subject: pkix.Name{CommonName: "webhook"}, NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, private.Public(), private)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalECPrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: secret})
}

func put(t *testing.T, file string, data []byte) {
	t.Helper()
	if err := os.WriteFile(file, data, 0o600); err != nil {
		t.Fatal(err)
	}
}

// A certificate that is replaced is used for the next connection. Whatever is wrong with
// the files, the last good one stays in use, and one line of the log says so.
func TestCertificatesAreReadAgain(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	certFile, keyFile := filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")
	if _, err := LoadCertificate(certFile, keyFile, nil); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no files: %v", err)
	}
	cert1, key1 := issue(t, 1)
	cert2, key2 := issue(t, 2)
	put(t, certFile, cert1)
	put(t, keyFile, key2)
	if _, err := LoadCertificate(certFile, keyFile, nil); err == nil {
		t.Error("the key of another certificate, and no error")
	}
	put(t, keyFile, key1)
	var log bytes.Buffer
	c, err := LoadCertificate(certFile, keyFile, slog.New(slog.NewTextHandler(&log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	want := func(serial int64, lines int, what string) {
		t.Helper()
		for range 2 {
			got, err := c.Get(&tls.ClientHelloInfo{})
			if err != nil || got.Leaf.SerialNumber.Int64() != serial {
				t.Errorf("%s: %v, %v", what, got, err)
			}
		}
		if n := strings.Count(log.String(), "\n"); n != lines {
			t.Errorf("%s: %d lines, want %d\n%s", what, n, lines, log.String())
		}
	}
	want(1, 0, "at the start")
	put(t, certFile, cert2)
	want(1, 1, "when one file is replaced")
	put(t, keyFile, key2)
	want(2, 1, "when both are replaced")
	if err := os.Remove(keyFile); err != nil {
		t.Fatal(err)
	}
	want(2, 2, "when one is missing")
	put(t, keyFile, key2)
	want(2, 2, "when it is back")
	put(t, certFile, []byte("-----BEGIN"))
	want(2, 3, "when one is damaged")
	if strings.Contains(log.String(), "PRIVATE") {
		t.Errorf("a secret in the log: %s", log.String())
	}
}

// served is a server of h and a client that trusts it. end ends the server and returns
// its error.
func served(t *testing.T, h http.Handler) (client *http.Client, url string, end func() error) {
	t.Helper()
	dir := t.TempDir()
	cert, key := issue(t, 1)
	put(t, dir+"/tls.crt", cert)
	put(t, dir+"/tls.key", key)
	c, err := LoadCertificate(dir+"/tls.crt", dir+"/tls.key", nil)
	if err != nil {
		t.Fatal(err)
	}
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(cert)
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}, ForceAttemptHTTP2: true}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- Serve(ctx, l, h, c, nil) }()
	return &http.Client{Transport: transport}, "https://" + l.Addr().String(), func() error {
		cancel()
		transport.CloseIdleConnections()
		return <-ended
	}
}

// An API server asks over HTTP/2. Probes have a page, and nothing else does.
func TestServe(t *testing.T) {
	t.Parallel()
	client, url, end := served(t, handler())
	for path, code := range map[string]int{"/healthz": 200, "/validate": 405, "/": 404, "/metrics": 404} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, resp.Body)
		_ = resp.Body.Close()
		if resp.StatusCode != code || resp.ProtoMajor != 2 {
			t.Errorf("%s: %s %d", path, resp.Proto, resp.StatusCode)
		}
	}
	if err := end(); err != nil {
		t.Error(err)
	}
}

// A server that is to end answers what has been asked.
func TestServeEndsAfterTheLastAnswer(t *testing.T) {
	t.Parallel()
	asked, answer := make(chan bool), make(chan bool)
	client, url, end := served(t, http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked <- true; <-answer }))
	answered := make(chan error, 1)
	go func() {
		resp, err := client.Post(url+"/validate", "application/json", nil)
		if err == nil {
			err = resp.Body.Close()
		}
		answered <- err
	}()
	<-asked
	ended := make(chan error, 1)
	go func() { ended <- end() }()
	select {
	case err := <-ended:
		t.Fatalf("ended before the answer: %v", err)
	default:
	}
	close(answer)
	if err := errors.Join(<-answered, <-ended); err != nil {
		t.Error(err)
	}
}

// While as many requests as allowed are served, others wait, until their client goes.
func TestRequestsAtOnceAreLimited(t *testing.T) {
	t.Parallel()
	asked, answer := make(chan bool), make(chan bool)
	h := limited(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked <- true; <-answer }), 2)
	for range 2 {
		go h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/", nil))
		<-asked
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(ctx, http.MethodPost, "/", nil)) // returns
	go h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/", nil))
	answer <- true
	<-asked
	close(answer)
}
