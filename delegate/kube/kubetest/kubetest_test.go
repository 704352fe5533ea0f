package kubetest_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	typedeventsv1 "k8s.io/client-go/kubernetes/typed/events/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/metacni/metacni/delegate/kube/kubetest"
)

func newServer(t *testing.T) *kubetest.Server {
	t.Helper()
	s := kubetest.NewServer()
	t.Cleanup(s.Close)
	return s
}

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
	if err != nil {
		t.Fatal(err)
	}
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
	if err != nil {
		t.Fatal(err)
	}
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
		"a bookmark":          {before: (*kubetest.Server).Bookmark},
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
			if err := s.Wait(t.Context(), func() bool { return s.Watches("pods") == 1 }); err != nil {
				t.Fatal(err)
			}
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
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.Stop)
	return w
}

func TestWaitEndsWithItsContext(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancelCause(t.Context())
	cause := errors.New("cause")
	cancel(cause)
	if err := newServer(t).Wait(ctx, func() bool { return false }); !errors.Is(err, cause) {
		t.Error(err)
	}
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
		if err != nil {
			t.Fatal(err)
		}
		conf, err := clientcmd.BuildConfigFromFlags("", path)
		if err != nil {
			t.Fatal(err)
		}
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

func TestEventsAreKeptInTheirOrder(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	c := typedeventsv1.NewForConfigOrDie(s.Config())
	for _, name := range []string{"b", "a"} {
		e := &eventsv1.Event{
			ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "ns"}, EventTime: metav1.NowMicro(), Type: "Normal", Reason: "R",
			Action: "A", ReportingController: "c.example", ReportingInstance: "i", Regarding: corev1.ObjectReference{Namespace: "ns", Name: "p"},
		}
		if _, err := c.Events("ns").Create(t.Context(), e, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := c.Events("ns").Patch(t.Context(), "b", types.StrategicMergePatchType, []byte(`{"series":{"count":2,"lastObservedTime":"2026-01-01T00:00:00.000000Z"}}`), metav1.PatchOptions{}); err != nil {
		t.Error(err)
	}
	got := s.Events()
	if len(got) != 2 || got[0].Name != "b" || got[1].Name != "a" || got[0].Series == nil || got[0].Series.Count != 2 {
		t.Errorf("%+v", got)
	}
}

func TestDefinitions(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	d := s.SetDefinition(kubetest.Definition{Namespace: "ns", Name: "net", Config: `{"a":1}`, Annotations: map[string]string{"k": "v"}})
	s.SetDefinition(kubetest.Definition{Namespace: "ns", Name: "file"})
	get := func(path string) (string, error) {
		data, err := client(t, s, true).RESTClient().Get().AbsPath("/apis/k8s.cni.cncf.io/v1/" + path).DoRaw(t.Context())
		return string(data), err
	}
	if got, err := get("namespaces/ns/network-attachment-definitions/net"); err != nil || !strings.Contains(got, `"spec":{"config":"{\"a\":1}"}`) ||
		!strings.Contains(got, d.UID) || !strings.Contains(got, `"resourceVersion":"`+d.Version+`"`) {
		t.Error(got, err)
	}
	if got, err := get("network-attachment-definitions"); err != nil || strings.Count(got, `"spec"`) != 1 || strings.Count(got, `"uid"`) != 2 {
		t.Error(got, err)
	}
	s.DeleteDefinition("ns", "net")
	if got, err := get("namespaces/ns/network-attachment-definitions/net"); !apierrors.IsNotFound(err) {
		t.Error(got, err)
	}
}
