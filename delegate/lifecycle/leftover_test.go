package lifecycle

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/delegatetest"
	"github.com/metacni/metacni/internal/nodetest"
	"github.com/metacni/metacni/scratch"
)

// What a failed Attach has left, and what cannot be removed, is in nobody's way
// but that of its own interface name.
func TestLeftoverOfAttachBlocksNothingElse(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.add(eth0)
	n.FailOn("ADD ipvlan hot0", 101)
	n.FailOn("DEL ipvlan hot0", 102)
	_, err := n.Attach(t.Context(), eth0, hotplug(eth0))
	nodetest.Code(t, err, 101)
	n.wantRecords("c1/eth0 partial")

	nodetest.OK(t, n.Check(t.Context(), eth0))
	other := Transaction{Plan: Plan(attachment(nodetest.Network("green", "ipvlan"), "c1", "hot1"))}
	n.mustAttach(eth0, other)
	n.wantRecords("c1/eth0 partial")
	nodetest.OK(t, n.Check(t.Context(), eth0))
	n.wantTrace(append(n.trace()[:len(n.trace())-4],
		"CHECK bridge eth0", "CHECK tuning eth0", "CHECK macvlan net0", "CHECK ipvlan hot1")...)

	_, err = n.Attach(t.Context(), eth0, hotplug(eth0))
	if !errors.Is(err, ErrPlan) {
		t.Errorf("the leftover's own name: %v", err)
	}
	nodetest.Says(t, err, "hot0", "in use", "DEL network") // and why it is
	nodetest.Code(t, n.Detach(t.Context(), eth0, "hot0"), 102)
	nodetest.OK(t, n.Detach(t.Context(), eth0, "hot1"))
	n.wantRecords("c1/eth0 partial")

	n.Exec.Plugins = plugins() // it is mended
	n.attach()
	n.wantRecords("c1/eth0 added")
	n.del(eth0)
	n.wantNothing()
}

// named makes the interfaces of the namespace at netns known.
func (n *node) named(netns string, names ...string) {
	n.InterfaceNames = func(path string) ([]string, error) {
		if path == netns {
			return append([]string{"lo"}, names...), nil
		}
		return nil, nil
	}
}

// failedAdd makes an ADD fail whose undo fails too, in the namespace netns.
func (n *node) failedAdd(k scratch.Key, netns string) {
	n.Helper()
	n.FailOn("ADD tuning", 101)
	n.FailOn("DEL bridge", 102)
	tr := pair(k)
	tr.Plan = inNetNS(tr.Plan, netns)
	_, err := n.Add(n.Context(), k, tr)
	nodetest.Code(n.TB, err, 101)
	n.named(netns)
	n.wantRecords(k.ContainerID + "/" + k.IfName + " leftover")
}

// What never was attached does not hold up the DEL of a container, unless its interface
// is there: the record stays, and sweeps and GC try again.
func TestLeftoverOfAnAddDoesNotHoldUpTheDel(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		there []string
		holds bool
	}{
		"its interface is not there": {nil, false},
		"its interface is there":     {[]string{"eth0"}, true},
		"another one is there":       {[]string{"eth1"}, false},
		"one that was undone":        {[]string{"net0"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n, netns := newNode(t), newNetNS(t)
			n.failedAdd(eth0, netns)
			n.named(netns, tt.there...)
			for range 2 {
				err := n.Del(t.Context(), Removal{Key: eth0, NetNS: netns})
				if tt.holds {
					nodetest.Code(t, err, 102)
				} else if err != nil {
					t.Error(err)
				}
				n.wantRecords("c1/eth0 leftover")
			}
			n.Exec.Plugins = plugins()
			newSweeper(n).sweep(Sweep{Removed: 1})
			n.wantNothing()
		})
	}
}

// stuckBridge makes bridge fail in ADD and in DEL, so that an ADD leaves it.
func (n *node) stuckBridge() {
	n.FailOn("ADD bridge", 101)
	n.FailOn("DEL bridge", 102)
}

// clear mends the plugins and removes eth0. Nothing must be left, and the plugin bridge
// must have been called once for each of the ADDs that left it.
func (n *node) clear(adds int) {
	n.Helper()
	n.Exec.Plugins = plugins()
	before := len(n.trace())
	n.del(eth0)
	n.wantNothing()
	if got := n.trace()[before:]; strings.Count(strings.Join(got, ","), "DEL bridge eth0") != adds {
		n.Errorf("DELs %q, want one of bridge for each of %d ADDs", got, adds)
	}
}

