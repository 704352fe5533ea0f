package lifecycle

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/google/go-cmp/cmp"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/delegatetest"
)

func (n *node) attach() {
	n.t.Helper()
	if _, err := n.Attach(n.t.Context(), eth0, hotplug(eth0)); err != nil {
		n.t.Fatal(err)
	}
}

// What was attached later is checked, and deleted with the rest.
func TestAttachAddsToTheRecord(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.add(eth0)
	var created []any
	for r := range n.Records(t.Context()) {
		created = append(created, r.Created)
	}
	var taken []string
	added, err := n.Attach(t.Context(), eth0, Transaction{
		Plan: func(_ context.Context, names []string) ([]delegate.Attachment, error) {
			taken = names
			return []delegate.Attachment{attachment(network("green", "ipvlan"), "c1", "hot0")}, nil
		},
		Adjust: func(context.Context, []delegate.Attached) error {
			n.wantRecords("c1/eth0 partial") // it is on disk while it is made
			return nil
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(added) != 1 || added[0].IfName != "hot0" || added[0].Result == nil {
		t.Errorf("added %v", added)
	}
	if d := cmp.Diff([]string{"eth0", "net0"}, taken); d != "" {
		t.Errorf("taken (-want +got):\n%s", d)
	}
	n.wantRecords("c1/eth0 added")
	for r := range n.Records(t.Context()) {
		created = append(created, r.Created)
	}
	if created[0] != created[1] {
		t.Errorf("created at %v", created)
	}
	if err := n.Check(t.Context(), eth0); err != nil {
		t.Fatal(err)
	}
	nodeAt(t, n.Dir).del(eth0)
	n.wantTrace("ADD bridge eth0", "ADD tuning eth0", "ADD macvlan net0", "ADD ipvlan hot0",
		"CHECK bridge eth0", "CHECK tuning eth0", "CHECK macvlan net0", "CHECK ipvlan hot0")
}

func TestDelRemovesWhatWasAttachedLater(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.add(eth0)
	n.attach()
	// When it fails, it is tried again.
	n.failOn("DEL ipvlan", 101)
	wantCode(t, n.Del(t.Context(), Removal{Key: eth0}), 101)
	n.exec.Plugins = plugins()
	n.del(eth0)
	if d := cmp.Diff([]string{"DEL ipvlan hot0"}, n.trace()[8:]); d != "" {
		t.Errorf("calls (-want +got):\n%s", d)
	}
	n.wantNothing()
}

// There is nothing to attach to.
func TestAttachNeedsAnAttachment(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	refused := func(when string) {
		t.Helper()
		calls := n.trace()
		_, err := n.Attach(t.Context(), eth0, hotplug(eth0))
		if !errors.Is(err, ErrNotAdded) {
			t.Errorf("%s: err = %v", when, err)
		}
		wantCode(t, err, 7)
		n.wantTrace(calls...)
	}
	refused("no directory")
	n.wantNothing()
	n.add(key("c2", "eth0"))
	refused("no record")
	n.add(eth0)
	n.failOn("DEL bridge", 101)
	if err := n.Del(t.Context(), Removal{Key: eth0}); err == nil {
		t.Fatal("Del succeeded")
	}
	refused("half deleted")
	n.exec.Plugins = plugins()
	n.del(eth0)
	n.del(key("c2", "eth0"))
	n.wantNothing()
}

// An Attach that fails anywhere leaves the attachment as it was.
func TestAttachLeavesNothingWhereverItFails(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		spoil func(*node, *Transaction)
		code  uint
	}{
		"plan": {func(_ *node, t *Transaction) {
			t.Plan = Plan(attachment(network("green", "ipvlan"), "c1", "net0"))
		}, 7},
		"plugin": {func(n *node, _ *Transaction) { n.failOn("ADD ipvlan", 101) }, 101},
		"Adjust": {func(_ *node, t *Transaction) {
			t.Adjust = func(context.Context, []delegate.Attached) error { return types.NewError(102, "no", "") }
		}, 102},
		"Report": {func(_ *node, t *Transaction) {
			t.Report = func(context.Context, []delegate.Attached) error { return types.NewError(103, "no", "") }
		}, 103},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t)
			n.add(eth0)
			tr := hotplug(eth0)
			tt.spoil(n, &tr)
			_, err := n.Attach(t.Context(), eth0, tr)
			wantCode(t, err, tt.code)
			if e := (*Error)(nil); !errors.As(err, &e) || e.Op != "ATTACH" || e.Key != eth0 {
				t.Errorf("err = %v", err)
			}
			n.wantRecords("c1/eth0 added")
			if d := cmp.Diff([]string{"bridge c1 eth0", "macvlan c1 net0", "tuning c1 eth0"}, n.exec.Live()); d != "" {
				t.Errorf("alive (-want +got):\n%s", d)
			}
			n.exec.Plugins = plugins()
			n.attach() // and it can be done now
			n.del(eth0)
			n.wantNothing()
		})
	}
}

// The same when the record cannot be written at the end: the plugins' work is
// undone, and the error says that the record is not what it was.
func TestAttachThatCannotBeNotedIsUndone(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.add(eth0)
	tr := hotplug(eth0)
	tr.Adjust = func(context.Context, []delegate.Attached) error { return os.Remove(n.recordFile(eth0)) }
	_, err := n.Attach(t.Context(), eth0, tr)
	wantCode(t, err, 5)
	if left := n.exec.Live(); len(left) != 3 {
		t.Errorf("alive: %q", left)
	}
}

