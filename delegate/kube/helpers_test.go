package kube

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"os"
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

// open opens a View of the server.
func open(t *testing.T, s *kubetest.Server, c Config) *View {
	t.Helper()
	file, err := s.Kubeconfig(t.TempDir())
	nodetest.OK(t, err)
	c.Kubeconfig = file
	return openConfig(t, c)
}

// synced opens a View of the server, and waits until it has synced.
func synced(t *testing.T, s *kubetest.Server, c Config) *View {
	t.Helper()
	v := open(t, s, c)
	awaitSync(t, v)
	return v
}

func openConfig(t *testing.T, c Config) *View {
	t.Helper()
	v, err := Open(t.Context(), c)
	nodetest.OK(t, err)
	t.Cleanup(v.Close)
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

// briefly returns a context for what never comes.
func briefly(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	t.Cleanup(cancel)
	return ctx
}

// has wants a View to have a definition.
func has(t *testing.T, v *View, want nad.Definition) {
	t.Helper()
	got, err := v.Definition(t.Context(), want.Ref)
	nodetest.OK(t, err)
	nodetest.Equal(t, "definition", got, want)
}

// loaded wants a mirror to have a definition.
func loaded(t *testing.T, dir string, want nad.Definition) {
	t.Helper()
	got, err := nad.Load(os.DirFS(dir), want.Ref)
	nodetest.OK(t, err)
	nodetest.Equal(t, "definition in the mirror", got, want)
}

// unknown wants the error of a look-up that cannot be answered now.
func unknown(t *testing.T, err error) {
	t.Helper()
	nodetest.Is(t, err, ErrNotSynced)
	nodetest.Code(t, err, 11)
}

func keyOf(r nad.Ref) types.NamespacedName { return types.NamespacedName(r) }

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
		Spec:       corev1.PodSpec{NodeName: "node1", Containers: []corev1.Container{{Name: "c", Image: "i"}}},
	}
	if edit != nil {
		edit(p)
	}
	return p
}

// A fakeAPI is a server in the bubble of its client, so that time stands still for it.
type fakeAPI struct {
	*kubetest.Server
	start time.Time
	seen  int // requests that were taken
	heals []func()
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
		a.heals = append(a.heals, a.Break(f))
	}
}

// heal makes all later requests go well.
func (a *fakeAPI) heal() {
	for _, heal := range a.heals {
		heal()
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

// times returns when the requests since the last take were made.
func (a *fakeAPI) times() (all []time.Duration) {
	for _, r := range a.take() {
		all = append(all, r.At)
	}
	return all
}

// names returns the pods of the requests since the last take.
func (a *fakeAPI) names() (all []string) {
	for _, r := range a.take() {
		all = append(all, r.Name)
	}
	return all
}

// count returns how many requests there were since the last take.
func (a *fakeAPI) count() int { return len(a.take()) }

// refusal is how an API server says why it refuses a request, with the fields that are wrong.
func refusal(code int, reason metav1.StatusReason, fields ...string) kubetest.Fault {
	s := metav1.Status{
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure,
		Reason: reason, Code: int32(code), Message: "refused", Details: &metav1.StatusDetails{}, //nolint:gosec // an HTTP status
	}
	for _, field := range fields {
		s.Details.Causes = append(s.Details.Causes, metav1.StatusCause{Field: field})
	}
	text, err := json.Marshal(s)
	if err != nil {
		panic(err)
	}
	return kubetest.Fault{Status: code, Body: string(text)}
}

// newFakeAPI returns a server, and a view of it without watches.
func newFakeAPI(tb testing.TB) (*fakeAPI, *View) {
	tb.Helper()
	a := &fakeAPI{Server: kubetest.New(scheme.Codecs.UniversalDeserializer().Decode), start: time.Now()}
	return a, a.view(tb)
}

// view returns a view of a, without watches.
func (a *fakeAPI) view(tb testing.TB) *View {
	tb.Helper()
	v := &View{config: Config{Node: "n1"}, log: slog.New(slog.DiscardHandler), ctx: tb.Context()}
	nodetest.OK(tb, v.clients())
	for _, c := range []client{v.core, v.events} {
		c.group.(*rest.RESTClient).Client = &http.Client{Transport: a} //nolint:forcetypeassert // what clients makes
	}
	return v
}

// records are those of sandboxes, by container ID.
type records struct {
	mu  sync.Mutex
	all map[string]Status
	err error
}

func (r *records) set(id string, s Status) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.all == nil {
		r.all = map[string]Status{}
	}
	r.all[id] = s
}

func (r *records) unreadable(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.err = err
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

// bubble tests a writer in a bubble of package synctest.
func bubble(t *testing.T, c StatusConfig, test func(b *bench)) {
	t.Helper()
	bubbleOf(t, false, c, test)
}

// bubbleWithPods is bubble with a View that has the pods that are shown.
func bubbleWithPods(t *testing.T, test func(b *bench)) {
	t.Helper()
	bubbleOf(t, true, StatusConfig{}, test)
}

func bubbleOf(t *testing.T, pods bool, c StatusConfig, test func(b *bench)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		api, v := newFakeAPI(t)
		b := &bench{TB: t, api: api, events: v.NewEvents(nad.Pod{})}
		if pods {
			v.pods, v.definitions = &part[Pod]{store: newStore(keepPod)}, &part[known]{store: newStore(keepDefinition)}
		}
		c.Desired, c.Events = b.recorded, b.events
		b.StatusWriter = v.NewStatusWriter(c)
		b.stop = running(t, b.Run)
		test(b)
	})
}

// set records a sandbox. The API server has the pod.
func (b *bench) set(id string, s Status) {
	name := strings.TrimPrefix(id, "c-")
	if kubetest.Get[corev1.Pod](b.api.Server, "blue", name) == nil {
		kubetest.Put(b.api.Server, podObject(aPod(name), "", ""))
	}
	b.records.set(id, s)
}

// added records a sandbox of the pod of that name and says so.
func (b *bench) added(name string) nad.Pod {
	pod := aPod(name)
	b.set(pod.Container, aStatus(name))
	b.Changed(pod)
	return pod
}

// wantNothing fails the test if there were requests, or a pod is remembered.
func (b *bench) wantNothing() {
	b.Helper()
	b.wantRequests(0, "at all")
	nodetest.Equal(b, "pods that are remembered", len(b.pods), 0)
}

// wantRequests fails the test unless there were n requests since the last look at them.
func (b *bench) wantRequests(n int, when string) {
	b.Helper()
	nodetest.Equal(b, "requests "+when, b.api.count(), n)
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

func patchOf(pod nad.Pod, s Status) string {
	text, err := json.Marshal(s.Annotation)
	if err != nil {
		panic(err)
	}
	uid := ""
	if pod.UID != "" {
		uid = `"uid":"` + pod.UID + `",`
	}
	return `{"metadata":{` + uid + `"annotations":{"k8s.v1.cni.cncf.io/network-status":` + string(text) + `}}}`
}
