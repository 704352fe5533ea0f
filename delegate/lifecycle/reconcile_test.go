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
	"testing/synctest"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/google/go-cmp/cmp"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/delegatetest"
	nodetest "github.com/metacni/metacni/internal/test/node"
	"github.com/metacni/metacni/netconf"
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
			a := delegate.Attachment{Network: nodetest.Network(name, plugin), IfName: ifname, Origin: origin}
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
		did := map[delegate.Command]string{delegate.CommandAdd: "ATTACH", delegate.CommandDel: "DETACH"}[d.Command]
		line := strings.TrimSpace(fmt.Sprintf("%s %s %s", did, d.Wanted.Network, d.Attached.IfName))
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
	n.Helper()
	if _, err := n.Add(n.Context(), eth0, Transaction{Plan: Plan(
		attachment(nodetest.Network("cluster", "bridge"), "c1", "eth0"), attachment(nodetest.Network("default", "tuning"), "c1", "dflt0"),
	)}); err != nil {
		n.Fatal(err)
	}
}

func (n *node) reconcile(r Reconciliation) []string {
	n.Helper()
	done, err := n.Reconcile(n.Context(), eth0, r)
	nodetest.Code(n, err, 0)
	return reconciled(done)
}

// attachments are those in the record of eth0, "network interface".
func (n *node) attachments() []string {
	n.Helper()
	rs, err := n.Container(n.Context(), "c1")
	nodetest.OK(n.TB, err)
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
	n.Helper()
	nodetest.Equal(n.TB, "recorded", n.attachments(), append([]string{"cluster eth0", "default dflt0"}, want...))
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
			nodetest.Equal(t, "done", n.reconcile(r), tt.done)
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
	mine := attachment(nodetest.Network("cluster", "bridge"), "c1", "eth0")
	mine.Origin = origin
	n.mustAdd(eth0, Transaction{Plan: Plan(mine, attachment(nodetest.Network("default", "tuning"), "c1", "dflt0"))})
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
	nodetest.OK(t, os.WriteFile(ns, nil, 0o600))
	a := attachment(nodetest.Network("cluster", "bridge"), "c1", "eth0")
	a.NetNS = ns
	n.mustAdd(eth0, Transaction{Plan: Plan(a)})
	n.reconcile(keep("ipvlan"))
	n.reconcile(keep())
	for _, c := range n.Exec.Calls() {
		if c.NetNS != ns || c.ContainerID != "c1" {
			t.Errorf("%s: %q in %q", c, c.ContainerID, c.NetNS)
		}
	}
	nodetest.OK(t, os.Remove(ns))
	done, err := n.Reconcile(t.Context(), eth0, keep("ipvlan"))
	if len(done) > 0 || !errors.Is(err, ErrNotAdded) {
		t.Errorf("in a namespace that is gone: %v, %v", reconciled(done), err)
	}
	nodetest.Says(t, err, "RECONCILE c1 eth0", "namespace", "at no known path")
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
		if e := (*Error)(nil); !errors.As(err, &e) || e.Op != opReconcile || e.Key != eth0 {
			t.Errorf("%s: %v", when, err)
		}
		nodetest.Code(t, err, code)
	}
	refused("no directory", 7, ErrNotAdded)
	n.wantNothing()
	n.add(key("c2", "eth0"))
	refused("no record", 7, ErrNotAdded)
	n.own()
	n.FailOn("DEL bridge", 101)
	if err := n.Del(t.Context(), eth0, Removal{}); err == nil {
		t.Fatal("Del succeeded")
	}
	refused("half deleted", 7, ErrNotAdded)
	n.damage(eth0)
	refused("damaged", 5, nil)
	never.Recorded = nil
	refused("without a way to tell what is recorded", 7, ErrPlan)
}

// A container whose own interface is half done, which a GC can leave, is not attached.
func TestReconcileLeavesAContainerWithoutItsOwnInterface(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.own()
	n.halfDeleteFirst()
	done, err := n.Reconcile(t.Context(), eth0, keep("ipvlan"))
	if len(done) > 0 || !errors.Is(err, ErrNotAdded) {
		t.Errorf("%v, %v", reconciled(done), err)
	}
	n.del(eth0)
	n.wantNothing()
}

