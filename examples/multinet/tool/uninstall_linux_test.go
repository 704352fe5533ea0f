package tool

import (
	"context"
	"strings"
	"testing"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/delegatetest"
	"github.com/metacni/metacni/delegate/lifecycle"
	"github.com/metacni/metacni/internal/nodetest"
	"github.com/metacni/metacni/scratch"
)

// attached is a node with multinet installed and two containers on blue and
// green, and one that the runtime has attached to blue before.
func attached(t *testing.T, flags ...string) *node {
	t.Helper()
	n := newNode(t, "10-x.conflist", blue)
	n.cached("c0", blue, unseen)
	nodetest.OK(t, n.do(append([]string{"install", "--cni-dir", n.Path("state")}, flags...)...))
	for _, p := range []string{"bridge", "macvlan"} {
		n.Exec.Plugins[p] = delegatetest.Result(&types100.Result{CNIVersion: "1.0.0"})
	}
	life := n.life()
	for _, id := range []string{"c1", "c2"} {
		var plan []delegate.Attachment
		for i, conf := range []string{blue, green} {
			network := nodetest.Parse(conf)
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
	nodetest.Equal(t, "records", n.records(), before)
	if err := n.do("uninstall", "--leave"); err != nil || n.read("net.d/00-multinet.conflist") != "" {
		t.Errorf("left: %v", err)
	}
	nodetest.Equal(t, "records after --leave", n.records(), before)
	n.Write("state/c9@multinet@eth0.json", "x")
	if err := n.do("uninstall"); err == nil || !strings.Contains(err.Error(), "corrupt") {
		t.Errorf("damaged: %v", err)
	}
}

// After --detach, containers have the cluster network only, and the runtime has what
// it needs to remove it.
func TestUninstallDetaches(t *testing.T) {
	t.Parallel()
	n := attached(t)
	n.mkdir("cni2")
	nodetest.OK(t, n.do("uninstall", "--detach", "--binary", "--cache-dir", n.Path("cni"), "--cache-dir", n.Path("cni2")))
	if n.read("net.d/00-multinet.conflist") != "" || n.read("bin/multinet") != "" || n.records() != nil {
		t.Errorf("left: %q", n.records())
	}
	trace := n.Exec.Trace()
	nodetest.Equal(t, "calls", trace[len(trace)-2:], []string{"DEL macvlan net1", "DEL macvlan net1"})
	if live := n.Exec.Live(); len(live) != 2 || strings.Contains(strings.Join(live, " "), "net1") {
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
	nodetest.OK(t, n.do("install", "--cni-dir", n.Path("state")))
	nodetest.Equal(t, "records", n.records(), []string{"multinet/c0/eth0 added blue", "multinet/c1/eth0 added blue", "multinet/c2/eth0 added blue"})
}

// A container whose ADD was running is detached as well.
func TestUninstallDetachesWhatIsAddedMeanwhile(t *testing.T) {
	t.Parallel()
	n := attached(t)
	network := nodetest.Parse(blue)
	works := n.Exec.Plugins["macvlan"]
	n.Exec.Plugins["macvlan"] = func(ctx context.Context, c delegatetest.Call) ([]byte, error) {
		if c.ContainerID == "c2" && c.Command == "DEL" {
			k := scratch.Key{Network: "multinet", ContainerID: "a1", IfName: "eth0"}
			plan := lifecycle.Plan(delegate.Attachment{Network: network, ContainerID: "a1", IfName: "eth0", NetNS: unseen})
			if _, err := n.life().Add(context.WithoutCancel(ctx), k, lifecycle.Transaction{Plan: plan}); err != nil {
				return nil, err
			}
		}
		return works(ctx, c)
	}
	nodetest.OK(t, n.do("uninstall", "--detach", "--binary", "--cache-dir", n.Path("cni")))
	if n.records() != nil || n.read("cni/results/blue-a1-eth0") == "" {
		t.Errorf("left: %q", n.records())
	}
	if !strings.Contains(n.said.String(), "4 attachments") {
		t.Errorf("said: %s", n.said.String())
	}
}

// With --multus-dir, Multus can remove what is left, and the runtime's cache has no
// entry that its DEL of Multus's network would leave behind.
func TestUninstallForMultus(t *testing.T) {
	t.Parallel()
	n := attached(t)
	for _, id := range []string{"c0", "c1", "c2"} {
		n.Write("cni/results/multinet-"+id+"-eth0", "{}")
	}
	n.Write("cni/results/multinet-c9-eth0", "{}") // of a container that multinet does not know
	n.mkdir("cni2")
	n.mkdir("multus")
	err := n.do("uninstall", "--detach", "--cache-dir", n.Path("cni"), "--cache-dir", n.Path("cni2"), "--multus-dir", n.Path("multus"))
	nodetest.OK(t, err)
	var left []string
	for _, file := range n.files() {
		if strings.HasPrefix(file, "cni") || strings.HasPrefix(file, "multus/") {
			left = append(left, file)
		}
	}
	want := []string{
		"cni/results/multinet-c9-eth0", "multus/c0", "multus/c1", "multus/c2",
		"multus/results/blue-c0-eth0", "multus/results/blue-c1-eth0", "multus/results/blue-c2-eth0",
	}
	nodetest.Equal(t, "files", left, want)
	// And back again.
	nodetest.OK(t, n.do("install", "--cni-dir", n.Path("state"), "--multus-dir", n.Path("multus")))
	nodetest.Equal(t, "records", n.records(), []string{"multinet/c0/eth0 added blue", "multinet/c1/eth0 added blue", "multinet/c2/eth0 added blue"})
}

// uninstall does not remove the network of the daemon.
func TestUninstallLeavesNetworksOfOtherTypes(t *testing.T) {
	t.Parallel()
	n := attached(t)
	theirs := published("other", `{"type":"multinet-shim","delegates":[`+blue+`]}`)
	n.Write("net.d/00-multinet.conflist", theirs)
	if err := n.do("uninstall", "--leave"); err != nil || n.read("net.d/00-multinet.conflist") != theirs {
		t.Errorf("it is removed: %v", err)
	}
	if err := n.do("uninstall", "--leave", "--type", "multinet-shim"); err != nil || n.read("net.d/00-multinet.conflist") != "" {
		t.Errorf("it is left: %v", err)
	}
}

// A wrong or forgotten flag, with which the published network would stay or containers
// would be forgotten, makes uninstall fail before it changes anything.
func TestUninstallWithAWrongFlagChangesNothing(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name    string
		install []string
		words   []string
		want    string
	}{
		{"wrong type", nil, []string{"--detach", "--type", "multinet-shim"}, `--type must be the type in it, "multinet"`},
		{"wrong type, other directory", nil, []string{"--detach", "--type", "multinet-shim", "--dir", "$DIR/none"}, `--type must be the type in it, "multinet"`},
		{"forgotten type", []string{"--type", "mine"}, []string{"--detach"}, `--type must be the type in it, "mine"`},
		{"forgotten output", []string{"--output", "01-x"}, []string{"--detach"}, "--output must be its name"},
		{"wrong name", nil, []string{"--detach", "--name", "x"}, `has the name "multinet"`},
		{"wrong name alone", nil, []string{"--name", "x"}, `has the name "multinet"`},
		{"wrong state directory", nil, []string{"--detach", "--dir", "$DIR/none"}, "has its records in"},
		{"wrong state directory alone", nil, []string{"--dir", "$DIR/none"}, "has its records in"},
		{"directory without networks", nil, []string{"--detach", "--conf-dir", "$DIR/cni"}, "--conf-dir must be the runtime's directory"},
		{"no directory of networks", nil, []string{"--detach", "--conf-dir", "$DIR/none"}, "--conf-dir: stat"},
		{"no cache", nil, []string{"--detach", "--cache-dir", "$DIR/cni", "--cache-dir", "$DIR/none"}, "-cache-dir: stat"},
		{"no directory of Multus", nil, []string{"--detach", "--multus-dir", "$DIR/none"}, "-multus-dir: stat"},
		{"relative directory of Multus", nil, []string{"--detach", "--multus-dir", "multus"}, "not an absolute path"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			n := attached(t, tt.install...)
			files, before := n.files(), n.records()
			err := n.do(append([]string{"uninstall", "--binary"}, tt.words...)...)
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("err = %v, want %q", err, tt.want)
			}
			nodetest.Equal(t, "files", n.files(), files)
			nodetest.Equal(t, "records", n.records(), before)
		})
	}
}

