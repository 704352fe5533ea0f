package tool

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/delegatetest"
	"github.com/metacni/metacni/delegate/lifecycle"
	"github.com/metacni/metacni/internal/nodetest"
)

// cached writes the cache entry of libcni for a container that the runtime has
// attached.
func (n *node) cached(container, network, netns string) {
	n.Helper()
	name := map[string]string{blue: "blue", green: "green"}[network]
	nodetest.OK(n, os.MkdirAll(n.Path("cni/results"), 0o700))
	n.Write("cni/results/"+name+"-"+container+"-eth0", fmt.Sprintf(
		`{"kind":"cniCacheV1","containerId":%q,"config":%q,"ifName":"eth0","networkName":%q,"netns":%q,"result":{"cniVersion":"1.0.0","ips":[]}}`,
		container, base64.StdEncoding.EncodeToString([]byte(network)), name, netns))
}

// life returns a Manager of the node's records.
func (n *node) life() *lifecycle.Manager {
	return &lifecycle.Manager{Dir: n.Path("state"), Invoker: &delegate.Invoker{Exec: n.Exec}}
}

// records returns the records in the state directory.
func (n *node) records() []string {
	n.Helper()
	var all []string
	for r, err := range n.life().Records(n.Context()) {
		if err != nil {
			all = append(all, "damaged "+r.Key.ContainerID)
			continue
		}
		s := r.Key.String() + " " + string(r.State)
		for _, a := range r.Attached {
			s += " " + a.Network.Name()
		}
		all = append(all, s)
	}
	return all
}

const unseen = "/no-such-directory/netns/c" // a namespace whose state cannot be known

// install takes over containers of the cluster network, and of no other.
func TestInstallTakesOver(t *testing.T) {
	t.Parallel()
	n := newNode(t, "10-x.conflist", blue, "20-y.conflist", green)
	n.Exec.Plugins = map[string]delegatetest.Plugin{"bridge": delegatetest.Result(nil)}
	n.cached("c1", blue, unseen)
	n.cached("c2", blue, "/absent")
	n.cached("c3", green, unseen)
	n.Write("cni/results/blue-c4-eth0", "{")
	for range 2 {
		nodetest.OK(t, n.do("install", "--cni-dir", n.Path("state")))
		want := []string{"multinet/c1/eth0 added blue"}
		nodetest.Equal(t, "records", n.records(), want)
	}
	if got, want := n.Exec.Trace(), []string{"DEL bridge eth0"}; !slices.Equal(got, want) {
		t.Errorf("ran %q, want %q", got, want)
	}
	for _, words := range []string{"multinet: c1 eth0 (blue) is taken over\n", "c2 eth0 (blue) is taken over, to be detached", "c2 eth0 was stale, and has been removed", "not taken over: " + n.Path("cni/results/blue-c4-eth0")} {
		if !strings.Contains(n.said.String(), words) {
			t.Errorf("%q is not said: %s", words, n.said.String())
		}
	}
	if strings.Contains(n.said.String(), "c3") || strings.Count(n.said.String(), "c1 eth0") != 1 {
		t.Errorf("said: %s", n.said.String())
	}
}

// install --watch also takes over later containers, and reports each once.
func TestInstallWatchTakesOver(t *testing.T) {
	t.Parallel()
	w := startWatch(t)
	w.cached("c1", blue, unseen)
	w.Write("net.d/05-y.conflist", green)
	w.says(`is published in front of "05-y.conflist"`)
	w.cached("c2", green, unseen)
	w.Write("net.d/05-y.conflist", strings.Replace(green, `"name"`, ` "x":1,"name"`, 1))
	w.says("c2 eth0 (green) is taken over")
	nodetest.OK(t, w.cmd.Process.Kill())
	_ = w.cmd.Wait()
}

// adopt prints the outcome for each container. With --dry-run it changes nothing.
func TestAdopt(t *testing.T) {
	t.Parallel()
	n := newNode(t, "10-x.conflist", blue)
	n.cached("c1", blue, unseen)
	n.cached("c2", blue, "/absent")
	table := func(outcome string) []string {
		return []string{"CONTAINER INTERFACE NETWORKS OUTCOME WHY", "c1 eth0 blue " + outcome + " -", "c2 eth0 blue " + outcome + " its container is gone"}
	}
	do := func(words ...string) []string {
		t.Helper()
		n.printed.Reset()
		if err := n.do(append([]string{"adopt", "--dir", n.Path("state")}, words...)...); err != nil {
			t.Errorf("%q: %v", words, err)
		}
		var lines []string
		for line := range strings.Lines(n.printed.String()) {
			lines = append(lines, strings.Join(strings.Fields(line), " "))
		}
		return lines
	}
	for _, step := range []struct {
		words []string
		want  []string
	}{
		{[]string{"--dry-run"}, table("adoptable")},
		{[]string{"--network", "green", "--dry-run"}, table("")[:1]},
		{[]string{"--dry-run=false"}, table("adopted")},
		{nil, table("recorded")},
		{[]string{"--dry-run"}, table("recorded")},
		{[]string{"--cache-dir", ""}, table("")[:1]},
	} {
		if diff := cmp.Diff(step.want, do(step.words...)); diff != "" {
			t.Errorf("%q (-want +got):\n%s", step.words, diff)
		}
	}
	nodetest.Equal(t, "records", n.records(), []string{"multinet/c1/eth0 added blue", "multinet/c2/eth0 deleting blue"})
	// JSON, with what cannot be taken over; that is exit status 1.
	n.printed.Reset()
	n.Write("cni/results/blue-c3-eth0", "")
	err := n.do("adopt", "--dir", n.Path("state"), "-o", "json", "--name", "other")
	if err == nil || !strings.Contains(err.Error(), "1 could not be taken over") {
		t.Errorf("err = %v", err)
	}
	var got []map[string]any
	nodetest.OK(t, json.Unmarshal([]byte(n.printed.String()), &got))
	want := []map[string]any{
		{"network": "other", "container": "c1", "interface": "eth0", "networks": []any{"blue"}, "outcome": "recorded", "gone": false},
		{"network": "other", "container": "c2", "interface": "eth0", "networks": []any{"blue"}, "outcome": "recorded", "gone": true},
		{"network": "", "container": "", "interface": "", "networks": []any{}, "outcome": "skipped", "gone": false, "error": n.Path("cni/results/blue-c3-eth0") + ": empty"},
	}
	nodetest.Equal(t, "JSON", got, want)
	for _, words := range [][]string{{"adopt", "x"}, {"adopt", "-o", "xml"}, {"adopt", "--what"}} {
		if err := n.do(words...); err == nil {
			t.Errorf("%q: no error", words)
		}
	}
}

// The published network gives adopt its state directory and name.
func TestAdoptGoesByWhatIsPublished(t *testing.T) {
	t.Parallel()
	n := newNode(t, "10-x.conflist", blue)
	nodetest.OK(t, n.do("install", "--cni-dir", n.Path("state"), "--name", "mine"))
	n.Write("net.d/10-x.conflist", green)
	n.cached("c1", blue, unseen)
	n.cached("c2", green, unseen)
	nodetest.OK(t, n.do("adopt"))
	nodetest.Equal(t, "records", n.records(), []string{"mine/c1/eth0 added blue", "mine/c2/eth0 added green"})
}