// halfDeleteFirst records that the first delegate of eth0 is half deleted.
func (n *node) halfDeleteFirst() {
	n.Helper()
	l, err := n.store().Lock(n.Context(), "c1")
	nodetest.OK(n, err)
	r, err := n.store().Get(eth0)
	nodetest.OK(n, err)
	r.State, r.Value.Delegates[0].State = scratch.Partial, scratch.Deleting
	nodetest.OK(n, errors.Join(n.store().Put(l, r), l.Unlock()))
}

// Whatever is recorded and whatever is wanted: what is not the caller's stays, what
// is recorded is wanted once at most, and when all that differs has been done,
// nothing differs any more.
func FuzzCompare(f *testing.F) {
	f.Add("ipvlan@hot0 ipvlan macvlan", "ipvlan=net1 green=req0 ipvlan@hot0=hot0 ipvlan?x=net2", false)
	f.Add("ipvlan@hot0?x ipvlan@net1 ipvlan?y", "ipvlan=net1 ipvlan@hot0=hot0! ipvlan?x=net2 ipvlan?y=net3", true)
	f.Add("a@eth0 a a", "a=eth0 a@eth0=eth0 a?b=a a=c a=d!", true)
	f.Fuzz(func(t *testing.T, want, have string, replace bool) {
		rec := Record{Key: eth0, State: scratch.Partial}
		record := func(w Wanted, ifname string, half bool) {
			origin, err := json.Marshal(asked{w.Network, w.IfName, w.Options})
			nodetest.OK(t, err)
			if w.Network == "green" { // another's
				origin = nil
			}
			e := entry{}
			if half {
				e.State = scratch.Deleting
			}
			rec.entries = append(rec.entries, e)
			rec.Attached = append(rec.Attached, delegate.Attached{Attachment: delegate.Attachment{IfName: ifname, Origin: origin}})
		}
		if strings.ContainsFunc(want+have, func(r rune) bool { return r >= 0x80 }) {
			return // what is not UTF-8 cannot be recorded
		}
		for text := range strings.FieldsSeq(have) {
			text, half := strings.CutSuffix(text, "!")
			what, ifname, _ := strings.Cut(text, "=")
			record(wanted(what)[0], ifname, half)
		}
		var ws []Wanted
		for _, w := range wanted(strings.Fields(want)...) {
			same := func(other Wanted) bool { return other.IfName == w.IfName && w.IfName != "" }
			if w.Network != "" && w.Network != "green" && w.IfName != eth0.IfName && !slices.ContainsFunc(ws, same) {
				ws = append(ws, w)
			}
		}
		r := Reconciliation{Recorded: recorded, Replace: replace}
		d := r.compare(rec, ws)
		mine := 0
		for i, a := range rec.Attached {
			_, own := recorded(a)
			own = own && a.IfName != eth0.IfName
			if own && rec.Whole(i) {
				mine++
			}
			if slices.Contains(d.unwanted, i) && !own && rec.Whole(i) {
				t.Errorf("%d is not the caller's", i)
			}
		}
		detached := 0
		for _, i := range slices.Backward(d.unwanted) {
			if rec.Whole(i) {
				detached++
			}
			rec.Attached, rec.entries = slices.Delete(rec.Attached, i, i+1), slices.Delete(rec.entries, i, i+1)
		}
		if mine-detached != len(ws)-len(d.missing) {
			t.Errorf("%d of %d are detached, and %d of %d attached", detached, mine, len(d.missing), len(ws))
		}
		for i, w := range d.missing {
			ifname := w.IfName
			if ifname == "" {
				ifname = fmt.Sprint("new", i)
			}
			record(w, ifname, false)
		}
		if again := r.compare(rec, ws); len(again.unwanted)+len(again.missing) > 0 {
			t.Errorf("still %d to be detached and %d to be attached", len(again.unwanted), len(again.missing))
		}
	})
}

