package webhook

import (
	"bytes"
	"crypto/tls"
	"fmt"
	"log/slog"
	"os"
	"sync"
)

// A Certificate is a TLS certificate in two files, which are read again for each handshake:
// a certificate that is renewed needs no restart. Use [LoadCertificate] to make one.
// Goroutines may share it.
type Certificate struct {
	certFile, keyFile string
	log               *slog.Logger

	mu        sync.Mutex // guards the following
	cert, key []byte     // what was read last
	bad       error      // why that cannot be used
	current   *tls.Certificate
	said      string // of the last failure, in the log
}

// LoadCertificate reads a certificate, with those of intermediate authorities, and its key:
// files in PEM. It fails if they cannot be read or do not belong together. Later failures
// are a line in the log, and the certificate that was read before stays in use. A nil log
// gets none.
func LoadCertificate(certFile, keyFile string, log *slog.Logger) (*Certificate, error) {
	c := &Certificate{certFile: certFile, keyFile: keyFile, log: orNone(log)}
	if err := c.load(); err != nil {
		return nil, err
	}
	return c, nil
}

// Get returns the certificate as the files have it. It is a GetCertificate of
// [tls.Config].
func (c *Certificate) Get(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	text := ""
	if err := c.load(); err != nil {
		text = err.Error()
	}
	if text != "" && text != c.said {
		c.log.WarnContext(hello.Context(), "the certificate cannot be read again, the last one stays in use", "error", text)
	}
	c.said = text
	return c.current, nil
}

// load reads the files, and parses them if they have changed. While one of them is
// replaced they may not belong together.
func (c *Certificate) load() error {
	cert, err := os.ReadFile(c.certFile)
	if err != nil {
		return fmt.Errorf("certificate: %w", err)
	}
	key, err := os.ReadFile(c.keyFile)
	if err != nil {
		return fmt.Errorf("key: %w", err)
	}
	if bytes.Equal(cert, c.cert) && bytes.Equal(key, c.key) {
		return c.bad
	}
	c.cert, c.key, c.bad = cert, key, nil
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		c.bad = fmt.Errorf("%s and %s: %w", c.certFile, c.keyFile, err)
		return c.bad
	}
	c.current = &pair
	return nil
}
