package kube

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/metacni/metacni/internal/nodetest"
	"github.com/metacni/metacni/netconf/nad"
)

// A fakeAPI answers without a network, so that time stands still for it. The server of
// package kubetest answers as the real one does, but in real time.
type fakeAPI struct {
	start time.Time

	mu       sync.Mutex
	requests []request
	answers  []answer // of the next requests; afterwards all goes well
	version  int
	running  int // requests
	peak     int // of them
}

// A request is one that was made.
type request struct {
	At   time.Duration // since the start
	Name string        // of the pod
	Body string
}

// An answer is how a request fails. The zero answer is success.
type answer struct {
	code    int             // of the HTTP answer; 0 with err nil: success
	after   int             // seconds, in the header Retry-After
	body    *metav1.Status  // nil: the code's text
	err     error           // of the network
	rubbish string          // with code 200
	delay   time.Duration   // before the answer
	until   <-chan struct{} // before the answer
}

var errRefused = errors.New("connect: connection refused")

func (a *fakeAPI) RoundTrip(q *http.Request) (*http.Response, error) {
	body, err := io.ReadAll(q.Body)
	if err != nil {
		return nil, err
	}
	a.mu.Lock()
	path := strings.Split(q.URL.Path, "/")
	name := path[6]
	if strings.HasPrefix(q.URL.Path, "/apis/") {
		name = "event"
	}
	a.requests = append(a.requests, request{time.Since(a.start), name, string(body)})
	var answer answer
	if len(a.answers) > 0 {
		answer, a.answers = a.answers[0], a.answers[1:]
	}
	a.running++
	a.peak = max(a.peak, a.running)
	defer func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.running--
	}()
	a.version++
	version := strconv.Itoa(100 + a.version)
	a.mu.Unlock()

	if answer.delay > 0 || answer.until != nil {
		timer := time.NewTimer(answer.delay)
		defer timer.Stop()
		wake := answer.until
		var tick <-chan time.Time
		if answer.delay > 0 {
			tick = timer.C
		}
		select {
		case <-tick:
		case <-wake:
		case <-q.Context().Done():
			return nil, q.Context().Err()
		}
	}
	reply := func(code int, contentType, text string) (*http.Response, error) {
		r := &http.Response{StatusCode: code, Header: http.Header{"Content-Type": {contentType}}, Body: io.NopCloser(strings.NewReader(text)), Request: q}
		if answer.after > 0 {
			r.Header.Set("Retry-After", strconv.Itoa(answer.after))
		}
		return r, nil
	}
	switch {
	case answer.err != nil:
		return nil, answer.err
	case answer.rubbish != "":
		return reply(200, "application/json", answer.rubbish)
	case answer.body != nil:
		text, err := json.Marshal(answer.body)
		if err != nil {
			return nil, err
		}
		return reply(answer.code, "application/json", string(text))
	case answer.code != 0:
		return reply(answer.code, "text/plain", http.StatusText(answer.code))
	case name == "event":
		return reply(201, "application/json", `{"kind":"Event","apiVersion":"events.k8s.io/v1","metadata":{"name":"e"}}`)
	}
	return reply(200, "application/json", `{"kind":"Pod","apiVersion":"v1","metadata":{"name":"`+name+`","resourceVersion":"`+version+`"}}`)
}

// fail makes the next requests fail.
func (a *fakeAPI) fail(answers ...answer) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.answers = append(a.answers, answers...)
}

// heal makes all later requests go well.
func (a *fakeAPI) heal() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.answers = nil
}

// take returns the requests since the last take.
func (a *fakeAPI) take() []request {
	a.mu.Lock()
	defer a.mu.Unlock()
	defer func() { a.requests = nil }()
	return a.requests
}

// count returns how many requests there were since the last take.
func (a *fakeAPI) count() int { return len(a.take()) }

// view returns a view of a, without watches.
func (a *fakeAPI) view(tb testing.TB) *View {
	tb.Helper()
	a.start = time.Now()
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

// A bench is a writer whose time stands still.
type bench struct {
	testing.TB
	*StatusWriter
	records
	api  fakeAPI
	stop func()
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
		b := &bench{TB: t}
		v := b.api.view(t)
		if pods {
			v.pods = &part[Pod]{store: newStore(keepPod)}
		}
		c.Desired = b.recorded
		b.StatusWriter = v.NewStatusWriter(c)
		b.stop = running(t, b.Run)
		test(b)
	})
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
	if got := b.api.count(); got != n {
		b.Errorf("%d requests %s, want %d", got, when, n)
	}
}

// wantTimes fails the test unless requests were made at these times. A pause that an answer
// asks for may be up to half as long again.
func wantTimes(tb testing.TB, answers []answer, want, got []time.Duration) {
	tb.Helper()
	if len(got) != len(want) {
		tb.Errorf("requests at %v, want %v", got, want)
		return
	}
	for i := 1; i < len(want); i++ {
		least := want[i] - want[i-1]
		most := least
		if answers[i-1].after > 0 {
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

func otherUID() *metav1.Status {
	return &metav1.Status{
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure,
		Reason: metav1.StatusReasonInvalid, Code: http.StatusUnprocessableEntity,
		Details: &metav1.StatusDetails{Causes: []metav1.StatusCause{{Type: metav1.CauseTypeFieldValueInvalid, Field: "metadata.uid"}}},
	}
}

func noSuchPod() *metav1.Status {
	return &metav1.Status{
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure,
		Reason: metav1.StatusReasonNotFound, Code: http.StatusNotFound, Message: `pods "a" not found`,
	}
}
