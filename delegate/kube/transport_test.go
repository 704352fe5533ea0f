package kube

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/go-logr/logr/funcr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/klog/v2"

	kubetest "github.com/metacni/metacni/internal/test/kube"
	nodetest "github.com/metacni/metacni/internal/test/node"
	"github.com/metacni/metacni/netconf/nad"
	"github.com/metacni/metacni/status"
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
			_, err := tr.session()
			nodetest.Says(t, err, "not a regular file")
			nodetest.OK(t, os.Remove(path))
			write(t, path, head+"clusters: [{name: c, cluster: {server: 'https://127.0.0.1:1'}}]\nusers: [{name: u, user: {token: x}}]\n")
			_, err = tr.session()
			nodetest.OK(t, err)
			nodetest.OK(t, os.Remove(path))
			nodetest.OK(t, syscall.Mkfifo(path, 0o600))
			_, err = tr.session()
			nodetest.Says(t, err, "not a regular file")
		})
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

// cutOff answers each request with the beginning of an object.
func cutOff(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", "1000")
	_, _ = w.Write([]byte(`{"kind":`))
}

// A meter counts the bytes of answers.
type meter struct {
	http.RoundTripper

	bytes atomic.Int64
}

func (m *meter) RoundTrip(q *http.Request) (*http.Response, error) {
	r, err := m.RoundTripper.RoundTrip(q)
	if err == nil {
		data, e := io.ReadAll(r.Body)
		_ = r.Body.Close()
		m.bytes.Add(int64(len(data)))
		r.Body, err = io.NopCloser(bytes.NewReader(data)), e
	}
	return r, err
}

// A pod has a long spec and a long status, of which nothing is needed.
func TestTheAnswerToAStatusIsNotTheWholePod(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	v := synced(t, s, Config{})
	p := aPod("web")
	kubetest.Put(s, pod(p.UID, func(o *corev1.Pod) {
		o.Spec.Containers[0].Args = []string{strings.Repeat("x", 1<<16)}
	}))
	m := &meter{RoundTripper: v.transport.now.next}
	v.transport.now.next = m
	version, err := v.NewStatusWriter(StatusConfig{}).send(t.Context(), p, p.UID, "text")
	if after := kubetest.Get[corev1.Pod](s, "blue", "web"); err != nil || version != after.ResourceVersion || after.Annotations[status.NetworkStatusAnnotation] != "text" {
		t.Errorf("version %q, %v, of %+v", version, err, after.ObjectMeta)
	}
	if text, err := v.NetworkStatus(t.Context(), p); text != "text" || err != nil {
		t.Errorf("%q, %v", text, err)
	}
	if n := m.bytes.Load(); n == 0 || n > 2000 {
		t.Errorf("%d bytes for two answers", n)
	}
}

// client-go has a lot to say about an answer that ends early.
func TestNoRequestLogsByItself(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(cutOff))
	t.Cleanup(server.Close)
	var mu sync.Mutex
	var said []string
	ctx := klog.NewContext(t.Context(), funcr.New(func(prefix, args string) {
		mu.Lock()
		defer mu.Unlock()
		said = append(said, prefix+args)
	}, funcr.Options{Verbosity: 10}))
	v := &View{config: Config{Node: "n1"}, log: Config{}.logger(), transport: newTransport(Config{}), ctx: ctx}
	address, err := url.Parse(server.URL)
	nodetest.OK(t, err)
	v.transport.now = &session{stamp: stamp(), server: address, next: server.Client().Transport}
	nodetest.OK(t, v.clients())
	v.definitions = newPart(ctx, v, resource{client: v.nads, name: definitionResource}, keepDefinition)
	v.pods = newPart(ctx, v, resource{client: v.core, name: "pods", list: func() runtime.Object { return &corev1.PodList{} }}, keepPod)
	for name, request := range map[string]func() error{
		"a definition": func() error { _, err := v.liveDefinition(ctx, ref("a", "b")); return err },
		"a pod":        func() error { _, err := v.livePod(ctx, aPod("web")); return err },
		"its status":   func() error { _, err := v.NetworkStatus(ctx, aPod("web")); return err },
		"to write it":  func() error { _, err := v.NewStatusWriter(StatusConfig{}).send(ctx, aPod("web"), "u", "x"); return err },
		"a taint":      func() error { _, err := v.removeTaint(ctx, "key"); return err },
		"an Event":     func() error { return v.NewEvents(nad.Pod{}).post(ctx, event{about: podReference(aPod("web"))}) },
		"all pods":     func() error { _, err := v.pods.source.list(ctx, metav1.ListOptions{}); return err },
		"a watch": func() error {
			w, err := v.pods.source.watch(ctx, metav1.ListOptions{})
			if err == nil {
				err = apierrors.FromObject((<-w.ResultChan()).Object)
			}
			return err
		},
	} {
		if err := request(); err == nil {
			t.Errorf("the request for %s has not failed", name)
		}
		if len(said) > 0 {
			t.Errorf("the request for %s has logged %q", name, said)
			said = nil
		}
	}
}
