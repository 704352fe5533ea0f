// Package scale tests what the nodes of a cluster ask of its API server, a real one. Each
// node is what multinetd opens there: a view of the cluster, a status writer and Events, with
// the account, the rights and the policy of multinetd's manifests, and a token of its own.
package scale

import (
	"context"
	"flag"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/metacni/metacni/delegate/kube"
	"github.com/metacni/metacni/internal/e2e/kube/server"
	"github.com/metacni/metacni/status"
)

var (
	views       = flag.Int("views", 20, "number of nodes")
	pods        = flag.Int("pods", 5, "number of pods on each node")
	definitions = flag.Int("definitions", 50, "number of definitions")
)

func TestMain(m *testing.M) {
	if err := os.Chdir("../../e2e/kube"); err != nil { // where package server finds its files
		fmt.Fprintln(os.Stderr, "scale:", err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// programs returns the directory of the server's programs.
func programs(t *testing.T) string {
	t.Helper()
	dir, err := server.Programs(t.Context())
	if err != nil {
		if os.Getenv("METACNI_E2E") == "require" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	return dir
}

const nads = "network-attachment-definitions"

// TestNodesMakeNoRequestThatIsNotNeeded: a start is one watch for each resource. While
// definitions and pods change, the nodes make no request, and each sees every change. A pod
// costs one patch and one Event, also when all nodes restart at once. After an outage all
// nodes follow again, and are silent then.
func TestNodesMakeNoRequestThatIsNotNeeded(t *testing.T) {
	c := newCluster(t)
	t.Cleanup(c.closeAll)
	begun := map[kube.Request]int{{Verb: "watch", Resource: nads, Code: 200}: *views}
	c.want("definitions only", begun, func() { c.openAll(false, kube.StatusAsync) })
	begun[kube.Request{Verb: "watch", Resource: "pods", Code: 200}] = *views
	c.want("with pods", begun, func() { c.openAll(true, kube.StatusAsync) })

	c.want("a definition changes", nil, func() { c.spread(1) })
	c.want("all definitions change", nil, func() { c.spread(*definitions) })
	c.want("pods change", nil, c.touch)

	begun[kube.Request{Verb: "patch", Resource: "pods/status", Code: 200}] = *views * *pods
	begun[kube.Request{Verb: "create", Resource: "events", Code: 201}] = *views * *pods
	for _, policy := range []kube.StatusPolicy{kube.StatusWait, kube.StatusAsync} {
		c.want("restart, "+string(policy), begun, func() {
			c.openAll(true, policy)
			c.parallel(*views, func(ctx context.Context, i int) error { return c.nodes[i].add(ctx) })
		})
		c.wantStatuses(policy)
	}

	c.Stop()
	c.Start(t)
	c.spread(1)
	c.touch()
	outage := c.made()
	t.Logf("an outage: %v", outage)
	if outage[kube.Request{Verb: "watch", Resource: nads, Code: 200}] < *views {
		t.Errorf("an outage: requests %v", outage)
	}
	c.want("after the outage", nil, func() { c.spread(*definitions) })
}

// want fails the test unless exactly these requests are made in do.
func (c *cluster) want(when string, want map[kube.Request]int, do func()) {
	c.t.Helper()
	c.made()
	start := time.Now()
	do()
	made := c.made()
	c.t.Logf("%s: %v, requests %v", when, time.Since(start).Round(time.Millisecond), made)
	if want == nil {
		want = map[kube.Request]int{}
	}
	if diff := cmp.Diff(want, made); diff != "" {
		c.t.Errorf("%s: requests: -want +got:\n%s", when, diff)
	}
}

// wantStatuses fails the test unless the API server has the last status of each pod.
func (c *cluster) wantStatuses(policy kube.StatusPolicy) {
	c.t.Helper()
	list, err := c.core.Pods(namespace).List(c.t.Context(), metav1.ListOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
	got, want := map[string]string{}, map[string]string{}
	for _, p := range list.Items {
		got[p.Name] = p.Annotations[status.NetworkStatusAnnotation]
	}
	for _, n := range c.nodes {
		for _, p := range n.pods {
			want[p.Name] = statusText(p, c.run)
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		c.t.Errorf("%s: statuses of the pods: -want +got:\n%s", policy, diff)
	}
}
