package kube

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	goruntime "runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr/funcr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
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
	v := &View{config: Config{Node: "n1"}, log: slog.New(slog.DiscardHandler), transport: newTransport(Config{}), ctx: ctx}
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

// A look-up takes a quarter of the time that there is, so that others can follow.
func TestALookUpTakesAPartOfTheTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 4*time.Second)
		defer cancel()
		for _, tt := range []struct {
			ctx         context.Context
			limit, want time.Duration
		}{{ctx, time.Hour, time.Second}, {ctx, time.Millisecond, time.Millisecond}, {t.Context(), time.Minute, time.Minute}} {
			start := time.Now()
			waiting, cancel := within(tt.ctx, tt.limit)
			<-waiting.Done()
			cancel()
			nodetest.Equal(t, "got", time.Since(start), tt.want)
		}
	})
}

func TestAChangeDuringAnOutageIsSeenAfterIt(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]func(*kubetest.Server){
		"the watch is cut":                   func(*kubetest.Server) {},
		"the version of the view has passed": (*kubetest.Server).Compact,
		"initial events are refused": func(s *kubetest.Server) {
			s.Compact()
			s.Break(kubetest.Fault{NoSendInitialEvents: true})
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newServer(t)
			d := storage(s)
			v := synced(t, s, Config{NADWait: -1})
			s.Stop()
			kubetest.Delete[kubetest.Definition](s, "blue", "storage")
			kubetest.Put(s, kubetest.Definition{Namespace: "blue", Name: "other", Config: config})
			test(s)
			s.Start()
			until(t, v.definitions, func() bool {
				_, gone := v.definitions.store.get(types.NamespacedName(d.Ref))
				_, came := v.definitions.store.get(types.NamespacedName(ref("blue", "other")))
				return !gone && came
			})
		})
	}
}

// write replaces a file.
func write(t *testing.T, path, text string) {
	t.Helper()
	nodetest.OK(t, os.WriteFile(path+".new", []byte(text), 0o600))
	nodetest.OK(t, os.Rename(path+".new", path))
}

func TestAConfigThatCanNeverWorkIsRefused(t *testing.T) {
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	for name, c := range map[string]Config{
		"neither a kubeconfig nor a cluster": {},
		"pods of no node":                    {Kubeconfig: "/none", Pods: true},
		"a mirror at a relative path":        {Kubeconfig: "/none", Mirror: "mirror"},
		"a negative age":                     {Kubeconfig: "/none", MaxViewAge: -1},
		"no controller of Events":            {Kubeconfig: "/none", UserAgent: "x/1.0 (linux/amd64)"},
	} {
		if v, err := Open(t.Context(), c); err == nil {
			v.Close()
			t.Errorf("%s: no error", name)
		}
	}
}

// ours returns the stack of a goroutine of a View, its clients or their connections.
func ours() []byte {
	all := make([]byte, 1<<20)
	all = all[:goruntime.Stack(all, true)]
	for stack := range bytes.SplitSeq(all, []byte("\n\n")) {
		for _, part := range []string{"client-go", "delegate/kube.(", "net/http.(*persistConn)", "net/http.(*http2ClientConn)"} {
			if bytes.Contains(stack, []byte(part)) && !bytes.Contains(stack, []byte("testing.tRunner")) {
				return stack
			}
		}
	}
	return nil
}

// A broken API server: every request fails in this way.
func outages() map[string]func(*kubetest.Server) (heal func()) {
	all := map[string]func(*kubetest.Server) func(){
		"refuses connections": func(s *kubetest.Server) func() { s.Stop(); return s.Start },
		"answers 401":         func(s *kubetest.Server) func() { s.SetToken("new"); return func() { s.SetToken("") } },
	}
	for name, fault := range map[string]kubetest.Fault{
		"drops packets":        {BlackHole: true},
		"cuts connections":     {Cut: true},
		"answers 403":          {Status: http.StatusForbidden},
		"answers 429":          {Status: http.StatusTooManyRequests},
		"answers 500":          {Status: http.StatusInternalServerError},
		"answers late":         {Delay: 500 * time.Millisecond},
		"answers with rubbish": {Body: "<html>welcome</html>"},
		"answers with nothing": {Body: " "},
		"answers with a list of none": {
			Body: `{"kind":"NetworkAttachmentDefinitionList","apiVersion":"k8s.cni.cncf.io/v1","metadata":{},"items":[]}`,
		},
		"answers with a list of others": {
			Body: `{"kind":"ConfigMapList","apiVersion":"v1","metadata":{"resourceVersion":"7"},"items":[{"metadata":{"name":"p"}}]}`,
		},
		"answers with a Status":          {Body: `{"kind":"Status","apiVersion":"v1","status":"Success"}`},
		"cuts watches before they begin": {Verb: "watch", Cut: true},
	} {
		all[name] = func(s *kubetest.Server) func() { return s.Break(fault) }
	}
	return all
}

