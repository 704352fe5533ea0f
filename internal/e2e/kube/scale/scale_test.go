//go:build linux

package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/metacni/metacni/delegate/kube"
	"github.com/metacni/metacni/internal/e2e/kube/server"
	"github.com/metacni/metacni/status"
)

func TestMain(m *testing.M) {
	if err := os.Chdir(".."); err != nil { // where the program runs as well
		fmt.Fprintln(os.Stderr, "scale:", err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// newTestRig returns a small cluster.
func newTestRig(t *testing.T) *rig {
	t.Helper()
	if _, err := server.Programs(t.Context()); err != nil {
		if os.Getenv("METACNI_E2E") == "require" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	r, err := newRig(t.Context(), options{views: 20, pods: 10, others: 2, nads: 50, spaces: 3, changes: 5, burst: 20, reboot: 5}, reporter{io.Discard, io.Discard})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.close)
	return r
}

// want fails the test unless exactly these requests were made.
func want(t *testing.T, when string, got tally, want tally) {
	t.Helper()
	if diff := cmp.Diff(map[kube.Request]int(want), map[kube.Request]int(got)); diff != "" {
		t.Errorf("%s: requests: -want +got:\n%s", when, diff)
	}
}

func watching(resource string) kube.Request {
	return kube.Request{Verb: "watch", Resource: resource, Code: 200}
}

const nads = "network-attachment-definitions"

// The steps share a cluster, and each needs the one before.
func TestNodesMakeNoRequestThatIsNotNeeded(t *testing.T) {
	ctx := t.Context() // the nodes stay open from one step to the next
	r := newTestRig(t)
	for _, step := range []struct {
		name string
		do   func(context.Context, *testing.T)
	}{
		{"one watch for each resource at the start", r.testStart},
		{"none while definitions and pods change, which every node sees", r.testFollow},
		{"one patch and one Event for each pod after a restart", r.testRestart},
		{"none once all follow again after an outage", r.testOutage},
	} {
		if !t.Run(step.name, func(t *testing.T) { step.do(ctx, t) }) {
			t.FailNow()
		}
	}
}

func (r *rig) testStart(ctx context.Context, t *testing.T) {
	t.Helper()
	nodes := len(r.nodes)
	begun := tally{watching(nads): nodes}
	s, err := r.start(ctx, r.nodes, false)
	if err != nil {
		t.Fatal(err)
	}
	want(t, "definitions only", s.requests, begun)

	begun[watching("pods")] = nodes
	if s, err = r.start(ctx, r.nodes, true); err != nil {
		t.Fatal(err)
	}
	want(t, "with pods", s.requests, begun)
	if s.traffic.in == 0 || s.traffic.out == 0 || s.conns < nodes {
		t.Errorf("%+v over %d connections: the bytes are not counted", s.traffic, s.conns)
	}
	if n := s.now.sum("apiserver_longrunning_requests", `verb="WATCH"`, `resource="pods"`); int(n) < nodes {
		t.Errorf("the API server says that it has %v watches of pods", n)
	}
	if s.apiMemory == 0 || s.etcdMemory == 0 || s.heap == 0 {
		t.Errorf("%d, %d and %d bytes of memory: no figures of the processes", s.apiMemory, s.etcdMemory, s.heap)
	}
}

func (r *rig) testFollow(ctx context.Context, t *testing.T) {
	t.Helper()
	f, err := r.follow(ctx) // fails unless every node gets every change
	if err != nil {
		t.Fatal(err)
	}
	for name, s := range map[string]span{"a definition changes": f.one, "many definitions change": f.burst, "pods change": f.pods} {
		want(t, name, s.requests, tally{})
	}
	if len(f.everywhere) != r.changes || len(f.onNode) != r.changes {
		t.Errorf("%d and %d changes have arrived, want %d", len(f.everywhere), len(f.onNode), r.changes)
	}
}

func (r *rig) testRestart(ctx context.Context, t *testing.T) {
	t.Helper()
	pods := r.reboot * r.pods
	for _, policy := range []kube.StatusPolicy{kube.StatusWait, kube.StatusAsync} {
		b, err := r.restart(ctx, policy)
		if err != nil {
			t.Fatal(err)
		}
		want(t, string(policy), b.requests, tally{
			watching(nads): r.reboot, watching("pods"): r.reboot,
			{Verb: "patch", Resource: "pods/status", Code: 200}: pods,
			{Verb: "create", Resource: "events", Code: 201}:     pods,
		})
		if int(b.stats.Written) != pods || len(b.added) != pods || b.repeated != 0 || b.dropped != 0 {
			t.Errorf("%s: %d statuses written, %d ADDs, %d repeated, %d Events dropped, want %d, %[6]d, 0 and 0",
				policy, b.stats.Written, len(b.added), b.repeated, b.dropped, pods)
		}
		r.wantStatuses(t, policy)
	}
}

func (r *rig) testOutage(ctx context.Context, t *testing.T) {
	t.Helper()
	o, err := r.outage(ctx, 0) // fails unless every node gets a change of a definition and of a pod
	if err != nil {
		t.Fatal(err)
	}
	refused := 0
	for request, n := range o.requests {
		if request.Code == 0 {
			refused += n
		}
	}
	if refused == 0 || o.away <= 0 || o.requests.of("watch", nads) < len(r.nodes) {
		t.Errorf("away for %v, requests %v: there was no outage", o.away, o.requests)
	}
	s, err := r.measured(ctx, func() error {
		_, err := r.spread(ctx, r.burst)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	want(t, "afterwards", s.requests, tally{})
}

// wantStatuses fails the test unless the API server has the last status of each pod of
// the nodes that were restarted.
func (r *rig) wantStatuses(t *testing.T, policy kube.StatusPolicy) {
	t.Helper()
	for _, n := range r.nodes[:r.reboot] {
		list, err := r.core.Pods(metav1.NamespaceAll).List(t.Context(), metav1.ListOptions{FieldSelector: "spec.nodeName=" + n.name})
		if err != nil {
			t.Fatal(err)
		}
		got, want := map[string]string{}, map[string]string{}
		for _, p := range list.Items {
			got[p.Name] = p.Annotations[status.NetworkStatusAnnotation]
		}
		for _, p := range n.pods {
			want[p.Name] = statusText(p, r.runs)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: statuses of the pods of %s: -want +got:\n%s", policy, n.name, diff)
		}
	}
}

func TestSpreadOfAHistogram(t *testing.T) {
	t.Parallel()
	m := parseMetrics([]byte(`# HELP x_seconds Text.
# TYPE x_seconds histogram
x_seconds_bucket{verb="PATCH",le="0.1"} 90
x_seconds_bucket{verb="PATCH",le="0.5"} 99
x_seconds_bucket{verb="PATCH",le="+Inf"} 100
x_seconds_sum{verb="PATCH"} 20
x_seconds_count{verb="PATCH"} 100
x_seconds_count{verb="GET"} 7
x_seconds_count_other 9
`))
	if got, want := m.spread("x_seconds", `verb="PATCH"`), (spread{100, 0.2, 0.5}); got != want {
		t.Errorf("got %v, want %v", got, want)
	}
	if got := m.sum("x_seconds_count"); got != 107 {
		t.Errorf("sum %v, want 107", got)
	}
	if got := m.minus(m).spread("x_seconds"); got != (spread{}) {
		t.Errorf("nothing has happened: %v", got)
	}
}

func TestRequestsBySecond(t *testing.T) {
	t.Parallel()
	back := time.Now()
	o := outage{back: back}
	for _, e := range []struct {
		after time.Duration
		code  int
	}{{-1500 * time.Millisecond, 0}, {0, 200}, {999 * time.Millisecond, 429}, {1100 * time.Millisecond, 200}} {
		o.entries = append(o.entries, entry{back.Add(e.after), kube.Request{Code: e.code}})
	}
	want := []bucket{{"-2 to -1", 1, 1, 0}, {"0 to 1", 2, 0, 1}, {"1 to 2", 1, 0, 1}}
	if diff := cmp.Diff(want, o.buckets(), cmp.AllowUnexported(bucket{})); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

func TestFlagsThatCannotBe(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"-views", "0"}, {"-reboot", "501"}, {"-burst", "1001"}, {"-outage", "x"}, {"file"}} {
		if o, err := parse(args, io.Discard); err == nil {
			t.Errorf("%q: %+v", args, o)
		}
	}
	o, err := parse([]string{"-outage", "5s", "-outage", "7s"}, io.Discard)
	if diff := cmp.Diff([]time.Duration{5 * time.Second, 7 * time.Second}, o.outages); err != nil || diff != "" {
		t.Errorf("error %v, outages: %s", err, diff)
	}
}