// If the disk is full when a new ADD removes what earlier ones have left, and has room
// again when it records its plan, nothing of the leftovers is lost.
func TestLeftoversAreKeptIfTheyCannotBeNoted(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.stuckBridge()
	for _, args := range []string{"TRY=1", "TRY=2"} {
		nodetest.Code(t, n.addArgs(args), 101)
	}
	record := filepath.Join(n.Dir, "c1@multi@eth0.json")
	full := filepath.Join(n.Dir, ".tmp-c1@multi@eth0.json") // as in files_test.go
	nodetest.OK(t, errors.Join(os.Link(record, record+".copy"), os.Mkdir(full, 0o700)))
	tr := Transaction{Plan: func(context.Context, []string) ([]delegate.Attachment, error) {
		return []delegate.Attachment{attachment(nodetest.Network("green", "ipvlan"), "c1", "eth0")}, errors.Join(os.Remove(record+".copy"), os.Remove(full))
	}}
	n.mustAdd(eth0, tr)
	n.clear(2)
}

// An attachment is not handed to another program while its record is the only one that
// knows of a leftover.
func TestReleaseKeepsLeftovers(t *testing.T) {
	t.Parallel()
	n, netns := newNode(t), newNetNS(t)
	n.failedAdd(eth0, netns)
	bridge := n.Exec.Plugins["bridge"]
	n.Exec.Plugins = plugins()
	n.Exec.Plugins["bridge"] = bridge // its DEL fails
	n.addIn(eth0, netns)
	before := len(n.trace())
	err := n.Release(t.Context(), eth0, func(context.Context, Record) error {
		t.Error("it was handed over")
		return nil
	})
	nodetest.Code(t, err, 11)
	if got := n.trace()[before:]; len(got) > 0 {
		t.Errorf("ran %q", got)
	}
	n.wantRecords("c1/eth0 added")
	n.Exec.Plugins = plugins()
	n.del(eth0)
	n.wantNothing()
}

// addArgs adds what most tests attach, with CNI_ARGS.
func (n *node) addArgs(args string) error {
	blue := attachment(nodetest.Network("blue", "bridge", "tuning"), "c1", "eth0")
	red := attachment(nodetest.Network("red", "macvlan"), "c1", "net0")
	blue.Args, red.Args = args, args
	_, err := n.Add(n.Context(), eth0, Transaction{Plan: Plan(blue, red)})
	return err
}

// However much a plugin has to say, its failure is counted, and the beginning of it
// kept.
func TestDelThatFailsAtLengthIsCounted(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.DelTries = 2
	n.add(eth0)
	n.On("DEL tuning", func(context.Context, delegatetest.Call) error {
		return types.NewError(101, strings.Repeat("é", 1<<20), "")
	})
	if err := n.Del(t.Context(), Removal{Key: eth0}); err == nil {
		t.Error("success")
	}
	r, err := n.store().Get(eth0)
	if err != nil || r.Value.Tries != 1 || !strings.Contains(r.Value.Why, "tuning") || len(r.Value.Why) > 1<<12 || strings.Contains(r.Value.Why, "\ufffd") {
		t.Errorf("%d tries, %d bytes: %v", r.Value.Tries, len(r.Value.Why), err)
	}
	n.del(eth0)
}

