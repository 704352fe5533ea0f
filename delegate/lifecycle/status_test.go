package lifecycle

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/google/go-cmp/cmp"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/delegatetest"
	"github.com/metacni/metacni/internal/nodetest"
	"github.com/metacni/metacni/netconf"
	"github.com/metacni/metacni/scratch"
	"github.com/metacni/metacni/status"
)

// results of the plugins for the status, in the forms that there are.
const (
	full = `{"cniVersion":"1.1.0","interfaces":[{"name":"br0"},{"name":"eth0","mac":"02:00:00:00:00:02","mtu":1400,"sandbox":"/ns"},{"name":"eth0.7","sandbox":"/ns"}],
		"ips":[{"address":"10.0.0.2/24","gateway":"10.0.0.1","interface":1},{"address":"10.7.0.2/24","gateway":"10.7.0.1","interface":2}]}`
	hostOnly = `{"cniVersion":"1.0.0","interfaces":[{"name":"veth1"}],"dns":{"domain":"a"}}`
	old      = `{"cniVersion":"0.2.0","ip4":{"ip":"10.2.0.2/24","gateway":"10.2.0.1"}}`
)

// recorded is the status as another process has it from the record.
func (n *node) recorded(name func(delegate.Attached) string) []status.Network {
	n.Helper()
	rs, err := nodeAt(n.TB, n.Dir).Container(n.Context(), "c1")
	if err != nil || len(rs) != 1 {
		n.Fatalf("%d records, %v", len(rs), err)
	}
	first := rs[0].Status(name)
	if d := cmp.Diff(first, rs[0].Status(name)); d != "" {
		n.Errorf("asked again:\n%s", d)
	}
	return first
}

func (n *node) wantStatus(name func(delegate.Attached) string, want ...status.Network) {
	n.Helper()
	nodetest.Equal(n.TB, "status", n.recorded(name), want)
}

// Every attachment has an entry, whatever its plugin has printed, in the order of
// attachment. One interface is the default: of the network that the runtime asked for.
func TestStatusHasEveryAttachment(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.printing("bridge", full)
	n.printing("macvlan", hostOnly)
	n.printing("ipvlan", old)
	n.printing("tuning", `{"cniVersion":"1.1.0"}`)
	plan := Plan(
		attachment(nodetest.Network("blue", "bridge"), "c1", "eth0"),
		attachment(nodetest.Network("red", "macvlan"), "c1", "net1"),
		attachment(nodetest.Parse(`{"cniVersion":"0.2.0","name":"old","type":"ipvlan"}`), "c1", "net2"),
		attachment(nodetest.Network("green", "tuning"), "c1", "net3"),
	)
	want := []status.Network{
		{Name: "blue", Interface: "eth0", MAC: "02:00:00:00:00:02", MTU: 1400, IPs: []string{"10.0.0.2"}, Gateway: []string{"10.0.0.1"}, Default: true},
		{Name: "blue", Interface: "eth0.7", IPs: []string{"10.7.0.2"}, Gateway: []string{"10.7.0.1"}},
		{Name: "red", Interface: "net1"},
		{Name: "old", Interface: "net2", IPs: []string{"10.2.0.2"}, Gateway: []string{"10.2.0.1"}},
		{Name: "green", Interface: "net3"},
	}
	want[2].DNS.Domain = "a"
	reported := false
	_, err := n.Add(t.Context(), eth0, Transaction{Plan: plan, Report: func(_ context.Context, added []delegate.Attached) error {
		reported = true
		n.wantStatus(nil, want...)
		composed := Record{Key: eth0, State: scratch.Added, Attached: added}
		nodetest.Equal(t, "of what was added", composed.Status(nil), want)
		return nil
	}})
	if err != nil || !reported {
		t.Fatal(err)
	}
	n.wantStatus(nil, want...)
	named := slices.Clone(want)
	for i := range named {
		named[i].Name = "ns/" + named[i].Name
	}
	n.wantStatus(func(a delegate.Attached) string { return "ns/" + a.Network.Name() }, named...)
}

