package webhook

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/metacni/metacni/delegate/kube/internal/bounded"
)

// A Certificate is a TLS certificate in two files, which are read again for each handshake:
// a certificate that is renewed needs no restart. Use [LoadCertificate] to make one.
// Goroutines may share it.
type Certificate struct {
	certFile, keyFile string
	log               *slog.Logger

	mu        sync.Mutex // guards the following
	cert, key []byte     // the files of current
	current   *tls.Certificate
	said      string // of the last failure, in the log
}

// LoadCertificate reads a certificate, with those of intermediate authorities, and its key:
// regular files in PEM. It fails if they cannot be read or do not belong together. Later failures
// are a line in the log, and the certificate that was read before stays in use. That a
// certificate has expired, or is not valid yet, is also a line when it is used. A nil log
// gets none.
func LoadCertificate(certFile, keyFile string, log *slog.Logger) (*Certificate, error) {
	c := &Certificate{certFile: certFile, keyFile: keyFile, log: orNone(log)}
	if err := c.load(); err != nil {
		return nil, err
	}
	return c, nil
}

// get returns the certificate as the files have it. It is a GetCertificate of
// [tls.Config].
func (c *Certificate) get(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	before := c.current
	if err := c.load(); err != nil {
		c.complain(hello.Context(), "the last certificate stays in use", err)
	} else {
		c.complain(hello.Context(), refused, c.valid())
	}
	if c.current != before {
		c.log.InfoContext(hello.Context(), "certificate replaced", "expires", c.current.Leaf.NotAfter)
	}
	return c.current, nil
}

// Expires returns when the certificate that is in use expires.
func (c *Certificate) Expires() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.current.Leaf.NotAfter
}

// ready fails while API servers refuse the certificate that is in use.
func (c *Certificate) ready() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.valid()
}

// valid fails outside of the time for which the certificate was made.
func (c *Certificate) valid() error {
	leaf, now := c.current.Leaf, time.Now()
	switch {
	case now.After(leaf.NotAfter):
		return fmt.Errorf("%s expired at %s", c.certFile, leaf.NotAfter.Format(time.RFC3339))
	case now.Before(leaf.NotBefore):
		return fmt.Errorf("%s is not valid before %s", c.certFile, leaf.NotBefore.Format(time.RFC3339))
	}
	return nil
}

// refused is the effect of a certificate that is not valid.
const refused = "API servers refuse the certificate"

// complain logs err and its effect, unless it is nil or the log has it already.
func (c *Certificate) complain(ctx context.Context, effect string, err error) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	if text != "" && text != c.said {
		c.log.WarnContext(ctx, effect, "error", text)
	}
	c.said = text
}

// load reads the files, and parses them if they have changed. While one of them is
// replaced they may not belong together.
func (c *Certificate) load() error {
	cert, err := bounded.ReadFile(c.certFile)
	if err != nil {
		return fmt.Errorf("certificate: %w", err)
	}
	key, err := bounded.ReadFile(c.keyFile)
	if err != nil {
		return fmt.Errorf("key: %w", err)
	}
	if bytes.Equal(cert, c.cert) && bytes.Equal(key, c.key) {
		return nil
	}
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return fmt.Errorf("%s and %s: %w", c.certFile, c.keyFile, err)
	}
	c.cert, c.key, c.current = cert, key, &pair
	return nil
}
