package kubetest_test

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/metacni/metacni/delegate/kube/kubetest"
	"github.com/metacni/metacni/internal/nodetest"
)

func pod(name, node string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name},
		Spec:       corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: "c", Image: "i"}}},
	}
}

// client returns a client in the one form of the wire or the other.
func client(t *testing.T, s *kubetest.Server, protobuf bool) *typedcorev1.CoreV1Client {
	t.Helper()
	c := s.Config()
	if protobuf {
		c.ContentConfig = rest.ContentConfig{
			AcceptContentTypes: "application/vnd.kubernetes.protobuf,application/json",
			ContentType:        "application/vnd.kubernetes.protobuf",
		}
	}
	client, err := typedcorev1.NewForConfig(c)
	nodetest.OK(t, err)
	return client
}

func forms(t *testing.T, f func(t *testing.T, protobuf bool)) {
	t.Helper()
	for name, protobuf := range map[string]bool{"JSON": false, "protobuf": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f(t, protobuf)
		})
	}
}

// informer starts an informer of the pods of node n1.
func informer(t *testing.T, c *typedcorev1.CoreV1Client) cache.SharedInformer {
	t.Helper()
	lw := cache.NewListWatchFromClient(c.RESTClient(), "pods", "", fields.OneTermEqualSelector("spec.nodeName", "n1"))
	i := cache.NewSharedInformer(lw, &corev1.Pod{}, 0)
	go i.RunWithContext(t.Context())
	return i
}

// annotation waits until the informer has seen the value.
func annotation(t *testing.T, s *kubetest.Server, i cache.SharedInformer, want string) {
	t.Helper()
	seen := make(chan struct{}, 1)
	h, err := i.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(o any) {
			if p, ok := o.(*corev1.Pod); ok && p.Annotations["a"] == want {
				seen <- struct{}{}
			}
		},
		UpdateFunc: func(_, o any) {
			if p, ok := o.(*corev1.Pod); ok && p.Annotations["a"] == want {
				seen <- struct{}{}
			}
		},
	})
	nodetest.OK(t, err)
	defer i.RemoveEventHandler(h)
	select {
	case <-seen:
	case <-t.Context().Done():
	case <-time.After(30 * time.Second):
		t.Fatalf("the informer has not seen %q; requests: %v", want, s.Requests())
	}
}

func set(s *kubetest.Server, value string) {
	p := pod("p", "n1")
	p.Annotations = map[string]string{"a": value}
	s.SetPod(p)
}

func TestAnInformerFollowsTheServer(t *testing.T) {
	t.Parallel()
	forms(t, func(t *testing.T, protobuf bool) {
		t.Helper()
		s := newServer(t)
		set(s, "1")
		s.SetPod(pod("elsewhere", "n2"))
		i := informer(t, client(t, s, protobuf))
		annotation(t, s, i, "1")
		set(s, "2")
		annotation(t, s, i, "2")
		if n := len(i.GetStore().ListKeys()); n != 1 || s.Count("list", "") != 0 {
			t.Errorf("%d pods, requests %v", n, s.Requests())
		}
	})
}

func TestAnInformerSurvives(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		before, after func(s *kubetest.Server) // the pod changes
		list          bool                     // the informer needs one
	}{
		"watches cut":         {before: func(s *kubetest.Server) { s.CutWatches("pods") }},
		"a history forgotten": {before: func(s *kubetest.Server) { s.Compact(); s.CutWatches("pods") }},
		"a restart":           {before: (*kubetest.Server).Stop, after: (*kubetest.Server).Start},
		"refused initial events": {before: func(s *kubetest.Server) {
			s.Break(kubetest.Fault{NoSendInitialEvents: true})
			s.Compact()
			s.CutWatches("")
		}, list: true},
		"a watch with a status": {before: func(s *kubetest.Server) {
			s.Break(kubetest.Fault{Verb: "watch", Status: 500, Times: 1})
			s.CutWatches("")
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newServer(t)
			set(s, "1")
			i := informer(t, client(t, s, true))
			annotation(t, s, i, "1")
			c.before(s)
			set(s, "2")
			if c.after != nil {
				c.after(s)
			}
			annotation(t, s, i, "2")
			if c.list && s.Count("list", "pods") == 0 {
				t.Error("no list")
			}
		})
	}
}

