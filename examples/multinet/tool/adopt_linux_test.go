package tool

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/google/go-cmp/cmp"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/delegatetest"
	"github.com/metacni/metacni/delegate/lifecycle"
	"github.com/metacni/metacni/netconf"
	"github.com/metacni/metacni/scratch"
)

// cached writes the cache entry of libcni for a container that the runtime has
// attached.
func (n *node) cached(container, network, netns string) {
	n.t.Helper()
	name := map[string]string{blue: "blue", green: "green"}[network]
	if err := os.MkdirAll(n.path("cni/results"), 0o700); err != nil {
		n.t.Fatal(err)
	}
	n.write("cni/results/"+name+"-"+container+"-eth0", fmt.Sprintf(
		`{"kind":"cniCacheV1","containerId":%q,"config":%q,"ifName":"eth0","networkName":%q,"netns":%q,"result":{"cniVersion":"1.0.0","ips":[]}}`,
		container, base64.StdEncoding.EncodeToString([]byte(network)), name, netns))
}

// life returns a Manager of the node's records.
func (n *node) life() *lifecycle.Manager {
	return &lifecycle.Manager{Dir: n.path("state"), Invoker: &delegate.Invoker{Exec: n.exec}}
}

// records returns the records in the state directory.
func (n *node) records() []string {
	n.t.Helper()
	var all []string
	for r, err := range n.life().Records(n.t.Context()) {
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
	n.exec.Plugins = map[string]delegatetest.Plugin{"bridge": delegatetest.Result(nil)}
	n.cached("c1", blue, unseen)
	n.cached("c2", blue, "/absent")
	n.cached("c3", green, unseen)
	n.write("cni/results/blue-c4-eth0", "{")
	for range 2 {
		if err := n.do("install", "--cni-dir", n.path("state")); err != nil {
			t.Fatal(err)
		}
		want := []string{"multinet/c1/eth0 added blue"}
		if diff := cmp.Diff(want, n.records()); diff != "" {
			t.Errorf("records (-want +got):\n%s", diff)
		}
	}
	if got, want := n.exec.Trace(), []string{"DEL bridge eth0"}; !slices.Equal(got, want) {
		t.Errorf("ran %q, want %q", got, want)
	}
	for _, words := range []string{"multinet: c1 eth0 (blue) is taken over\n", "c2 eth0 (blue) is taken over, to be detached", "c2 eth0 was stale, and has been removed", "not taken over: " + n.path("cni/results/blue-c4-eth0")} {
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
	w.write("net.d/05-y.conflist", green)
	w.says(`is published in front of "05-y.conflist"`)
	w.cached("c2", green, unseen)
	w.write("net.d/05-y.conflist", strings.Replace(green, `"name"`, ` "x":1,"name"`, 1))
	w.says("c2 eth0 (green) is taken over")
	if err := w.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
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
		if err := n.do(append([]string{"adopt", "--dir", n.path("state")}, words...)...); err != nil {
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
	if diff := cmp.Diff([]string{"multinet/c1/eth0 added blue", "multinet/c2/eth0 deleting blue"}, n.records()); diff != "" {
		t.Errorf("records (-want +got):\n%s", diff)
	}
	// JSON, with what cannot be taken over; that is exit status 1.
	n.printed.Reset()
	n.write("cni/results/blue-c3-eth0", "")
	err := n.do("adopt", "--dir", n.path("state"), "-o", "json", "--name", "other")
	if err == nil || !strings.Contains(err.Error(), "1 could not be taken over") {
		t.Errorf("err = %v", err)
	}
	var got []map[string]any
	if err := json.Unmarshal([]byte(n.printed.String()), &got); err != nil {
		t.Fatal(err)
	}
	want := []map[string]any{
		{"network": "other", "container": "c1", "interface": "eth0", "networks": []any{"blue"}, "outcome": "recorded", "gone": false},
		{"network": "other", "container": "c2", "interface": "eth0", "networks": []any{"blue"}, "outcome": "recorded", "gone": true},
		{"network": "", "container": "", "interface": "", "networks": []any{}, "outcome": "skipped", "gone": false, "error": n.path("cni/results/blue-c3-eth0") + ": empty"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("JSON (-want +got):\n%s", diff)
	}
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
	if err := n.do("install", "--cni-dir", n.path("state"), "--name", "mine"); err != nil {
		t.Fatal(err)
	}
	n.write("net.d/10-x.conflist", green)
	n.cached("c1", blue, unseen)
	n.cached("c2", green, unseen)
	if err := n.do("adopt"); err != nil {
		t.Error(err)
	}
	if diff := cmp.Diff([]string{"mine/c1/eth0 added blue", "mine/c2/eth0 added green"}, n.records()); diff != "" {
		t.Errorf("records (-want +got):\n%s", diff)
	}
}

// attached is a node with multinet installed and two containers on blue and
// green, and one that the runtime has attached to blue before.
func attached(t *testing.T) *node {
	t.Helper()
	n := newNode(t, "10-x.conflist", blue)
	n.cached("c0", blue, unseen)
	if err := n.do("install", "--cni-dir", n.path("state")); err != nil {
		t.Fatal(err)
	}
	for _, p := range []string{"bridge", "macvlan"} {
		n.exec.Plugins[p] = delegatetest.Result(&types100.Result{CNIVersion: "1.0.0"})
	}
	life := n.life()
	for _, id := range []string{"c1", "c2"} {
		var plan []delegate.Attachment
		for i, conf := range []string{blue, green} {
			network, err := netconf.Parse([]byte(conf))
			if err != nil {
				t.Fatal(err)
			}
			plan = append(plan, delegate.Attachment{Network: network, ContainerID: id, IfName: []string{"eth0", "net1"}[i], NetNS: unseen})
		}
		if _, err := life.Add(t.Context(), scratch.Key{Network: "multinet", ContainerID: id, IfName: "eth0"}, lifecycle.Transaction{Plan: lifecycle.Plan(plan...)}); err != nil {
			t.Fatal(err)
		}
	}
	n.said.Reset()
	return n
}

// Without --detach and --leave, uninstall changes nothing while containers are
// attached.
func TestUninstallRefusesWhileContainersAreAttached(t *testing.T) {
	t.Parallel()
	n := attached(t)
	before := n.records()
	err := n.do("uninstall", "--binary")
	if err == nil || !strings.Contains(err.Error(), "3 containers are still attached") || !strings.Contains(err.Error(), "--detach") {
		t.Errorf("err = %v", err)
	}
	if n.read("net.d/00-multinet.conflist") == "" || n.read("bin/multinet") == "" {
		t.Error("something is removed")
	}
	if diff := cmp.Diff(before, n.records()); diff != "" {
		t.Errorf("records (-want +got):\n%s", diff)
	}
	if err := n.do("uninstall", "--leave"); err != nil || n.read("net.d/00-multinet.conflist") != "" {
		t.Errorf("left: %v", err)
	}
	if diff := cmp.Diff(before, n.records()); diff != "" {
		t.Errorf("records after --leave (-want +got):\n%s", diff)
	}
	n.write("state/c9@multinet@eth0.json", "x")
	if err := n.do("uninstall"); err == nil || !strings.Contains(err.Error(), "corrupt") {
		t.Errorf("damaged: %v", err)
	}
}

// After --detach, containers have the cluster network only, and the runtime has what
// it needs to remove it.
func TestUninstallDetaches(t *testing.T) {
	t.Parallel()
	n := attached(t)
	if err := n.do("uninstall", "--detach", "--binary", "--cache-dir", n.path("cni"), "--cache-dir", n.path("cni2")); err != nil {
		t.Fatal(err)
	}
	if n.read("net.d/00-multinet.conflist") != "" || n.read("bin/multinet") != "" || n.records() != nil {
		t.Errorf("left: %q", n.records())
	}
	trace := n.exec.Trace()
	if diff := cmp.Diff([]string{"DEL macvlan net1", "DEL macvlan net1"}, trace[len(trace)-2:]); diff != "" {
		t.Errorf("calls (-want +got):\n%s", diff)
	}
	if live := n.exec.Live(); len(live) != 2 || strings.Contains(strings.Join(live, " "), "net1") {
		t.Errorf("live: %q", live)
	}
	for _, id := range []string{"c0", "c1", "c2"} {
		for _, dir := range []string{"cni", "cni2"} {
			if n.read(dir+"/results/blue-"+id+"-eth0") == "" {
				t.Errorf("the runtime has nothing of %s in %s", id, dir)
			}
		}
	}
	// And back again.
	if err := n.do("install", "--cni-dir", n.path("state")); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"multinet/c0/eth0 added blue", "multinet/c1/eth0 added blue", "multinet/c2/eth0 added blue"}, n.records()); diff != "" {
		t.Errorf("records (-want +got):\n%s", diff)
	}
}

// A container whose ADD was running is detached as well.
func TestUninstallDetachesWhatIsAddedMeanwhile(t *testing.T) {
	t.Parallel()
	n := attached(t)
	network, err := netconf.Parse([]byte(blue))
	if err != nil {
		t.Fatal(err)
	}
	works := n.exec.Plugins["macvlan"]
	n.exec.Plugins["macvlan"] = func(ctx context.Context, c delegatetest.Call) ([]byte, error) {
		if c.ContainerID == "c2" && c.Command == "DEL" {
			k := scratch.Key{Network: "multinet", ContainerID: "a1", IfName: "eth0"}
			plan := lifecycle.Plan(delegate.Attachment{Network: network, ContainerID: "a1", IfName: "eth0", NetNS: unseen})
			if _, err := n.life().Add(context.WithoutCancel(ctx), k, lifecycle.Transaction{Plan: plan}); err != nil {
				return nil, err
			}
		}
		return works(ctx, c)
	}
	if err := n.do("uninstall", "--detach", "--binary", "--cache-dir", n.path("cni")); err != nil {
		t.Error(err)
	}
	if n.records() != nil || n.read("cni/results/blue-a1-eth0") == "" {
		t.Errorf("left: %q", n.records())
	}
	if !strings.Contains(n.said.String(), "4 attachments") {
		t.Errorf("said: %s", n.said.String())
	}
}

// With --multus-dir, Multus can remove what is left.
func TestUninstallForMultus(t *testing.T) {
	t.Parallel()
	n := attached(t)
	if err := n.do("uninstall", "--detach", "--cache-dir", n.path("cni"), "--multus-dir", n.path("multus")); err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{"cni/results/blue-c1-eth0", "multus/results/blue-c1-eth0", "multus/c1"} {
		if n.read(file) == "" {
			t.Errorf("no %s", file)
		}
	}
}

// uninstall does not remove the network of the daemon.
func TestUninstallLeavesNetworksOfOtherTypes(t *testing.T) {
	t.Parallel()
	n := attached(t)
	theirs := published("other", `{"type":"multinet-shim","delegates":[`+blue+`]}`)
	n.write("net.d/00-multinet.conflist", theirs)
	if err := n.do("uninstall", "--leave"); err != nil || n.read("net.d/00-multinet.conflist") != theirs {
		t.Errorf("it is removed: %v", err)
	}
	if err := n.do("uninstall", "--leave", "--type", "multinet-shim"); err != nil || n.read("net.d/00-multinet.conflist") != "" {
		t.Errorf("it is left: %v", err)
	}
}

// What cannot be detached stays recorded and is reported, and uninstall can be
// repeated.
func TestUninstallThatCannotDetach(t *testing.T) {
	t.Parallel()
	n := attached(t)
	works := n.exec.Plugins["macvlan"]
	n.exec.Plugins["macvlan"] = delegatetest.FailOn("DEL", 107, "busy", works)
	err := n.do("uninstall", "--detach", "--binary", "--cache-dir", n.path("cni"))
	if err == nil || !strings.Contains(err.Error(), "2 containers are still attached") || !strings.Contains(err.Error(), "busy") || !strings.Contains(err.Error(), "--name multinet") {
		t.Errorf("err = %v", err)
	}
	if n.read("net.d/00-multinet.conflist") != "" || n.read("bin/multinet") == "" || len(n.records()) != 2 {
		t.Errorf("records %q", n.records())
	}
	n.exec.Plugins["macvlan"] = works
	if err := n.do("uninstall", "--detach", "--binary", "--cache-dir", n.path("cni")); err != nil || n.records() != nil || n.read("bin/multinet") != "" {
		t.Errorf("again: %v, records %q", err, n.records())
	}
}
