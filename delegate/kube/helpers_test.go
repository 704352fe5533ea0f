package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"

	kubetest "github.com/metacni/metacni/internal/test/kube"
	nodetest "github.com/metacni/metacni/internal/test/node"
	"github.com/metacni/metacni/netconf/nad"
)

const config = `{"cniVersion":"1.1.0","name":"storage","type":"bridge"}`

func newServer(t *testing.T) *kubetest.Server {
	t.Helper()
	s := kubetest.NewServer(scheme.Codecs.UniversalDeserializer().Decode)
	t.Cleanup(s.Close)
	return s
}

// open opens a View of the server, or of that in c.Kubeconfig.
func open(t *testing.T, s *kubetest.Server, c Config) *View {
	t.Helper()
	if c.Kubeconfig == "" && s != nil {
		file, err := s.Kubeconfig(t.TempDir())
		nodetest.OK(t, err)
		c.Kubeconfig = file
	}
	v, err := Open(t.Context(), c)
	nodetest.OK(t, err)
	t.Cleanup(v.Close)
	return v
}

// synced opens a View of the server, and waits until it has synced.
func synced(t *testing.T, s *kubetest.Server, c Config) *View {
	t.Helper()
	v := open(t, s, c)
	awaitSync(t, v)
	return v
}

// awaitSync waits until everything that v watches has been complete.
func awaitSync(t *testing.T, v *View) {
	t.Helper()
	synced := v.definitions.store.awaitSync(t.Context())
	if v.pods != nil && v.pods.watched.Load() {
		synced = synced && v.pods.store.awaitSync(t.Context())
	}
	if !synced {
		t.Fatal("not synced")
	}
}

// until waits until do does true. It looks again after each change of the store.
func until[T any](t *testing.T, p *part[T], do func() bool) {
	t.Helper()
	for {
		next := p.store.next()
		if do() {
			return
		}
		<-next
	}
}

// has wants a View to have a definition.
func has(t *testing.T, v *View, want nad.Definition) {
	t.Helper()
	got, err := v.Definition(t.Context(), want.Ref)
	nodetest.OK(t, err)
	nodetest.Equal(t, "definition", got, want)
}

// unknown wants the error of a look-up that cannot be answered now.
func unknown(tb testing.TB, err error) {
	tb.Helper()
	nodetest.Is(tb, err, ErrNotSynced)
	nodetest.Code(tb, err, 11)
}

func ref(namespace, name string) nad.Ref { return nad.Ref{Namespace: namespace, Name: name} }

func storage(s *kubetest.Server) nad.Definition {
	d := kubetest.Put(s, kubetest.Definition{
		Namespace: "blue", Name: "storage", Config: config,
		Annotations: map[string]string{nad.ResourceAnnotation: "intel.com/sriov", "other": "x"},
	})
	return nad.Definition{Ref: ref("blue", "storage"), UID: d.UID, Version: d.Version, Config: config, Resource: "intel.com/sriov"}
}

func pod(uid string, edit func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "blue", Name: "web", UID: types.UID(uid)},
		Spec:       corev1.PodSpec{NodeName: "n1", Containers: []corev1.Container{{Name: "c", Image: "i"}}},
	}
	if edit != nil {
		edit(p)
	}
	return p
}

// A fakeAPI is a server in the bubble of its client, so that time stands still for it.
type fakeAPI struct {
	*testing.T // that of the bubble
	*kubetest.Server
	start time.Time
	seen  int // requests that were taken
}

// A request is one that was made.
type request struct {
	At   time.Duration // since the start
	Name string        // of the pod
	Body string
}

// fail makes the next requests fail, one or fault.Times of them.
func (a *fakeAPI) fail(faults ...kubetest.Fault) {
	for _, f := range faults {
		f.Times = max(f.Times, 1)
		a.Break(f)
	}
}

// take returns the requests since the last take.
func (a *fakeAPI) take() (all []request) {
	got := a.Requests()
	for _, r := range got[a.seen:] {
		all = append(all, request{r.Time.Sub(a.start), r.Name, r.Body})
	}
	a.seen = len(got)
	return all
}

// refusal is how an API server says why it refuses a request, with the fields that are wrong.
func refusal(code int, reason metav1.StatusReason, fields ...string) kubetest.Fault {
	return kubetest.Fault{Status: code, Body: fmt.Sprintf(`{"kind":"Status","apiVersion":"v1","status":"Failure","reason":%q,"code":%d,
		"message":"refused","details":{"causes":[{"field":%q}]}}`, reason, code, strings.Join(fields, ""))}
}

// records are those of sandboxes, by container ID.
type records struct {
	mu  sync.Mutex
	all map[string]Status
	err error
}

// change changes the records, or makes them unreadable.
func (r *records) change(do func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	do()
}

func (r *records) recorded(_ context.Context, pod nad.Pod) (Status, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.all[pod.Container], r.err
}