// open starts a watch of all pods.
func open(t *testing.T, s *kubetest.Server, version string) watch.Interface {
	t.Helper()
	w, err := client(t, s, true).Pods("").Watch(t.Context(), metav1.ListOptions{ResourceVersion: version, AllowWatchBookmarks: true})
	nodetest.OK(t, err)
	t.Cleanup(w.Stop)
	return w
}

func newServer(t *testing.T) *kubetest.Server {
	t.Helper()
	s := kubetest.NewServer()
	t.Cleanup(s.Close)
	return s
}

const right = `{"metadata":{"annotations":{"a":"b"}}}`

func TestRequestsAreCounted(t *testing.T) {
	t.Parallel()
	forms(t, func(t *testing.T, protobuf bool) {
		t.Helper()
		s := newServer(t)
		s.SetPod(pod("p", "n1"))
		c := client(t, s, protobuf)
		p, err := c.Pods("ns").Patch(t.Context(), "p", types.MergePatchType, []byte(right), metav1.PatchOptions{}, "status")
		if err != nil || p.Annotations["a"] != "b" || s.Pod("ns", "p").Annotations["a"] != "b" {
			t.Fatal(p, err)
		}
		got := s.Requests()
		if len(got) != 1 || s.Count("patch", "pods/status") != 1 || s.Count("", "pods") != 0 {
			t.Fatal(got)
		}
		want := kubetest.Request{Verb: "patch", Resource: "pods/status", Namespace: "ns", Name: "p", UserAgent: got[0].UserAgent, Body: right}
		if got[0] != want || !strings.Contains(want.UserAgent, "kubetest") {
			t.Errorf("%+v", got[0])
		}
	})
}

func TestAKubeconfigHasTheTokenThatIsAskedFor(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	s.SetPod(pod("p", "n1"))
	for _, token := range []string{"", "one", "two"} {
		s.SetToken(token)
		path, err := s.Kubeconfig(t.TempDir())
		nodetest.OK(t, err)
		conf, err := clientcmd.BuildConfigFromFlags("", path)
		nodetest.OK(t, err)
		c := typedcorev1.NewForConfigOrDie(conf)
		if _, err := c.Pods("ns").Get(t.Context(), "p", metav1.GetOptions{}); err != nil {
			t.Error(err)
		}
		s.SetToken("other")
		if _, err := c.Pods("ns").Get(t.Context(), "p", metav1.GetOptions{}); !apierrors.IsUnauthorized(err) {
			t.Error(err)
		}
	}
}

func TestAPodWithAnotherUIDReplacesTheOldOne(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	first := s.SetPod(pod("p", "n1"))
	again := s.SetPod(pod("p", "n1"))
	other := pod("p", "n1")
	other.UID = "other"
	w := open(t, s, again.ResourceVersion)
	s.SetPod(other)
	var got []watch.EventType
	for range 3 {
		got = append(got, (<-w.ResultChan()).Type)
	}
	if !slices.Equal(got, []watch.EventType{watch.Modified, watch.Deleted, watch.Added}) {
		t.Error(got)
	}
	if first.UID != again.UID || s.Pod("ns", "p").UID != "other" {
		t.Error(first.UID, again.UID)
	}
}

func TestAWatchThatWasSilentSendsWhatItHasMissed(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	heal := s.Break(kubetest.Fault{Silent: true, Resource: "pods"})
	w := open(t, s, s.SetPod(pod("first", "n1")).ResourceVersion)
	p := s.SetPod(pod("p", "n1"))
	select {
	case e := <-w.ResultChan():
		t.Errorf("%v from a silent watch", e)
	default:
	}
	heal()
	e := <-w.ResultChan()
	if got, ok := e.Object.(*corev1.Pod); e.Type != watch.Added || !ok || got.ResourceVersion != p.ResourceVersion {
		t.Error(e)
	}
}

func TestCloseEndsWhatTheServerHolds(t *testing.T) {
	t.Parallel()
	for name, fault := range map[string]kubetest.Fault{
		"requests":      {BlackHole: true, Verb: "get"},
		"late requests": {Delay: time.Hour},
		"watches":       {},
		"connections":   {BlackHole: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newServer(t)
			s.SetPod(pod("p", "n1"))
			w := open(t, s, "")
			s.Break(fault)
			c, ended := client(t, s, true), make(chan error, 1)
			go func() {
				get := c.RESTClient().Get().Namespace("ns").Resource("pods").Name("p").MaxRetries(0)
				ended <- get.Do(t.Context()).Error()
			}()
			if name != "connections" {
				nodetest.OK(t, s.Wait(t.Context(), func() bool { return s.Count("get", "pods") == 1 }))
			}
			s.Close()
			if err := <-ended; err == nil && name != "watches" {
				t.Error("no error")
			}
			for range w.ResultChan() { // until it ends
			}
		})
	}
}