// A container that is gone is not said to be attached.
func TestUninstallTellsContainersThatAreGone(t *testing.T) {
	t.Parallel()
	n := newNode(t, "10-x.conflist", blue)
	n.Exec.Plugins = map[string]delegatetest.Plugin{"bridge": delegatetest.FailOn("DEL", 107, "busy", delegatetest.Result(nil))}
	n.cached("c1", blue, "/absent")
	nodetest.OK(t, n.do("install", "--cni-dir", n.Path("state")))
	for _, words := range [][]string{{"uninstall"}, {"uninstall", "--detach", "--cache-dir", n.Path("cni")}} {
		err := n.do(words...)
		if err == nil || !strings.Contains(err.Error(), "1 container is gone but not completely detached") || strings.Contains(err.Error(), "attached:") {
			t.Errorf("%q: %v", words, err)
		}
	}
}

// What cannot be detached stays recorded and is reported, and uninstall can be
// repeated.
func TestUninstallThatCannotDetach(t *testing.T) {
	t.Parallel()
	n := attached(t)
	works := n.Exec.Plugins["macvlan"]
	n.Exec.Plugins["macvlan"] = delegatetest.FailOn("DEL", 107, "busy", works)
	err := n.do("uninstall", "--detach", "--binary", "--cache-dir", n.Path("cni"))
	if err == nil || !strings.Contains(err.Error(), "2 containers are still attached") || !strings.Contains(err.Error(), "busy") || !strings.Contains(err.Error(), "--name multinet") {
		t.Errorf("err = %v", err)
	}
	if n.read("net.d/00-multinet.conflist") != "" || n.read("bin/multinet") == "" || len(n.records()) != 2 {
		t.Errorf("records %q", n.records())
	}
	n.Exec.Plugins["macvlan"] = works
	if err := n.do("uninstall", "--detach", "--binary", "--cache-dir", n.Path("cni")); err != nil || n.records() != nil || n.read("bin/multinet") != "" {
		t.Errorf("again: %v, records %q", err, n.records())
	}
}