// A DEL that always fails has an end for the runtime once the network namespace
// is gone, and is not forgotten.
func TestDelThatNeverSucceedsIsGivenUp(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name     string
		tries    int
		missing  bool // instead of failing
		there    bool // the namespace is
		attempts []bool
	}{
		{"never", 0, false, false, []bool{false, false, false, false}},
		{"at once", 1, false, false, []bool{true, true}},
		{"after three", 3, false, false, []bool{false, false, true, true}},
		{"after three without an executable", 3, true, false, []bool{false, false, true, true}},
		{"not while the namespace is there", 1, false, true, []bool{false, false}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t)
			n.DelTries = tt.tries
			netns := newNetNS(t)
			plan := pair(eth0)
			plan.Plan = inNetNS(plan.Plan, netns)
			n.mustAdd(eth0, plan)
			if !tt.there {
				unlink(t, netns)
			}
			tuning := n.Exec.Plugins["tuning"]
			if tt.missing {
				delete(n.Exec.Plugins, "tuning")
			} else {
				n.FailOn("DEL tuning", 123)
			}
			for i, ok := range tt.attempts {
				err := n.Del(t.Context(), Removal{Key: eth0, NetNS: netns})
				if (err == nil) != ok {
					t.Fatalf("DEL %d: %v", i+1, err)
				}
				if !ok && tt.missing && !errors.Is(err, delegate.ErrPluginNotFound) {
					t.Errorf("DEL %d: %v", i+1, err)
				}
			}
			n.wantRecords("c1/eth0 deleting")
			r, err := n.store().Get(eth0)
			if err != nil || r.Value.Tries != len(tt.attempts) || !strings.Contains(r.Value.Why, "tuning") {
				t.Errorf("tried %d times, because of %q: %v", r.Value.Tries, r.Value.Why, err)
			}
			if _, err := n.Add(t.Context(), eth0, pair(eth0)); err == nil {
				t.Error("an ADD beside what is left")
			}
			if err := n.GC(t.Context(), Collection{Network: "multi", Valid: []types.GCAttachment{}}); err == nil {
				t.Error("GC said nothing")
			}
			n.Exec.Plugins["tuning"] = tuning // it is mended
			nodetest.OK(t, n.GC(t.Context(), Collection{Network: "multi", Valid: []types.GCAttachment{}}))
			n.wantNothing()
		})
	}
}

// newNetNS returns the path of a network namespace, as far as one can be told
// from another here.
func newNetNS(tb testing.TB) string {
	tb.Helper()
	path := filepath.Join(tb.TempDir(), "ns")
	nodetest.OK(tb, os.WriteFile(path, nil, 0o600))
	return path
}

func unlink(tb testing.TB, path string) {
	tb.Helper()
	nodetest.OK(tb, os.Remove(path))
}

// inNetNS is plan in a network namespace.
func inNetNS(plan func(context.Context, []string) ([]delegate.Attachment, error), netns string) func(context.Context, []string) ([]delegate.Attachment, error) {
	return func(ctx context.Context, taken []string) ([]delegate.Attachment, error) {
		as, err := plan(ctx, taken)
		for i := range as {
			as[i].NetNS = netns
		}
		return as, err
	}
}

// A GC that may remove only a part of a leftover spares the interface that another
// attachment has by now, as a DEL does.
func TestGCOfAPartOfALeftoverSparesTheInterfaceOfAnother(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	mute := nodetest.Parse(`{"cniVersion":"1.1.0","name":"red","disableGC":true,"plugins":[{"type":"macvlan"}]}`)
	both := Transaction{Plan: Plan(attachment(nodetest.Network("blue", "bridge"), "c1", "eth0"), attachment(mute, "c1", "net0"))}
	n.FailOn("ADD macvlan", 101)
	n.FailOn("DEL", 102)
	_, err := n.Add(t.Context(), eth0, both)
	nodetest.Code(t, err, 101)
	n.Exec.Plugins = plugins()
	other := scratch.Key{Network: "other", ContainerID: "c1", IfName: "eth0"}
	n.mustAdd(other, Transaction{Plan: Plan(attachment(nodetest.Network("gold", "ipvlan"), "c1", "eth0"))})
	before := len(n.trace())
	nodetest.Code(t, n.GC(t.Context(), Collection{Network: "multi", Valid: noneValid}), 999)
	for _, call := range n.trace()[before:] {
		if strings.HasPrefix(call, "DEL") {
			t.Errorf("beside the other attachment: %s", call)
		}
	}
	nodetest.OK(t, n.Del(t.Context(), Removal{Key: other}))
	nodetest.OK(t, n.GC(t.Context(), Collection{Network: "multi", Valid: noneValid}))
	n.wantRecords("c1/eth0 leftover") // of red
}

// What was undone already keeps no leftover for the sake of another's interface.
func TestLeftoverIsRemovedBesideTheOwnerOfWhatWasUndone(t *testing.T) {
	t.Parallel()
	n, netns := newNode(t), newNetNS(t)
	n.failedAdd(eth0, netns)
	n.Exec.Plugins = plugins()
	other := scratch.Key{Network: "other", ContainerID: "c1", IfName: "net0"}
	n.mustAdd(other, Transaction{Plan: Plan(attachment(nodetest.Network("gold", "ipvlan"), "c1", "net0"))})
	n.del(eth0)
	n.wantRecords("c1/net0 added")
}
