package lifecycle

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/scratch"
)

// asked is the origin of the attachments that the tests reconcile.
type asked struct{ Network, IfName, Options string }

func recorded(a delegate.Attached) (w Wanted, mine bool) {
	var o asked
	mine = json.Unmarshal(a.Origin, &o) == nil && o.Network != ""
	return Wanted{Network: o.Network, IfName: o.IfName, Options: o.Options}, mine
}

// wanted reads "network", "network@interface" and "network@interface?options". The
// plugin of a network is the one in front of the "-" in its name.
func wanted(texts ...string) []Wanted {
	var all []Wanted
	for _, text := range texts {
		text, options, _ := strings.Cut(text, "?")
		name, ifname, _ := strings.Cut(text, "@")
		all = append(all, Wanted{Network: name, IfName: ifname, Options: options, Plan: func(_ context.Context, taken []string) (delegate.Attachment, error) {
			plugin, _, _ := strings.Cut(name, "-")
			origin, err := json.Marshal(asked{name, ifname, options})
			a := delegate.Attachment{Network: network(name, plugin), IfName: ifname, Origin: origin}
			for i := 1; a.IfName == "" || ifname == "" && slices.Contains(taken, a.IfName); i++ {
				a.IfName = fmt.Sprint("net", i)
			}
			return a, err
		}})
	}
	return all
}

func keep(texts ...string) Reconciliation {
	return Reconciliation{
		Wanted:   func(context.Context, Record) ([]Wanted, error) { return wanted(texts...), nil },
		Recorded: recorded,
	}
}

// reconciled are what was done, as "ATTACH network interface".
func reconciled(done []Reconciled) []string {
	var all []string
	for _, d := range done {
		line := strings.TrimSpace(fmt.Sprintf("%s %s %s", d.Op, d.Wanted.Network, d.Attached.IfName))
		if d.Err != nil {
			line += " failed"
		}
		all = append(all, line)
	}
	return all
}

// own attaches the container to its own network and one more that the configuration
// has chosen.
func (n *node) own() {
	n.t.Helper()
	if _, err := n.Add(n.t.Context(), eth0, Transaction{Plan: Plan(
		attachment(network("cluster", "bridge"), "c1", "eth0"), attachment(network("default", "tuning"), "c1", "dflt0"),
	)}); err != nil {
		n.t.Fatal(err)
	}
}

func (n *node) reconcile(r Reconciliation) []string {
	n.t.Helper()
	done, err := n.Reconcile(n.t.Context(), eth0, r)
	if err != nil {
		n.t.Error(err)
	}
	return reconciled(done)
}

// attachments are those in the record of eth0, "network interface".
func (n *node) attachments() []string {
	n.t.Helper()
	rs, err := n.Container(n.t.Context(), "c1")
	if err != nil {
		n.t.Fatal(err)
	}
	var all []string
	for _, r := range rs {
		for i, a := range r.Attached {
			line := a.Network.Name() + " " + a.IfName
			if !r.Whole(i) {
				line += " half"
			}
			all = append(all, line)
		}
	}
	return all
}

func (n *node) wantAttachments(want ...string) {
	n.t.Helper()
	if d := cmp.Diff(append([]string{"cluster eth0", "default dflt0"}, want...), n.attachments()); d != "" {
		n.t.Errorf("recorded (-want +got):\n%s", d)
	}
}

