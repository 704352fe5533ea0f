package kube

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/client-go/kubernetes/scheme"

	kubetest "github.com/metacni/metacni/internal/test/kube"
	nodetest "github.com/metacni/metacni/internal/test/node"
	"github.com/metacni/metacni/netconf/nad"
)

// A broken API server: every request fails in this way.
func outages() map[string]func(*kubetest.Server) (heal func()) {
	fault := func(f kubetest.Fault) func(*kubetest.Server) func() {
		return func(s *kubetest.Server) func() { return s.Break(f) }
	}
	return map[string]func(*kubetest.Server) func(){
		"refuses connections":         func(s *kubetest.Server) func() { s.Stop(); return s.Start },
		"drops packets":               fault(kubetest.Fault{BlackHole: true}),
		"cuts connections":            fault(kubetest.Fault{Cut: true}),
		"answers 401":                 func(s *kubetest.Server) func() { s.SetToken("new"); return func() { s.SetToken("") } },
		"answers 403":                 fault(kubetest.Fault{Status: http.StatusForbidden}),
		"answers 404":                 fault(kubetest.Fault{Status: http.StatusNotFound}),
		"answers 429":                 fault(kubetest.Fault{Status: http.StatusTooManyRequests, RetryAfter: time.Second}),
		"answers 500":                 fault(kubetest.Fault{Status: http.StatusInternalServerError}),
		"answers late":                fault(kubetest.Fault{Delay: 3 * time.Second}),
		"answers with rubbish":        fault(kubetest.Fault{Body: "<html>welcome</html>"}),
		"answers with nothing":        fault(kubetest.Fault{Body: " "}),
		"answers with an empty":       fault(kubetest.Fault{Body: "{}"}),
		"answers with a list of none": fault(kubetest.Fault{Body: `{"kind":"NetworkAttachmentDefinitionList","apiVersion":"k8s.cni.cncf.io/v1","metadata":{},"items":[]}`}),
		"answers with a list of others": fault(kubetest.Fault{
			Body: `{"kind":"ConfigMapList","apiVersion":"v1","metadata":{"resourceVersion":"7"},"items":[{"metadata":{"name":"p"}}]}`,
		}),
		"answers with a Status":          fault(kubetest.Fault{Body: `{"kind":"Status","apiVersion":"v1","status":"Success"}`}),
		"cuts watches before they begin": fault(kubetest.Fault{Verb: "watch", Cut: true}),
	}
}

func TestAViewThatHasNeverSyncedKnowsNothingAndRecovers(t *testing.T) {
	t.Parallel()
	for name, fail := range outages() {
		if name == "cuts watches before they begin" {
			continue // a LIST is enough to sync
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newServer(t)
			d := storage(s)
			file, err := s.Kubeconfig(t.TempDir())
			nodetest.OK(t, err)
			heal := fail(s)
			v := openConfig(t, Config{Kubeconfig: file, Node: "node1", Pods: true})
			ctx, cancel := context.WithTimeout(t.Context(), 400*time.Millisecond)
			defer cancel()
			_, err = v.Definition(ctx, d.Ref)
			unknown(t, err)
			_, err = v.Pod(ctx, nad.Pod{Namespace: "blue", Name: "web", UID: "u1"})
			unknown(t, err)
			for _, r := range v.Resources() {
				if r.Synced {
					t.Errorf("synced: %+v", r)
				}
			}
			if testing.Short() && name != "refuses connections" {
				return
			}
			if name != "answers late" { // that is good enough
				heal()
			}
			awaitSync(t, v)
			has(t, v, d)
		})
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

func TestAViewThatHasSyncedAnswersDuringAnOutage(t *testing.T) {
	t.Parallel()
	for name, fail := range outages() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newServer(t)
			d := storage(s)
			v := synced(t, s, Config{NADWait: -1})
			heal := fail(s)
			defer heal()
			s.CutWatches("")
			has(t, v, d)
			if name == "answers late" || strings.HasPrefix(name, "cuts watches") {
				return // it can be asked for others
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			_, err := v.Definition(ctx, ref("blue", "other"))
			for errors.Is(err, ErrNotFound) && ctx.Err() == nil { // the end of the watch may not be known yet
				_, err = v.Definition(ctx, ref("blue", "other"))
			}
			unknown(t, err)
		})
	}
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
				_, gone := v.definitions.store.get(keyOf(d.Ref))
				_, came := v.definitions.store.get(keyOf(ref("blue", "other")))
				return !gone && came
			})
		})
	}
}

