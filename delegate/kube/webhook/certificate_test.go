package webhook

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"log/slog"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/metacni/metacni/internal/nodetest"
)

// issue returns a new certificate for 127.0.0.1 and its key, in PEM. It is valid for an hour.
func issue(t *testing.T, serial int64) (cert, key []byte) {
	t.Helper()
	return issueFor(t, serial, time.Now())
}

// issueFor returns a certificate that is valid for an hour.
func issueFor(t *testing.T, serial int64, begin time.Time) (cert, key []byte) {
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
	nodetest.OK(t, err)
	want := func(serial int64, lines int, what string) {
		t.Helper()
		for range 2 {
			got, err := c.get(&tls.ClientHelloInfo{})
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
	want(2, 2, "when both are replaced")
	nodetest.OK(t, os.Remove(keyFile))
	want(2, 3, "when one is missing")
	put(t, keyFile, key2)
	want(2, 3, "when it is back")
	put(t, certFile, []byte("-----BEGIN"))
	want(2, 4, "when one is damaged")
	if n := strings.Count(log.String(), "level=INFO"); n != 1 {
		t.Errorf("%d lines about a new certificate\n%s", n, log.String())
	}
	if strings.Contains(log.String(), "PRIVATE") {
		t.Errorf("a secret in the log: %s", log.String())
	}
}

// The kubelet replaces the files of a Secret at once: they are in a directory to which a
// symbolic link leads, and it replaces the link.
func TestCertificateOfASecretIsReplacedByALink(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for i, name := range []string{"first", "second"} {
		cert, key := issue(t, int64(i+1))
		nodetest.OK(t, os.Mkdir(filepath.Join(dir, name), 0o700))
		put(t, filepath.Join(dir, name, "tls.crt"), cert)
		put(t, filepath.Join(dir, name, "tls.key"), key)
	}
	link := func(to, name string) {
		t.Helper()
		temporary := filepath.Join(dir, "..data_tmp")
		nodetest.OK(t, errors.Join(os.Symlink(to, temporary), os.Rename(temporary, filepath.Join(dir, name))))
	}
	link("first", "..data")
	link("..data/tls.crt", "tls.crt")
	link("..data/tls.key", "tls.key")
	c, err := LoadCertificate(filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key"), nil)
	nodetest.OK(t, err)
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
		dir := t.TempDir()
		certFile, keyFile := filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")
		cert, key := issueFor(t, 1, begin)
		put(t, certFile, cert)
		put(t, keyFile, key)
		var log bytes.Buffer
		c, err := LoadCertificate(certFile, keyFile, slog.New(slog.NewTextHandler(&log, nil)))
		nodetest.OK(t, err)
		for range 2 {
			if got, err := c.get(&tls.ClientHelloInfo{}); err != nil || got == nil {
				t.Errorf("%v, %v", got, err)
			}
		}
		if n := strings.Count(log.String(), want); n != 1 || strings.Count(log.String(), "\n") != 1 {
			t.Errorf("%d lines that say %s\n%s", n, want, log.String())
		}
		if err := c.ready(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("ready: %v", err)
		}
		cert, key = issue(t, 2)
		put(t, certFile, cert)
		put(t, keyFile, key)
		if _, err := c.get(&tls.ClientHelloInfo{}); err != nil || c.ready() != nil {
			t.Errorf("replaced: %v, %v", err, c.ready())
		}
	}
}