// What a crash or a failed undo leaves of an Attach is not taken for attached,
// and is removed by the next Attach, by Detach and by Del.
func TestCrashInAttachIsCleanedUp(t *testing.T) {
	t.Parallel()
	lefts := map[string]func(*node){
		"dies": func(n *node) {
			n.on("ADD ipvlan", func(context.Context, delegatetest.Call) error { runtime.Goexit(); return nil })
			n.dies(func() error { _, err := n.Attach(n.t.Context(), eth0, hotplug(eth0)); return err })
		},
		"undo fails": func(n *node) {
			n.failOn("ADD ipvlan", 101)
			n.failOn("DEL ipvlan", 102)
			_, err := n.Attach(n.t.Context(), eth0, hotplug(eth0))
			wantCode(n.t, err, 101)
		},
		"undo fails after all was recorded": func(n *node) {
			tr := hotplug(eth0)
			tr.Report = func(context.Context, []delegate.Attached) error { return types.NewError(101, "no", "") }
			n.failOn("DEL ipvlan", 102)
			_, err := n.Attach(n.t.Context(), eth0, tr)
			wantCode(n.t, err, 101)
		},
	}
	for left, leave := range lefts {
		for then, do := range map[string]func(*node){
			"Del":    func(*node) {},
			"Attach": func(n *node) { n.attach() },
			"Detach": func(n *node) {
				if err := n.Detach(n.t.Context(), eth0, "hot0"); err != nil {
					n.t.Error(err)
				}
				n.wantRecords("c1/eth0 added")
				if err := n.Check(n.t.Context(), eth0); err != nil {
					n.t.Error(err)
				}
			},
		} {
			t.Run(left+", "+then, func(t *testing.T) {
				t.Parallel()
				n := newNode(t)
				n.add(eth0)
				leave(n)
				n.exec.Plugins = plugins()
				n.wantRecords("c1/eth0 partial")
				if err := n.Check(t.Context(), eth0); err != nil { // what is left over is no part of it
					t.Error(err)
				}
				tried := len(n.trace())
				do(n)
				n.del(eth0)
				n.wantNothing()
				first := n.first("DEL ipvlan", tried)
				known := stdin(t, first)["prevResult"] != nil
				if left == "undo fails after all was recorded" && !known {
					t.Error("DEL was not given the result, which is known")
				}
			})
		}
	}
}

func TestDetachRemovesOneInterface(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	detach := func(name string) error { return n.Detach(t.Context(), eth0, name) }
	if err := detach("net0"); err != nil { // no directory
		t.Error(err)
	}
	n.add(key("c2", "eth0"))
	if err := detach("net0"); err != nil { // no record
		t.Error(err)
	}
	n.add(eth0)
	n.attach()
	calls := n.trace()
	if err := detach("net7"); err != nil { // never there
		t.Error(err)
	}
	err := detach("eth0")
	wantCode(t, err, 7)
	if !errors.Is(err, ErrPlan) {
		t.Errorf("err = %v", err)
	}
	n.wantTrace(calls...)
	n.failOn("DEL ipvlan", 101)
	wantCode(t, detach("hot0"), 101)
	n.wantRecords("c1/eth0 partial", "c2/eth0 added")
	if err := n.Check(t.Context(), eth0); err != nil { // nobody knows what is left of it
		t.Error(err)
	}
	n.exec.Plugins = plugins()
	for range 2 { // and when it is gone already
		if err := detach("hot0"); err != nil {
			t.Error(err)
		}
	}
	if err := detach("net0"); err != nil { // one that came with ADD
		t.Error(err)
	}
	if err := n.Check(t.Context(), eth0); err != nil {
		t.Error(err)
	}
	n.wantTrace(append(calls, "DEL ipvlan hot0", "CHECK bridge eth0", "CHECK tuning eth0", "CHECK macvlan net0", "DEL ipvlan hot0", "DEL macvlan net0", "CHECK bridge eth0", "CHECK tuning eth0")...)
	n.damage(key("c2", "eth0"))
	wantCode(t, n.Detach(t.Context(), key("c2", "eth0"), "net0"), 5)
	n.del(eth0)
	n.wantRecords("c2/eth0 damaged")
}

// The last interface of an attachment may go, when its own never came.
func TestDetachRemovesEveryNetworkOfAnInterface(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	if _, err := n.Add(t.Context(), eth0, hotplug(eth0)); err != nil {
		t.Fatal(err)
	}
	if err := n.Detach(t.Context(), eth0, "hot0"); err != nil {
		t.Fatal(err)
	}
	n.wantRecords("c1/eth0 added")
	n.attach()
	n.del(eth0)
	n.wantNothing()
}

// Detach has the recorded namespace, as long as it is that.
func TestDetachKeepsToTheRecordedNamespace(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	ns := filepath.Join(t.TempDir(), "ns")
	if err := os.WriteFile(ns, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	a := attachment(network("blue", "bridge"), "c1", "net0")
	a.NetNS = ns
	if _, err := n.Add(t.Context(), eth0, Transaction{Plan: Plan(a)}); err != nil {
		t.Fatal(err)
	}
	if err := n.Detach(t.Context(), eth0, "net0"); err != nil {
		t.Fatal(err)
	}
	if got := n.last("DEL").NetNS; got != ns {
		t.Errorf("netns %q", got)
	}
}