// A View that has never synced knows nothing, and recovers. One that has synced answers during the next
// outage, and says of nothing else that it does not exist.
func TestAViewDuringAnOutage(t *testing.T) {
	t.Parallel()
	for name, fail := range outages() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newServer(t)
			d := storage(s)
			file, err := s.Kubeconfig(t.TempDir())
			nodetest.OK(t, err)
			heal := fail(s)
			v := open(t, nil, Config{Kubeconfig: file, Node: "n1", Pods: true, NADWait: -1})
			answers, lists := name == "answers late", strings.HasPrefix(name, "cuts watches") // that is good enough
			if !lists {
				ended, end := context.WithCancel(t.Context())
				end()
				_, err = v.Definition(ended, d.Ref)
				unknown(t, err)
				_, err = v.Pod(ended, web("u1"))
				unknown(t, err)
				switch {
				case strings.HasPrefix(name, "answers with"): // a list that is not taken for one is asked for again
					nodetest.OK(t, s.Wait(t.Context(), func() bool { return s.Count("list", definitionResource) > 1 }))
				case name != "refuses connections":
					nodetest.OK(t, s.Wait(t.Context(), func() bool { return len(s.Requests()) > 0 }))
				}
				for _, r := range v.Resources() {
					if r.Synced && !answers {
						t.Errorf("synced: %+v", r)
					}
				}
			}
			if !answers && !lists {
				heal()
			}
			awaitSync(t, v)
			has(t, v, d)
			defer fail(s)()
			s.CutWatches("")
			has(t, v, d)
			if answers || lists {
				return // it can be asked for others
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			_, err = v.Definition(ctx, ref("blue", "other"))
			for errors.Is(err, ErrNotFound) && ctx.Err() == nil { // the end of the watch may not be known yet
				_, err = v.Definition(ctx, ref("blue", "other"))
			}
			unknown(t, err)
		})
	}
}

// Not parallel: it looks at all goroutines.
func TestEveryGoroutineEndsWithTheView(t *testing.T) {
	for name, fail := range outages() {
		t.Run(name, func(t *testing.T) {
			s := newServer(t)
			defer fail(s)()
			v := open(t, s, Config{Node: "n1", Pods: true, Mirror: t.TempDir()})
			if name != "refuses connections" {
				nodetest.OK(t, s.Wait(t.Context(), func() bool { return len(s.Requests()) > 1 }))
			}
			v.Close()
			s.Close()
			nodetest.Until(t, "all end", func() bool { return ours() == nil })
		})
	}
}

func TestAPodWithoutItsServiceAccountIsTriedAgain(t *testing.T) {
	t.Setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
	t.Setenv("KUBERNETES_SERVICE_PORT", "1")
	log := &nodetest.Log{}
	v := open(t, nil, Config{Logger: slog.New(slog.NewTextHandler(log, nil))})
	ended, end := context.WithCancel(t.Context())
	end()
	_, err := v.Definition(ended, ref("blue", "storage"))
	unknown(t, err)
	nodetest.Until(t, "it is logged", func() bool { return log.Count("no credentials") > 0 })
}