// The status is of what the container can use: nothing while it is being attached or
// detached, and no network that is half attached.
func TestStatusLeavesOutWhatIsNotWhole(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.On("ADD macvlan", func(context.Context, delegatetest.Call) error {
		n.wantStatus(nil)
		return nil
	})
	n.add(eth0)
	both := []status.Network{{Name: "blue", Interface: "eth0", Default: true}, {Name: "red", Interface: "net0"}}
	n.wantStatus(nil, both...)
	n.On("ADD ipvlan", func(context.Context, delegatetest.Call) error {
		n.wantStatus(nil, both...)
		return nil
	})
	n.attach()
	n.wantStatus(nil, slices.Concat(both, []status.Network{{Name: "green", Interface: "hot0"}})...)
	nodetest.OK(t, n.Detach(t.Context(), eth0, "hot0"))
	n.wantStatus(nil, both...)
	n.FailOn("DEL bridge", 100)
	if err := n.Del(t.Context(), Removal{Key: eth0}); err == nil {
		t.Error("Del succeeded")
	}
	n.wantStatus(nil)
}

// What was adopted may have no result, and a result may be of no known version.
func TestStatusOfResultsThatCannotBeRead(t *testing.T) {
	t.Parallel()
	blue, red := attachment(nodetest.Network("blue", "bridge"), "c1", "eth0"), attachment(nodetest.Network("red", "macvlan"), "c1", "net1")
	r := Record{Key: eth0, State: scratch.Added, Attached: []delegate.Attached{{Attachment: blue}, {Attachment: red, Result: raw(`{"cniVersion":"9.9.9","ips":7}`)}}}
	want := []status.Network{{Name: "blue", Interface: "eth0", Default: true}, {Name: "red", Interface: "net1"}}
	nodetest.Equal(t, "", r.Status(nil), want)
}

// Package examples/nri records attachments beside the interface of the runtime.
func TestStatusWithoutAPrimaryHasNoDefault(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.printing("macvlan", strings.ReplaceAll(full, "eth0", "net1"))
	n.mustAdd(eth0, Transaction{Plan: Plan(attachment(nodetest.Network("red", "macvlan"), "c1", "net1"))})
	for _, s := range n.recorded(nil) {
		if s.Default {
			t.Errorf("%+v", s)
		}
	}
	if got := (Record{}).Status(nil); got != nil {
		t.Errorf("of nothing: %+v", got)
	}
}

// STATUS tries what an ADD does first: it is an error if nothing can be written in the
// directory of the records, and no file is left or touched.
func TestStatusTriesToWrite(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	for range 2 {
		nodetest.OK(t, n.Status(t.Context(), nil))
	}
	if left := files(t, n.Dir); len(left) > 0 {
		t.Errorf("left %q", left)
	}
	n.add(eth0)
	before := n.files()
	nodetest.OK(t, os.WriteFile(filepath.Join(n.Dir, ".tmp-try"), []byte("of one that was killed"), 0o600))
	nodetest.OK(t, n.Status(t.Context(), []netconf.Network{nodetest.Network("blue", "bridge")}))
	if d := cmp.Diff(before, n.files()); d != "" {
		t.Errorf("files (-before +after):\n%s", d)
	}
	nodetest.OK(t, os.Mkdir(filepath.Join(n.Dir, ".tmp-try"), 0o700))
	calls := len(n.trace())
	err := n.Status(t.Context(), []netconf.Network{nodetest.Network("blue", "bridge")})
	nodetest.Code(t, err, types.ErrIOFailure)
	nodetest.Says(t, err, n.Dir)
	if len(n.trace()) != calls {
		t.Error("a plugin was asked")
	}

	file := filepath.Join(t.TempDir(), "file")
	nodetest.OK(t, os.WriteFile(file, nil, 0o600))
	err = (&Manager{Dir: file}).Status(t.Context(), nil)
	nodetest.Code(t, err, types.ErrIOFailure)
	nodetest.Says(t, err, file)
}