func TestReconcileAttachesAndDetachesWhatDiffers(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		before, after string
		replace       bool
		done          []string
		then          []string
	}{
		"nothing differs": {
			before: "ipvlan macvlan@hot0", after: "ipvlan macvlan@hot0",
			then: []string{"ipvlan net1", "macvlan hot0"},
		},
		"the order alone changes nothing": {
			before: "ipvlan macvlan@hot0", after: "macvlan@hot0 ipvlan",
			then: []string{"ipvlan net1", "macvlan hot0"},
		},
		"all at once": {
			after: "ipvlan macvlan@hot0", done: []string{"ATTACH ipvlan net1", "ATTACH macvlan hot0"},
			then: []string{"ipvlan net1", "macvlan hot0"},
		},
		"nothing is wanted any more": {
			before: "ipvlan macvlan@hot0", done: []string{"DETACH macvlan hot0", "DETACH ipvlan net1"},
		},
		"two networks swap their interfaces": {
			before: "ipvlan@hot0 macvlan@hot1", after: "macvlan@hot0 ipvlan@hot1",
			done: []string{"DETACH macvlan hot1", "DETACH ipvlan hot0", "ATTACH macvlan hot0", "ATTACH ipvlan hot1"},
			then: []string{"macvlan hot0", "ipvlan hot1"},
		},
		"another network takes the interface": {
			before: "ipvlan@hot0", after: "macvlan@hot0",
			done: []string{"DETACH ipvlan hot0", "ATTACH macvlan hot0"}, then: []string{"macvlan hot0"},
		},
		"a network without an interface keeps the one that it has": {
			before: "ipvlan macvlan", after: "macvlan", done: []string{"DETACH ipvlan net1"}, then: []string{"macvlan net2"},
		},
		"the same network more than once": {
			before: "ipvlan ipvlan", after: "ipvlan ipvlan ipvlan", done: []string{"ATTACH ipvlan net3"},
			then: []string{"ipvlan net1", "ipvlan net2", "ipvlan net3"},
		},
		"the same network less often": {
			before: "ipvlan ipvlan ipvlan", after: "ipvlan", done: []string{"DETACH ipvlan net3", "DETACH ipvlan net2"},
			then: []string{"ipvlan net1"},
		},
		"the interface that it has anyway is asked for": {
			before: "ipvlan", after: "ipvlan@net1", then: []string{"ipvlan net1"},
		},
		"and is taken from the one without": {
			before: "ipvlan", after: "ipvlan ipvlan@net1", done: []string{"ATTACH ipvlan net2"}, then: []string{"ipvlan net1", "ipvlan net2"},
		},
		"an interface is not asked for any more": {
			before: "ipvlan@hot0", after: "ipvlan", done: []string{"DETACH ipvlan hot0", "ATTACH ipvlan net1"}, then: []string{"ipvlan net1"},
		},
		"an interface without a name leaves the names that are asked for": {
			after: "ipvlan macvlan@net1", done: []string{"ATTACH ipvlan net2", "ATTACH macvlan net1"}, then: []string{"ipvlan net2", "macvlan net1"},
		},
		"equal options come first": {
			before: "ipvlan?a ipvlan?b", after: "ipvlan?b", done: []string{"DETACH ipvlan net1"}, then: []string{"ipvlan net2"},
		},
		"other options change nothing": {
			before: "ipvlan@hot0?a macvlan?a", after: "ipvlan@hot0?b macvlan?b", done: []string{"ipvlan hot0", "macvlan net1"},
			then: []string{"ipvlan hot0", "macvlan net1"},
		},
		"or replace an interface that is asked for": {
			before: "ipvlan@hot0?a macvlan?a", after: "ipvlan@hot0?b macvlan?b", replace: true,
			done: []string{"DETACH ipvlan hot0", "ATTACH ipvlan hot0", "macvlan net1"}, then: []string{"macvlan net1", "ipvlan hot0"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t)
			n.own()
			n.reconcile(keep(strings.Fields(tt.before)...))
			r := keep(strings.Fields(tt.after)...)
			r.Replace = tt.replace
			if d := cmp.Diff(tt.done, n.reconcile(r)); d != "" {
				t.Errorf("done (-want +got):\n%s", d)
			}
			n.wantAttachments(tt.then...)
			n.wantRecords("c1/eth0 added")
			calls := n.trace()
			for _, again := range n.reconcile(r) {
				if strings.Contains(again, "TACH") {
					t.Errorf("again: %s", again)
				}
			}
			n.wantTrace(calls...)
			n.del(eth0)
			n.wantNothing()
		})
	}
}

// Neither the attachment's own interface nor those that the caller does not know,
// nor what another request has attached.
func TestReconcileLeavesWhatIsNotTheCallers(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	origin := raw(`{"Network":"cluster"}`)
	mine := attachment(network("cluster", "bridge"), "c1", "eth0")
	mine.Origin = origin
	if _, err := n.Add(t.Context(), eth0, Transaction{Plan: Plan(mine, attachment(network("default", "tuning"), "c1", "dflt0"))}); err != nil {
		t.Fatal(err)
	}
	n.attach()
	n.reconcile(keep("macvlan"))
	n.wantAttachments("green hot0", "macvlan net1")
	n.reconcile(keep())
	n.wantAttachments("green hot0")
	n.wantTrace("ADD bridge eth0", "ADD tuning dflt0", "ADD ipvlan hot0", "ADD macvlan net1", "DEL macvlan net1")
}