func TestAKubeconfigIsReadWhenItCanBe(t *testing.T) {
	t.Parallel()
	const none = "apiVersion: v1\nkind: Config\ncurrent-context: c\ncontexts: [{name: c, context: {cluster: c}}]\nclusters: [{name: c, cluster: {server: 'https://127.0.0.1:1'"
	for name, change := range map[string]func(good string) string{
		"it is missing":         func(string) string { return "" },
		"it is not YAML":        func(string) string { return "{{{" },
		"it has no context":     func(string) string { return "apiVersion: v1\nkind: Config\n" },
		"it is of another kind": func(string) string { return "apiVersion: v1\nkind: Pod\n" },
		"its token is old":      func(good string) string { return strings.Replace(good, "secret", "expired", 1) },
		"its server is another": func(string) string { return none + "}}]\n" },
		"its CA is missing":     func(string) string { return none + ", certificate-authority: none.pem}}]\n" },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newServer(t)
			s.SetToken("secret")
			d := storage(s)
			file, err := s.Kubeconfig(t.TempDir())
			nodetest.OK(t, err)
			good, err := os.ReadFile(file)
			nodetest.OK(t, err)
			path := filepath.Join(t.TempDir(), "kubeconfig")
			if before := change(string(good)); before != "" {
				write(t, path, before)
			}
			tried := make(chan Request, 100)
			v := open(t, nil, Config{Kubeconfig: path, Observer: func(r Request) { tried <- r }})
			nodetest.Come(t, tried, "an attempt")
			write(t, path, string(good))
			awaitSync(t, v)
			has(t, v, d)
		})
	}
}

// What the first cluster had goes, whether a watch or a list says so.
func TestAKubeconfigOfAnotherClusterReplacesTheView(t *testing.T) {
	t.Parallel()
	for name, initial := range map[string]bool{"by a watch": true, "by a list": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			first, second := newServer(t), newServer(t)
			old, other := storage(first), ref("blue", "other")
			for range 10 { // of a higher version than what the first cluster has
				kubetest.Put(second, kubetest.Definition{Namespace: "blue", Name: "other", Config: config})
			}
			if !initial {
				second.Break(kubetest.Fault{NoSendInitialEvents: true})
			}
			file, err := first.Kubeconfig(t.TempDir())
			nodetest.OK(t, err)
			v := synced(t, nil, Config{Kubeconfig: file, NADWait: -1})
			_, err = second.Kubeconfig(filepath.Dir(file))
			nodetest.OK(t, err)
			_, err = v.Definition(t.Context(), other) // the next request notices
			nodetest.OK(t, err)
			until(t, v.definitions, func() bool {
				_, there := v.definitions.store.get(types.NamespacedName(other))
				_, still := v.definitions.store.get(types.NamespacedName(old.Ref))
				return there && !still
			})
			nodetest.OK(t, first.Wait(t.Context(), func() bool { return first.Watches() == 0 }))
		})
	}
}

func TestRequestsAreNamedInTheWordsOfARole(t *testing.T) {
	t.Parallel()
	for target, want := range map[string]Request{
		"GET /api/v1/pods?watch=true&fieldSelector=x":                                   {Verb: "watch", Resource: "pods"},
		"GET /api/v1/namespaces/blue/pods":                                              {Verb: "list", Resource: "pods"},
		"GET /api/v1/namespaces/blue/pods/web":                                          {Verb: "get", Resource: "pods"},
		"PATCH /api/v1/namespaces/blue/pods/web/status":                                 {Verb: "patch", Resource: "pods/status"},
		"POST /apis/events.k8s.io/v1/namespaces/blue/events":                            {Verb: "create", Resource: "events"},
		"DELETE /apis/k8s.cni.cncf.io/v1/namespaces/b/network-attachment-definitions/n": {Verb: "delete", Resource: "network-attachment-definitions"},
		"PUT /api/v1/namespaces/blue/pods/web":                                          {Verb: "update", Resource: "pods"},
		"GET /api/v1/namespaces/blue":                                                   {Verb: "get", Resource: "namespaces"},
		"GET /version":                                                                  {Verb: "get"},
		"GET /":                                                                         {Verb: "get"},
	} {
		method, path, _ := strings.Cut(target, " ")
		req, err := http.NewRequestWithContext(t.Context(), method, path, nil)
		nodetest.OK(t, err)
		nodetest.Equal(t, target, described(req), want)
	}
}