// running runs until the test calls stop, and at its end.
func running(tb testing.TB, run func(context.Context)) (stop func()) {
	tb.Helper()
	ctx, cancel := context.WithCancel(tb.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		run(ctx)
	}()
	stop = func() { cancel(); <-done }
	tb.Cleanup(stop)
	return stop
}

// A bench is a writer whose time stands still, with Events that are not sent.
type bench struct {
	testing.TB
	*StatusWriter
	records
	api    *fakeAPI
	events *Events
	stop   func()
}

// bubble tests a writer in a bubble of package synctest. Its View has the pods that are shown.
func bubble(t *testing.T, c StatusConfig, test func(b *bench)) {
	t.Helper()
	faked(t, func(api *fakeAPI, v *View) {
		b := &bench{TB: api, api: api, events: v.NewEvents(nad.Pod{}), records: records{all: map[string]Status{}}}
		c.Desired, c.Events = b.recorded, b.events
		b.StatusWriter = v.NewStatusWriter(c)
		b.stop = running(b, b.Run)
		test(b)
	})
}

// set records a sandbox. The API server has the pod.
func (b *bench) set(id string, s Status) {
	name := strings.TrimPrefix(id, "c-")
	if kubetest.Get[corev1.Pod](b.api.Server, "blue", name) == nil {
		kubetest.Put(b.api.Server, podObject(aPod(name), "", ""))
	}
	b.records.change(func() { b.all[id] = s })
}

// added records a sandbox of the pod of that name and says so.
func (b *bench) added(name string) nad.Pod {
	pod := aPod(name)
	b.set(pod.Container, aStatus(name))
	b.Changed(pod)
	return pod
}

// wantRequests fails the test unless there were n requests since the last look at them.
func (b *bench) wantRequests(n int, when string) {
	b.Helper()
	nodetest.Equal(b, "requests "+when, len(b.api.take()), n)
}

// wantTimes fails the test unless requests were made at these times. A pause that an answer
// asks for may be up to half as long again.
func wantTimes(tb testing.TB, faults []kubetest.Fault, want, got []time.Duration) {
	tb.Helper()
	if len(got) != len(want) {
		tb.Errorf("requests at %v, want %v", got, want)
		return
	}
	for i := 1; i < len(want); i++ {
		least := want[i] - want[i-1]
		most := least
		if faults[0].RetryAfter > 0 {
			most += least / 2
		}
		if pause := got[i] - got[i-1]; pause < least || pause > most {
			tb.Errorf("request %d after %v, want it after %v to %v", i, pause, least, most)
		}
	}
}

// settle lets d pass, and waits until all is done that is to be done then.
func settle(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func aPod(name string) nad.Pod {
	return nad.Pod{Namespace: "blue", Name: name, UID: "uid-" + name, Container: "c-" + name}
}

func aStatus(text string) Status {
	return Status{Annotation: `[{"name":"` + text + `"}]`, Created: time.Now()}
}

// patchOf is the request that writes the status of a pod.
func patchOf(pod nad.Pod, s Status) string {
	text, _ := json.Marshal(s.Annotation) //nolint:errchkjson // a string
	uid := ""
	if pod.UID != "" {
		uid = `"uid":"` + pod.UID + `",`
	}
	return `{"metadata":{` + uid + `"annotations":{"k8s.v1.cni.cncf.io/network-status":` + string(text) + `}}}`
}

// faked runs test in a bubble of package synctest with a server, and a View that has synced and
// whose watches are silent.
func faked(t *testing.T, test func(api *fakeAPI, v *View)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		api := &fakeAPI{T: t, Server: kubetest.New(scheme.Codecs.UniversalDeserializer().Decode), start: time.Now()}
		test(api, api.view(t))
	})
}

// view returns a View of a that has synced. It watches nothing.
func (a *fakeAPI) view(tb testing.TB) *View {
	tb.Helper()
	ctx := tb.Context()
	v := &View{config: Config{Node: "n1", NADWait: -1, PodWait: -1}, log: slog.New(slog.DiscardHandler), ctx: ctx}
	nodetest.OK(tb, v.clients())
	for _, c := range []client{v.core, v.events, v.nads} {
		c.group.(*rest.RESTClient).Client = &http.Client{Transport: a} //nolint:forcetypeassert // what clients makes
	}
	v.definitions = newPart(ctx, v, resource{client: v.nads, name: definitionResource}, keepDefinition)
	v.pods = newPart(ctx, v, resource{client: v.core, name: "pods"}, keepPod)
	v.pods.watched.Store(true)
	nodetest.OK(tb, errors.Join(v.definitions.store.Replace(nil, "1"), v.pods.store.Replace(nil, "1")))
	return v
}

// names are the pods of requests.
func names(all []request) (names []string) {
	for _, r := range all {
		names = append(names, r.Name)
	}
	return names
}

// times are those of requests.
func times(all []request) (times []time.Duration) {
	for _, r := range all {
		times = append(times, r.At)
	}
	return times
}