func TestFaults(t *testing.T) {
	t.Parallel()
	short := func(t *testing.T) context.Context {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		t.Cleanup(cancel)
		return ctx
	}
	for name, c := range map[string]struct {
		fault kubetest.Fault
		short bool
		is    func(error) bool
	}{
		"401":                        {fault: kubetest.Fault{Status: http.StatusUnauthorized}, is: apierrors.IsUnauthorized},
		"403":                        {fault: kubetest.Fault{Status: http.StatusForbidden}, is: apierrors.IsForbidden},
		"429":                        {fault: kubetest.Fault{Status: http.StatusTooManyRequests, RetryAfter: time.Hour}, short: true},
		"429 without a time":         {fault: kubetest.Fault{Status: http.StatusTooManyRequests}, is: apierrors.IsTooManyRequests},
		"500":                        {fault: kubetest.Fault{Status: http.StatusInternalServerError}, is: apierrors.IsInternalError},
		"rubbish":                    {fault: kubetest.Fault{Body: "<html>"}},
		"a connection cut":           {fault: kubetest.Fault{Cut: true}},
		"a delay":                    {fault: kubetest.Fault{Delay: time.Hour}, short: true},
		"a black hole":               {fault: kubetest.Fault{BlackHole: true}, short: true},
		"a black hole for one thing": {fault: kubetest.Fault{BlackHole: true, Verb: "get", Resource: "pods"}, short: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newServer(t)
			s.SetPod(pod("p", "n1"))
			client := client(t, s, true)
			heal := s.Break(c.fault)
			ctx := t.Context()
			if c.short {
				ctx = short(t)
			}
			if _, err := client.Pods("ns").Get(ctx, "p", metav1.GetOptions{}); err == nil || c.is != nil && !c.is(err) {
				t.Errorf("error %v", err)
			}
			heal()
			heal()
			if _, err := client.Pods("ns").Get(t.Context(), "p", metav1.GetOptions{}); err != nil {
				t.Errorf("healed: %v", err)
			}
		})
	}
}

func TestAHealedFaultServesTheRequestsThatItHolds(t *testing.T) {
	t.Parallel()
	for name, fault := range map[string]kubetest.Fault{
		"black hole": {BlackHole: true, Resource: "pods"},
		"late error": {Delay: time.Hour, Status: 500},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newServer(t)
			s.SetPod(pod("p", "n1"))
			heal := s.Break(fault)
			c, ended := client(t, s, true), make(chan error, 1)
			go func() {
				_, err := c.Pods("ns").Get(t.Context(), "p", metav1.GetOptions{})
				ended <- err
			}()
			nodetest.OK(t, s.Wait(t.Context(), func() bool { return s.Count("get", "pods") == 1 }))
			heal()
			if err := <-ended; err != nil {
				t.Error(err)
			}
		})
	}
}

func TestAFaultConcernsItsRequestsAlone(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	s.SetPod(pod("p", "n1"))
	c := client(t, s, false)
	s.Break(kubetest.Fault{Status: 403, Times: 1})
	s.Break(kubetest.Fault{Status: 500, Times: 1})
	s.Break(kubetest.Fault{Verb: "list", Status: 500})
	s.Break(kubetest.Fault{Resource: "events", Status: 500})
	for i, is := range []func(error) bool{apierrors.IsForbidden, apierrors.IsInternalError, func(err error) bool { return err == nil }} {
		if _, err := c.Pods("ns").Get(t.Context(), "p", metav1.GetOptions{}); !is(err) {
			t.Errorf("request %d: %v", i, err)
		}
	}
}

func TestAStoppedServerRefusesConnectionsAndKeepsItsObjects(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	s.SetPod(pod("p", "n1"))
	c, url := client(t, s, false), s.URL
	s.Stop()
	s.Stop()
	if _, err := c.Pods("ns").Get(t.Context(), "p", metav1.GetOptions{}); err == nil || !strings.Contains(err.Error(), "refused") {
		t.Error(err)
	}
	s.Start()
	s.Start()
	if _, err := c.Pods("ns").Get(t.Context(), "p", metav1.GetOptions{}); err != nil || s.URL != url {
		t.Error(err, s.URL, url)
	}
}