// A failure is reported, with the attachment, and the others go on.
func TestReconcileGoesOnAfterAFailure(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.own()
	n.reconcile(keep("ipvlan@hot0", "macvlan@hot1"))
	n.FailOn("DEL ipvlan", 101)
	n.Exec.Plugins["vlan"] = n.Exec.Plugins["bridge"]
	n.FailOn("ADD vlan", 103)
	done, err := n.Reconcile(t.Context(), eth0, keep("vlan", "tuning@hot2", "vlan", "tuning@hot0"))
	nodetest.Equal(t, "done", reconciled(done), []string{
		"DETACH macvlan hot1", "DETACH ipvlan hot0 failed",
		"ATTACH vlan net1 failed", "ATTACH tuning hot2", "ATTACH vlan net1 failed", "ATTACH tuning hot0 failed",
	})
	for i, code := range []uint{0, 101, 103, 0, 103, 7} {
		nodetest.Code(t, done[i].Err, code)
		if done[i].Err != nil && !errors.Is(err, done[i].Err) {
			t.Errorf("not in %v: %v", err, done[i].Err)
		}
		if attached := done[i].Attached.Result != nil; attached != (i < 2 || i == 3) {
			t.Errorf("%d has a result: %v", i, attached)
		}
	}
	nodetest.Says(t, done[1].Err, "DETACH c1 eth0: ", `network "ipvlan"`, "hot0")
	nodetest.Says(t, done[5].Err, "ATTACH c1 eth0: ", `network "tuning"`, "hot0", "in use")
	n.wantAttachments("ipvlan hot0 half", "tuning hot2")
	n.wantRecords("c1/eth0 partial")
	n.Exec.Plugins = plugins()
	n.Exec.Plugins["vlan"] = n.Exec.Plugins["bridge"]
	nodetest.Equal(t, "then", n.reconcile(keep("vlan", "tuning@hot2", "vlan", "tuning@hot0")), []string{
		"DETACH ipvlan hot0", "ATTACH vlan net1", "ATTACH vlan net2", "ATTACH tuning hot0",
	})
	n.wantRecords("c1/eth0 added")
}

// What is wanted is read again before each change, under the lock. An interface can change hands
// more than once in a pass.
func TestReconcileReadsWhatIsWantedBeforeEachChange(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		before string
		lists  []string // one for each time, the last for all further ones
		done   []string
		seen   []int // attachments when asked
		then   string
	}{
		{"", []string{"ipvlan macvlan", "ipvlan tuning", "tuning"}, []string{"ATTACH ipvlan net1", "ATTACH tuning net2", "DETACH ipvlan net1"}, []int{2, 3, 4, 3}, "tuning net2"},
		{
			"macvlan@hot0",
			[]string{"ipvlan@hot0", "ipvlan@hot0", "tuning@hot0"},
			[]string{"DETACH macvlan hot0", "ATTACH ipvlan hot0", "DETACH ipvlan hot0", "ATTACH tuning hot0"},
			[]int{3, 2, 3, 2, 3},
			"tuning hot0",
		},
	} {
		n := newNode(t)
		n.own()
		n.reconcile(keep(strings.Fields(tt.before)...))
		var seen []int
		r, lists := keep(), tt.lists
		r.Wanted = func(_ context.Context, r Record) ([]Wanted, error) {
			seen = append(seen, len(r.Attached))
			list := lists[0]
			lists = lists[min(1, len(lists)-1):]
			return wanted(strings.Fields(list)...), nil
		}
		nodetest.Equal(t, "done", n.reconcile(r), tt.done)
		nodetest.Equal(t, "attachments when asked", seen, tt.seen)
		n.wantAttachments(tt.then)
	}
}

// When it cannot be said what is wanted, nothing changes any more.
func TestReconcileChangesNothingWithoutKnowingWhatIsWanted(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.own()
	n.reconcile(keep("ipvlan"))
	calls := n.trace()
	r, why := keep(), types.NewError(6, "no annotation that can be read", "")
	r.Wanted = func(context.Context, Record) ([]Wanted, error) { return nil, why }
	done, err := n.Reconcile(t.Context(), eth0, r)
	if len(done) > 0 || !errors.Is(err, why) {
		t.Errorf("%v, %v", reconciled(done), err)
	}
	nodetest.Code(t, err, 6)
	n.wantTrace(calls...)
	asked := 0
	r.Wanted = func(context.Context, Record) ([]Wanted, error) {
		if asked++; asked > 1 {
			return nil, why
		}
		return wanted("macvlan", "tuning"), nil
	}
	done, err = n.Reconcile(t.Context(), eth0, r)
	if d := cmp.Diff([]string{"DETACH ipvlan net1"}, reconciled(done)); d != "" || !errors.Is(err, why) {
		t.Errorf("%v\n%s", err, d)
	}
	n.wantAttachments()
}

