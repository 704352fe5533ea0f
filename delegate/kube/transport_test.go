package kube

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/metacni/metacni/internal/kubetest"
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
			if _, err := tr.session(); err == nil || !strings.Contains(err.Error(), "not a regular file") {
				t.Fatalf("a FIFO: %v", err)
			}
			nodetest.OK(t, os.Remove(path))
			write(t, path, head+"clusters: [{name: c, cluster: {server: 'https://127.0.0.1:1'}}]\nusers: [{name: u, user: {token: x}}]\n")
			if _, err := tr.session(); err != nil {
				t.Errorf("mended: %v", err)
			}
			nodetest.OK(t, os.Remove(path))
			nodetest.OK(t, syscall.Mkfifo(path, 0o600))
			if _, err := tr.session(); err == nil || !strings.Contains(err.Error(), "not a regular file") {
				t.Errorf("a FIFO, later: %v", err)
			}
		})
	}
}

func TestRequestsAreObservedInTheWordsOfARole(t *testing.T) {
	t.Parallel()
	for target, want := range map[string]Request{
		"GET /api/v1/pods?watch=true&fieldSelector=x":                                   {Verb: "watch", Resource: "pods"},
		"GET /api/v1/namespaces/blue/pods":                                              {Verb: "list", Resource: "pods"},
		"GET /api/v1/namespaces/blue/pods/web":                                          {Verb: "get", Resource: "pods"},
		"PATCH /api/v1/namespaces/blue/pods/web/status":                                 {Verb: "patch", Resource: "pods/status"},
		"POST /apis/events.k8s.io/v1/namespaces/blue/events":                            {Verb: "create", Resource: "events"},
		"DELETE /apis/k8s.cni.cncf.io/v1/namespaces/b/network-attachment-definitions/n": {Verb: "delete", Resource: definitionResource},
		"PUT /api/v1/namespaces/blue/pods/web":                                          {Verb: "update", Resource: "pods"},
		"GET /api/v1/namespaces/blue":                                                   {Verb: "get", Resource: "namespaces"},
		"GET /version":                                                                  {Verb: "get"},
		"GET /":                                                                         {Verb: "get"},
	} {
		var method, path string
		for i := range target {
			if target[i] == ' ' {
				method, path = target[:i], target[i+1:]
			}
		}
		req, err := http.NewRequestWithContext(t.Context(), method, "http://api"+path, nil)
		nodetest.OK(t, err)
		nodetest.Equal(t, target, requestOf(req), want)
	}
}

func TestTheObserverIsToldOfEachRequest(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	var mu sync.Mutex
	seen := make(map[Request]int)
	s.Break(kubetest.Fault{Verb: "get", Cut: true, Times: 1})
	v := open(t, s, Config{NADWait: -1, Observer: func(r Request) {
		mu.Lock()
		defer mu.Unlock()
		seen[r]++
	}})
	awaitSync(t, v)
	for range 2 {
		_, _ = v.Definition(t.Context(), ref("blue", "storage"))
	}
	v.Close()
	want := map[Request]int{
		{Verb: "watch", Resource: definitionResource, Code: 200}: 1,
		{Verb: "get", Resource: definitionResource}:              1,
		{Verb: "get", Resource: definitionResource, Code: 404}:   1,
	}
	mu.Lock()
	defer mu.Unlock()
	nodetest.Equal(t, "requests", seen, want)
}
