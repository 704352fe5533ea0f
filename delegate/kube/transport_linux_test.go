package kube

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/metacni/metacni/internal/nodetest"
)

// A FIFO in the place of a file waits for nobody. When the file is back, the credentials are
// read.
func TestCredentialsAreRegularFiles(t *testing.T) {
	t.Parallel()
	const head = "apiVersion: v1\nkind: Config\ncurrent-context: c\ncontexts: [{name: c, context: {cluster: c, user: u}}]\n"
	for name, text := range map[string]string{
		"the kubeconfig": "",
		"the CA":         "clusters: [{name: c, cluster: {server: 'https://127.0.0.1:1', certificate-authority: fifo}}]\n",
		"a certificate":  "users: [{name: u, user: {client-certificate: fifo, client-key: none}}]\nclusters: [{name: c, cluster: {server: 'https://127.0.0.1:1'}}]\n",
		"a key":          "users: [{name: u, user: {client-certificate: none, client-key: fifo}}]\nclusters: [{name: c, cluster: {server: 'https://127.0.0.1:1'}}]\n",
		"a token":        "users: [{name: u, user: {tokenFile: fifo}}]\nclusters: [{name: c, cluster: {server: 'https://127.0.0.1:1'}}]\n",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			fifo := filepath.Join(dir, "fifo")
			nodetest.OK(t, syscall.Mkfifo(fifo, 0o600))
			path := fifo
			if text != "" {
				path = filepath.Join(dir, "kubeconfig")
				write(t, path, head+text)
			}
			tr := newTransport(Config{Kubeconfig: path})
			defer tr.close()
			if err := tr.check(); err == nil || !strings.Contains(err.Error(), "not a regular file") {
				t.Fatalf("a FIFO: %v", err)
			}
			nodetest.OK(t, os.Remove(path))
			write(t, path, head+"clusters: [{name: c, cluster: {server: 'https://127.0.0.1:1'}}]\nusers: [{name: u, user: {token: x}}]\n")
			if err := tr.check(); err != nil {
				t.Errorf("mended: %v", err)
			}
			nodetest.OK(t, os.Remove(path))
			nodetest.OK(t, syscall.Mkfifo(path, 0o600))
			if err := tr.check(); err == nil || !strings.Contains(err.Error(), "not a regular file") {
				t.Errorf("a FIFO, later: %v", err)
			}
		})
	}
}