// A DEL of the same attachment does not wait for the rest.
func TestDelCancelsReconcile(t *testing.T) {
	t.Parallel()
	for _, at := range []string{"ADD ipvlan", "DEL macvlan"} {
		t.Run(at, func(t *testing.T) {
			t.Parallel()
			n := newNode(t)
			n.own()
			n.reconcile(keep("macvlan"))
			removed := make(chan error, 1)
			first := true
			n.On(at, func(ctx context.Context, _ delegatetest.Call) error {
				if !first {
					return nil
				}
				first = false
				go func() { removed <- n.Del(n.Context(), eth0, Removal{}) }()
				<-ctx.Done()
				return errors.New("signal: killed")
			})
			done, err := n.Reconcile(t.Context(), eth0, keep("ipvlan", "tuning"))
			if !errors.Is(err, ErrSuperseded) || !errors.Is(done[len(done)-1].Err, ErrSuperseded) {
				t.Errorf("%v, %v", reconciled(done), err)
			}
			nodetest.Code(t, err, 11)
			if strings.Count(err.Error(), ErrSuperseded.Error()) > 1 {
				t.Errorf("says it twice: %v", err)
			}
			nodetest.OK(t, <-removed)
			if got := n.trace(); slices.Contains(got, "ADD tuning net2") || slices.Contains(got, "ADD tuning net1") {
				t.Errorf("went on: %q", got)
			}
			n.wantNothing()
		})
	}
}

// A plan that would not be recognized in the record would be carried out in each
// pass. It is refused before a plugin runs.
func TestReconcileRefusesAPlanOfSomethingElse(t *testing.T) {
	t.Parallel()
	for name, spoil := range map[string]func(*delegate.Attachment){
		"no origin":         func(a *delegate.Attachment) { a.Origin = nil },
		"another network":   func(a *delegate.Attachment) { a.Origin = raw(`{"Network":"red","IfName":"hot0"}`) },
		"other options":     func(a *delegate.Attachment) { a.Origin = raw(`{"Network":"ipvlan","IfName":"hot0","Options":"x"}`) },
		"another interface": func(a *delegate.Attachment) { a.IfName = "hot1" },
		"its own interface": func(a *delegate.Attachment) { a.IfName = "eth0" },
		"another container": func(a *delegate.Attachment) { a.ContainerID = "c2" },
		"no network":        func(a *delegate.Attachment) { a.Network = netconf.Network{} },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t)
			n.own()
			r := keep()
			r.Wanted = func(context.Context, Record) ([]Wanted, error) {
				ws := wanted("ipvlan@hot0")
				plan := ws[0].Plan
				ws[0].Plan = func(ctx context.Context, taken []string) (delegate.Attachment, error) {
					a, err := plan(ctx, taken)
					spoil(&a)
					return a, err
				}
				return ws, nil
			}
			done, err := n.Reconcile(t.Context(), eth0, r)
			if len(done) != 1 || done[0].Err == nil || !errors.Is(err, done[0].Err) {
				t.Errorf("%v, %v", reconciled(done), err)
			}
			if e := (*Error)(nil); !errors.As(err, &e) || e.Op != opAttach {
				t.Errorf("err = %v", err)
			}
			n.wantTrace("ADD bridge eth0", "ADD tuning dflt0")
			n.wantAttachments()
		})
	}
}