// The record says where: the definition of a network that goes is not needed, nor
// its plan, and plugins receive the recorded namespace.
func TestReconcileTakesTheNamespaceFromTheRecord(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	ns := filepath.Join(t.TempDir(), "ns")
	if err := os.WriteFile(ns, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	a := attachment(network("cluster", "bridge"), "c1", "eth0")
	a.NetNS = ns
	if _, err := n.Add(t.Context(), eth0, Transaction{Plan: Plan(a)}); err != nil {
		t.Fatal(err)
	}
	n.reconcile(keep("ipvlan"))
	n.reconcile(keep())
	for _, c := range n.exec.Calls() {
		if c.NetNS != ns || c.ContainerID != "c1" {
			t.Errorf("%s: %q in %q", c, c.ContainerID, c.NetNS)
		}
	}
	if err := os.Remove(ns); err != nil {
		t.Fatal(err)
	}
	done, err := n.Reconcile(t.Context(), eth0, keep("ipvlan"))
	if len(done) > 0 || !errors.Is(err, ErrNotAdded) {
		t.Errorf("in a namespace that is gone: %v, %v", reconciled(done), err)
	}
	wantSaid(t, err, "RECONCILE c1 eth0", "namespace", "gone")
	n.wantTrace("ADD bridge eth0", "ADD ipvlan net1", "DEL ipvlan net1")
}

func TestReconcileNeedsAnAttachment(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	never := Reconciliation{Recorded: recorded, Wanted: func(context.Context, Record) ([]Wanted, error) {
		t.Error("it was asked what is wanted")
		return nil, nil
	}}
	refused := func(when string, code uint, is error) {
		t.Helper()
		done, err := n.Reconcile(t.Context(), eth0, never)
		if len(done) > 0 || is != nil && !errors.Is(err, is) {
			t.Errorf("%s: %v, %v", when, reconciled(done), err)
		}
		if e := (*Error)(nil); !errors.As(err, &e) || e.Op != OpReconcile || e.Key != eth0 {
			t.Errorf("%s: %v", when, err)
		}
		wantCode(t, err, code)
	}
	refused("no directory", 7, ErrNotAdded)
	n.wantNothing()
	n.add(key("c2", "eth0"))
	refused("no record", 7, ErrNotAdded)
	n.own()
	n.failOn("DEL bridge", 101)
	if err := n.Del(t.Context(), Removal{Key: eth0}); err == nil {
		t.Fatal("Del succeeded")
	}
	refused("half deleted", 7, ErrNotAdded)
	n.damage(eth0)
	refused("damaged", 5, nil)
	never.Recorded = nil
	refused("without a way to tell what is recorded", 7, ErrPlan)
}

// A container whose own interface is half done, as an earlier version could leave it, is
// not attached.
func TestReconcileLeavesAContainerWithoutItsOwnInterface(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.own()
	l, err := n.store().Lock(t.Context(), "c1")
	if err != nil {
		t.Fatal(err)
	}
	r, err := n.store().Get(eth0)
	if err != nil {
		t.Fatal(err)
	}
	r.State, r.Value.Delegates[0].Half = scratch.Partial, true
	if err := errors.Join(n.store().Put(l, r), l.Unlock()); err != nil {
		t.Fatal(err)
	}
	done, err := n.Reconcile(t.Context(), eth0, keep("ipvlan"))
	if len(done) > 0 || !errors.Is(err, ErrNotAdded) {
		t.Errorf("%v, %v", reconciled(done), err)
	}
	n.del(eth0)
	n.wantNothing()
}

// A plan that waits for something does not hold up a DEL.
func TestDelCancelsAPlanOfReconcile(t *testing.T) {
	t.Parallel()
	for _, replace := range []bool{false, true} {
		n := newNode(t)
		n.own()
		n.reconcile(keep("ipvlan@hot0?a"))
		removed := make(chan error, 1)
		r := Reconciliation{Recorded: recorded, Replace: replace}
		r.Wanted = func(context.Context, Record) ([]Wanted, error) {
			ws := wanted("ipvlan@hot0?b", "tuning")
			for i := range ws {
				ws[i].Plan = func(ctx context.Context, _ []string) (delegate.Attachment, error) {
					go func() { removed <- n.Del(n.t.Context(), Removal{Key: eth0}) }()
					<-ctx.Done()
					return delegate.Attachment{}, ctx.Err()
				}
			}
			return ws, nil
		}
		done, err := n.Reconcile(t.Context(), eth0, r)
		if len(done) != 1 || !errors.Is(err, ErrSuperseded) || !errors.Is(done[0].Err, ErrSuperseded) {
			t.Errorf("replace %t: %v, %v", replace, reconciled(done), err)
		}
		if err := <-removed; err != nil {
			t.Error(err)
		}
		n.wantNothing()
	}
}