func TestAKubeconfigIsReadWhenItCanBe(t *testing.T) {
	t.Parallel()
	for name, before := range map[string]string{
		"it is missing":         "",
		"it is empty":           "\n",
		"it is not YAML":        "{{{",
		"it has no context":     "apiVersion: v1\nkind: Config\n",
		"it is of another kind": "apiVersion: v1\nkind: Pod\n",
		"its token is old":      "old token",
		"its server is another": "apiVersion: v1\nkind: Config\ncurrent-context: c\ncontexts: [{name: c, context: {cluster: c}}]\nclusters: [{name: c, cluster: {server: 'https://127.0.0.1:1'}}]\n",
		"its CA is another":     "other CA",
		"its CA is missing":     "apiVersion: v1\nkind: Config\ncurrent-context: c\ncontexts: [{name: c, context: {cluster: c}}]\nclusters: [{name: c, cluster: {server: 'https://127.0.0.1:1', certificate-authority: none.pem}}]\n",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newServer(t)
			s.SetToken("secret")
			d := storage(s)
			dir := t.TempDir()
			file, err := s.Kubeconfig(t.TempDir())
			nodetest.OK(t, err)
			good, err := os.ReadFile(file)
			nodetest.OK(t, err)
			switch before {
			case "old token":
				before = strings.Replace(string(good), "secret", "expired", 1)
			case "other CA":
				other, err := newServer(t).Kubeconfig(t.TempDir())
				nodetest.OK(t, err)
				bad, err := os.ReadFile(other)
				nodetest.OK(t, err)
				before = strings.Replace(string(bad), "https://", "https://127.0.0.2:1/", 1)
			}
			path := filepath.Join(dir, "kubeconfig")
			if before != "" {
				write(t, path, before)
			}
			var requests atomic.Int64
			v := openConfig(t, Config{Kubeconfig: path, Observer: func(Request) { requests.Add(1) }})
			for requests.Load() < 2 { // it has been tried
				runtime.Gosched()
			}
			write(t, path, string(good))
			awaitSync(t, v)
			has(t, v, d)
		})
	}
}

func TestAKubeconfigOfAnotherClusterReplacesTheView(t *testing.T) {
	t.Parallel()
	for name, initial := range map[string]bool{"by a watch": true, "by a list": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			first, second := newServer(t), newServer(t)
			old := storage(first)
			for range 10 { // of a higher version than what the first cluster has
				kubetest.Put(second, kubetest.Definition{Namespace: "blue", Name: "other", Config: config})
			}
			if !initial {
				second.Break(kubetest.Fault{NoSendInitialEvents: true})
			}
			file, err := first.Kubeconfig(t.TempDir())
			nodetest.OK(t, err)
			v := openConfig(t, Config{Kubeconfig: file, NADWait: -1})
			awaitSync(t, v)
			if _, err := second.Kubeconfig(filepath.Dir(file)); err != nil {
				t.Fatal(err)
			}
			if _, err := v.Definition(t.Context(), ref("blue", "other")); err != nil { // the next request notices
				t.Error(err)
			}
			until(t, v.definitions, func() bool {
				_, there := v.definitions.store.get(keyOf(ref("blue", "other")))
				_, still := v.definitions.store.get(keyOf(old.Ref))
				return there && !still
			})
			nodetest.OK(t, first.Wait(t.Context(), func() bool { return first.Watches() == 0 }))
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

func TestAPodWithoutItsServiceAccountIsTriedAgain(t *testing.T) {
	t.Setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
	t.Setenv("KUBERNETES_SERVICE_PORT", "1")
	var log logText
	v := openConfig(t, Config{Logger: slog.New(slog.NewTextHandler(&log, nil))})
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	_, err := v.Definition(ctx, ref("blue", "storage"))
	unknown(t, err)
	for !strings.Contains(log.String(), "no credentials") {
		runtime.Gosched()
	}
}

// Not parallel: it looks at all goroutines.
func TestEveryGoroutineEndsWithTheView(t *testing.T) {
	for name, fail := range outages() {
		t.Run(name, func(t *testing.T) {
			s := kubetest.NewServer(scheme.Codecs.UniversalDeserializer().Decode)
			heal := fail(s)
			v := open(t, s, Config{Node: "node1", Pods: true, Mirror: t.TempDir(), Logger: slog.New(slog.DiscardHandler)})
			ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
			defer cancel()
			_, _ = v.Definition(ctx, ref("blue", "storage"))
			v.Close()
			heal()
			s.Close()
			var left []byte
			for end := time.Now().Add(2 * time.Minute); time.Now().Before(end); runtime.Gosched() {
				if left = ours(); left == nil {
					return
				}
			}
			t.Errorf("still running:\n%s", left)
		})
	}
}

// ours returns the stack of a goroutine of a View, its clients or their connections.
func ours() []byte {
	all := make([]byte, 1<<20)
	all = all[:runtime.Stack(all, true)]
	for stack := range bytes.SplitSeq(all, []byte("\n\n")) {
		for _, part := range []string{"client-go", "delegate/kube.(", "net/http.(*persistConn)", "net/http.(*http2ClientConn)"} {
			if bytes.Contains(stack, []byte(part)) && !bytes.Contains(stack, []byte("testing.tRunner")) {
				return stack
			}
		}
	}
	return nil
}