// A network that was attached while it was wanted stays without its definition. One that
// cannot be attached with its new options is not detached either.
func TestReconcileReportsWhatCannotBePlanned(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		before      string
		then        []string
		done, stays []string
	}{
		{"ipvlan", []string{"ipvlan", "macvlan", "tuning"}, []string{"ATTACH macvlan failed", "ATTACH tuning net2"}, []string{"ipvlan net1", "tuning net2"}},
		{"ipvlan@hot0?a", []string{"ipvlan@hot0?b", "macvlan"}, []string{"ATTACH ipvlan failed", "ATTACH macvlan net1"}, []string{"ipvlan hot0", "macvlan net1"}},
	} {
		n := newNode(t)
		n.own()
		n.reconcile(keep(tt.before))
		no := types.NewError(7, "no such definition", "")
		r := keep()
		r.Replace = true
		r.Wanted = func(context.Context, Record) ([]Wanted, error) {
			ws := wanted(tt.then...)
			for i := range len(ws) - 1 { // the last one can be
				ws[i].Plan = func(context.Context, []string) (delegate.Attachment, error) { return delegate.Attachment{}, no }
			}
			return ws, nil
		}
		done, err := n.Reconcile(t.Context(), eth0, r)
		if d := cmp.Diff(tt.done, reconciled(done)); d != "" || !errors.Is(err, no) {
			t.Errorf("%v\n%s", err, d)
		}
		n.wantAttachments(tt.stays...)
	}
}

// Each attachment that Reconcile makes has its files, and loses them with it. One that
// cannot be prepared is not made, and no plugin runs.
func TestReconcilePreparesWhatItAttaches(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.own()
	dir := t.TempDir()
	r := Reconciliation{Recorded: recorded, Prepare: prepareFiles}
	all := wanted("ipvlan", "macvlan@x")
	for i := range all {
		plan := all[i].Plan
		all[i].Plan = func(ctx context.Context, taken []string) (delegate.Attachment, error) {
			a, err := plan(ctx, taken)
			a.Files = []string{filepath.Join(dir, a.IfName)}
			return a, err
		}
	}
	r.Wanted = func(context.Context, Record) ([]Wanted, error) { return all, nil }
	n.reconcile(r)
	if got, _ := filepath.Glob(filepath.Join(dir, "*")); len(got) != 2 {
		t.Errorf("files %q", got)
	}
	all = nil
	n.reconcile(r)
	if got, _ := filepath.Glob(filepath.Join(dir, "*")); len(got) != 0 {
		t.Errorf("files %q", got)
	}
	all, r.Prepare = wanted("ipvlan"), func(context.Context, []delegate.Attachment) error { return errors.New("no space") }
	n.Trace()
	if _, err := n.Reconcile(t.Context(), eth0, r); err == nil || !strings.Contains(err.Error(), "no space") {
		t.Errorf("err = %v", err)
	}
	n.WantTrace()
	n.wantAttachments()
}

// A plugin that hangs is stopped when the time of its change is over, and the other
// networks have their turn. Without a Timeout it hangs until the context ends.
func TestReconcileStopsAPluginThatHangs(t *testing.T) {
	t.Parallel()
	for _, command := range []string{"ADD", "DEL"} {
		for _, limit := range []time.Duration{time.Minute, 0} {
			dir := newNode(t).Dir
			synctest.Test(t, func(t *testing.T) {
				n := nodeAt(t, dir)
				n.own()
				n.reconcile(keep("macvlan@hot0", "ipvlan@hot1"))
				then := []string{"tuning@hot2", "ipvlan@hot3", "bridge@hot4"}
				n.Exec.Plugins["ipvlan"] = delegatetest.HangOn(command, n.Exec.Plugins["ipvlan"])
				ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
				defer cancel()
				r := keep(then...)
				r.Timeout = limit
				start := time.Now()
				done, err := n.Reconcile(ctx, eth0, r)
				nodetest.Code(t, err, 11)
				want, took := []string{"DETACH ipvlan hot1", "DETACH macvlan hot0", "ATTACH tuning hot2", "ATTACH ipvlan hot3", "ATTACH bridge hot4"}, limit
				if limit == 0 {
					took = time.Hour
					want = want[:map[string]int{"ADD": 4, "DEL": 1}[command]]
				}
				want[map[string]int{"ADD": 3, "DEL": 0}[command]] += " failed"
				if d := cmp.Diff(want, reconciled(done)); d != "" {
					t.Errorf("%s, Timeout %s: done (-want +got):\n%s", command, limit, d)
				}
				if got := time.Since(start); got != took {
					t.Errorf("%s, Timeout %s: it took %s", command, limit, got)
				}
				n.Exec.Plugins = plugins()
				n.reconcile(keep(then...))
				n.del(eth0)
				n.wantNothing()
			})
		}
	}
}
