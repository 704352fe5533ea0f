package webhook

import (
	"crypto/tls"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/metacni/metacni/internal/nodetest"
)

// A FIFO in the place of a file waits for nobody, at the start or later.
func TestCertificatesAreRegularFiles(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"tls.crt", "tls.key"} {
		dir := t.TempDir()
		certFile, keyFile, fifo := filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key"), filepath.Join(dir, name)
		replace := func() {
			t.Helper()
			nodetest.OK(t, os.Remove(fifo))
			nodetest.OK(t, syscall.Mkfifo(fifo, 0o600))
		}
		cert, key := issue(t, 1)
		put(t, certFile, cert)
		put(t, keyFile, key)
		c, err := LoadCertificate(certFile, keyFile, nil)
		nodetest.OK(t, err)
		replace()
		if got, err := c.get(&tls.ClientHelloInfo{}); err != nil || got.Leaf.SerialNumber.Int64() != 1 {
			t.Errorf("%s: %v, %v", name, got, err)
		}
		if _, err := LoadCertificate(certFile, keyFile, nil); err == nil || !strings.Contains(err.Error(), name+": not a regular file") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
