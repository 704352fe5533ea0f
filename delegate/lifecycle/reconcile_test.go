package lifecycle

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containernetworking/cni/pkg/types"

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

func keep(texts ...string) ReconcileRequest {
	return ReconcileRequest{
		Wanted:   func(context.Context, AddRecord) ([]Wanted, error) { return wanted(texts...), nil },
		Recorded: recorded,
	}
}

// reconciled are what was done, as "ATTACH network interface".
func reconciled(done []Change) []string {
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
// has chosen, and then to what is wanted before.
func (n *node) own(before string) {
	n.Helper()
	n.mustAdd(eth0, Transaction{Plan: Plan(
		attachment(nodetest.Network("cluster", "bridge"), "c1", "eth0"), attachment(nodetest.Network("default", "tuning"), "c1", "dflt0"),
	)})
	n.reconcile(keep(strings.Fields(before)...))
	n.Trace()
}

func (n *node) reconcile(r ReconcileRequest) []string {
	n.Helper()
	done, err := n.Reconcile(n.Context(), eth0, r)
	nodetest.OK(n, err)
	return reconciled(done)
}

// wantAttachments wants those in the record of eth0, "network interface", beside those of own.
func (n *node) wantAttachments(want ...string) {
	n.Helper()
	rs, err := n.Container(n.Context(), "c1")
	nodetest.OK(n.TB, err)
	var all []string
	for i, a := range rs[0].Attached {
		line := a.Network.Name() + " " + a.IfName
		if !rs[0].Whole(i) {
			line += " half"
		}
		all = append(all, line)
	}
	nodetest.Equal(n.TB, "recorded", all, append([]string{"cluster eth0", "default dflt0"}, want...))
}

func TestReconcileAttachesAndDetachesWhatDiffers(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		before, after, done, then string
		replace                   bool
	}{
		"the order alone changes nothing": {before: "ipvlan macvlan@hot0", after: "macvlan@hot0 ipvlan", then: "ipvlan net1, macvlan hot0"},
		"nothing is wanted any more":      {before: "ipvlan macvlan@hot0", done: "DETACH macvlan hot0, DETACH ipvlan net1"},
		"two networks swap their interfaces": {
			before: "ipvlan@hot0 macvlan@hot1", after: "macvlan@hot0 ipvlan@hot1",
			done: "DETACH macvlan hot1, DETACH ipvlan hot0, ATTACH macvlan hot0, ATTACH ipvlan hot1", then: "macvlan hot0, ipvlan hot1",
		},
		"a network without an interface keeps the one that it has": {
			before: "ipvlan macvlan", after: "macvlan", done: "DETACH ipvlan net1", then: "macvlan net2",
		},
		"the same network more than once": {
			before: "ipvlan ipvlan", after: "ipvlan ipvlan ipvlan", done: "ATTACH ipvlan net3", then: "ipvlan net1, ipvlan net2, ipvlan net3",
		},
		"the same network less often": {
			before: "ipvlan ipvlan ipvlan", after: "ipvlan", done: "DETACH ipvlan net3, DETACH ipvlan net2", then: "ipvlan net1",
		},
		"the interface that it has anyway is asked for": {
			before: "ipvlan", after: "ipvlan ipvlan@net1", done: "ATTACH ipvlan net2", then: "ipvlan net1, ipvlan net2",
		},
		"an interface is not asked for any more": {
			before: "ipvlan@hot0", after: "ipvlan", done: "DETACH ipvlan hot0, ATTACH ipvlan net1", then: "ipvlan net1",
		},
		"an interface without a name leaves the names that are asked for": {
			after: "ipvlan macvlan@net1", done: "ATTACH ipvlan net2, ATTACH macvlan net1", then: "ipvlan net2, macvlan net1",
		},
		"equal options come first": {before: "ipvlan?a ipvlan?b", after: "ipvlan?b", done: "DETACH ipvlan net1", then: "ipvlan net2"},
		"other options change nothing": {
			before: "ipvlan@hot0?a macvlan?a", after: "ipvlan@hot0?b macvlan?b", done: "ipvlan hot0, macvlan net1", then: "ipvlan hot0, macvlan net1",
		},
		"or replace an interface that is asked for": {
			before: "ipvlan@hot0?a macvlan?a", after: "ipvlan@hot0?b macvlan?b", replace: true,
			done: "DETACH ipvlan hot0, ATTACH ipvlan hot0, macvlan net1", then: "macvlan net1, ipvlan hot0",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t)
			n.own(tt.before)
			r := keep(strings.Fields(tt.after)...)
			r.Replace = tt.replace
			nodetest.Equal(t, "done", strings.Join(n.reconcile(r), ", "), tt.done)
			n.wantAttachments(list(tt.then)...)
			n.wantRecords("c1/eth0 added")
			n.Trace()
			n.reconcile(r)
			n.WantTrace() // it is as wanted
			n.del(eth0)
			n.wantNothing()
		})
	}
}

// The record says where: the definition of a network that goes is not needed, nor
// its plan, and plugins receive the recorded namespace.
func TestReconcileTakesTheNamespaceFromTheRecord(t *testing.T) {
	t.Parallel()
	n, ns := newNode(t), newNetNS(t)
	n.addIn(eth0, ns)
	n.reconcile(keep("ipvlan"))
	n.reconcile(keep())
	for _, c := range n.Exec.Calls() {
		if c.NetNS != ns || c.ContainerID != "c1" {
			t.Errorf("%s: %q in %q", c, c.ContainerID, c.NetNS)
		}
	}
	unlink(t, ns)
	n.Trace()
	done, err := n.Reconcile(t.Context(), eth0, keep("ipvlan"))
	nodetest.Equal(t, "done in a namespace that is gone", reconciled(done), nil)
	nodetest.Is(t, err, ErrNotAdded)
	nodetest.Says(t, err, "RECONCILE c1 eth0", "namespace", "at no known path")
	n.WantTrace()
}

func TestReconcileNeedsAnAttachment(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	r := ReconcileRequest{Recorded: recorded, Wanted: func(context.Context, AddRecord) ([]Wanted, error) {
		t.Error("it was asked what is wanted")
		return nil, nil
	}}
	for _, tt := range []struct {
		when string
		make func()
		code uint
		is   error
	}{
		{"no directory", n.wantNothing, 7, ErrNotAdded},
		{"no record", func() { n.add(key("c2", "eth0")) }, 7, ErrNotAdded},
		{"its own interface is half done, which a GC can leave", func() { n.add(eth0); n.halfDeleteFirst() }, 7, ErrNotAdded},
		{"half deleted", func() { n.halfDelete(eth0) }, 7, ErrNotAdded},
		{"damaged", func() { n.damage(eth0) }, 5, scratch.ErrCorrupt},
		{"without a way to tell what is recorded", func() { r.Recorded = nil }, 7, ErrPlan},
	} {
		tt.make()
		done, err := n.Reconcile(t.Context(), eth0, r)
		nodetest.Equal(t, tt.when, reconciled(done), nil)
		nodetest.Is(t, err, tt.is)
		wantError(t, err, opReconcile, eth0)
		nodetest.Code(t, err, tt.code)
	}
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
		rec := AddRecord{Key: eth0, State: scratch.Partial}
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
		r := ReconcileRequest{Recorded: recorded, Replace: replace}
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
	n.Exec.Plugins["vlan"] = n.Exec.Plugins["bridge"]
	n.own("ipvlan@hot0 macvlan@hot1")
	works := maps.Clone(n.Exec.Plugins)
	n.FailOn("DEL ipvlan", 101)
	n.FailOn("ADD vlan", 103)
	r := keep("vlan", "tuning@hot2", "vlan", "tuning@hot0")
	done, err := n.Reconcile(t.Context(), eth0, r)
	nodetest.Equal(t, "done", reconciled(done), []string{
		"DETACH macvlan hot1", "DETACH ipvlan hot0 failed",
		"ATTACH vlan net1 failed", "ATTACH tuning hot2", "ATTACH vlan net1 failed", "ATTACH tuning hot0 failed",
	})
	for i, code := range []uint{0, 101, 103, 0, 103, 7} {
		if nodetest.Code(t, done[i].Err, code); code > 0 {
			nodetest.Is(t, err, done[i].Err)
		}
		nodetest.Equal(t, fmt.Sprint(i, " has a result"), done[i].Attached.Result != nil, i < 2 || i == 3)
	}
	nodetest.Says(t, done[1].Err, "DETACH c1 eth0: ", `network "ipvlan"`, "hot0")
	nodetest.Says(t, done[5].Err, "ATTACH c1 eth0: ", `network "tuning"`, "hot0", "in use")
	n.wantAttachments("ipvlan hot0 half", "tuning hot2")
	n.wantRecords("c1/eth0 partial")
	n.Exec.Plugins = works
	r.Confirmed = func(context.Context, AddRecord) ([]Wanted, error) { // it was being detached already
		t.Error("asked for a confirmation")
		return nil, errors.New("away")
	}
	nodetest.Equal(t, "then", n.reconcile(r), []string{"DETACH ipvlan hot0", "ATTACH vlan net1", "ATTACH vlan net2", "ATTACH tuning hot0"})
	n.wantRecords("c1/eth0 added")
}

// What is wanted is read again before each change, under the lock. An interface can change hands
// more than once in a pass. When it cannot be said what is wanted, nothing changes any more.
func TestReconcileReadsWhatIsWantedBeforeEachChange(t *testing.T) {
	t.Parallel()
	const unknown = "?"
	no := types.NewError(6, "no annotation that can be read", "")
	for _, tt := range []struct {
		before string
		lists  []string // one for each time, the last for all further ones
		done   string
		seen   []int // attachments when asked
		then   string
	}{
		{"", []string{"ipvlan macvlan", "ipvlan tuning", "tuning"}, "ATTACH ipvlan net1, ATTACH tuning net2, DETACH ipvlan net1", []int{2, 3, 4, 3}, "tuning net2"},
		{
			"macvlan@hot0",
			[]string{"ipvlan@hot0", "ipvlan@hot0", "tuning@hot0"},
			"DETACH macvlan hot0, ATTACH ipvlan hot0, DETACH ipvlan hot0, ATTACH tuning hot0",
			[]int{3, 2, 3, 2, 3},
			"tuning hot0",
		},
		{"ipvlan", []string{unknown}, "", []int{3}, "ipvlan net1"},
		{"ipvlan", []string{"macvlan tuning", unknown}, "DETACH ipvlan net1", []int{3, 2}, ""},
	} {
		n := newNode(t)
		n.own(tt.before)
		var seen []int
		r, lists := keep(), tt.lists
		r.Wanted = func(_ context.Context, r AddRecord) ([]Wanted, error) {
			seen = append(seen, len(r.Attached))
			now := lists[0]
			if lists = lists[min(1, len(lists)-1):]; now == unknown {
				return nil, no
			}
			return wanted(strings.Fields(now)...), nil
		}
		done, err := n.Reconcile(t.Context(), eth0, r)
		if slices.Contains(tt.lists, unknown) {
			nodetest.Code(t, err, 6)
			nodetest.Is(t, err, no)
		} else {
			nodetest.OK(t, err)
		}
		nodetest.Equal(t, "done", strings.Join(reconciled(done), ", "), tt.done)
		nodetest.Equal(t, "attachments when asked", seen, tt.seen)
		n.wantAttachments(list(tt.then)...)
	}
}

// A DEL of the same attachment does not wait for the rest.
func TestDelCancelsReconcile(t *testing.T) {
	t.Parallel()
	for _, at := range []string{"ADD ipvlan", "DEL macvlan"} {
		t.Run(at, func(t *testing.T) {
			t.Parallel()
			n := newNode(t)
			n.own("macvlan")
			removed := make(chan error, 1)
			var first sync.Once
			n.On(at, func(ctx context.Context, _ delegatetest.Invocation) (err error) {
				first.Do(func() {
					go func() { removed <- n.Del(n.Context(), eth0, DelRequest{}) }()
					<-ctx.Done()
					err = errors.New("signal: killed")
				})
				return err
			})
			done, err := n.Reconcile(t.Context(), eth0, keep("ipvlan", "tuning"))
			nodetest.Is(t, err, ErrSuperseded)
			nodetest.Is(t, done[len(done)-1].Err, ErrSuperseded)
			nodetest.Code(t, err, 11)
			nodetest.Equal(t, "times it is said", strings.Count(err.Error(), ErrSuperseded.Error()), 1)
			nodetest.OK(t, <-removed)
			if ran := n.Trace(); strings.Contains(strings.Join(ran, ", "), "ADD tuning") {
				t.Errorf("went on: %q", ran)
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
			n.own("")
			ws := wanted("ipvlan@hot0")
			plan := ws[0].Plan
			ws[0].Plan = func(ctx context.Context, taken []string) (delegate.Attachment, error) {
				a, err := plan(ctx, taken)
				spoil(&a)
				return a, err
			}
			r := keep()
			r.Wanted = func(context.Context, AddRecord) ([]Wanted, error) { return ws, nil }
			done, err := n.Reconcile(t.Context(), eth0, r)
			if len(done) != 1 || done[0].Err == nil || !errors.Is(err, done[0].Err) {
				t.Errorf("%v, %v", reconciled(done), err)
			}
			wantError(t, err, opAttach, eth0)
			n.WantTrace()
			n.wantAttachments()
		})
	}
}

// A network that was attached while it was wanted stays without its definition. One that
// cannot be attached with its new options is not detached either.
func TestReconcileReportsWhatCannotBePlanned(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ before, then, done, stays string }{
		{"ipvlan", "ipvlan macvlan tuning", "ATTACH macvlan failed, ATTACH tuning net2", "ipvlan net1, tuning net2"},
		{"ipvlan@hot0?a", "ipvlan@hot0?b macvlan", "ATTACH ipvlan failed, ATTACH macvlan net1", "ipvlan hot0, macvlan net1"},
	} {
		n := newNode(t)
		n.own(tt.before)
		no := types.NewError(7, "no such definition", "")
		ws := wanted(strings.Fields(tt.then)...)
		for i := range len(ws) - 1 { // the last one can be
			ws[i].Plan = func(context.Context, []string) (delegate.Attachment, error) { return delegate.Attachment{}, no }
		}
		r := ReconcileRequest{Recorded: recorded, Replace: true, Wanted: func(context.Context, AddRecord) ([]Wanted, error) { return ws, nil }}
		done, err := n.Reconcile(t.Context(), eth0, r)
		nodetest.Is(t, err, no)
		nodetest.Equal(t, "done", strings.Join(reconciled(done), ", "), tt.done)
		n.wantAttachments(list(tt.stays)...)
	}
}

// Each attachment that Reconcile makes has its files. One that cannot be prepared is not made, and
// no plugin runs. Of the rest see TestGuaranteesHoldInEveryHistory.
func TestReconcilePreparesWhatItAttaches(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.own("")
	r := keep("ipvlan")
	r.Prepare = func(context.Context, []delegate.Attachment) error { return errors.New("no space") }
	_, err := n.Reconcile(t.Context(), eth0, r)
	nodetest.Fails(t, err, 999, "no space")
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
				n.own("macvlan@hot0 ipvlan@hot1")
				n.Exec.Plugins["ipvlan"] = delegatetest.HangOn(command, n.Exec.Plugins["ipvlan"])
				ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
				defer cancel()
				r := keep("tuning@hot2", "ipvlan@hot3", "bridge@hot4")
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
				what := fmt.Sprintf("%s, Timeout %s: ", command, limit)
				nodetest.Equal(t, what+"done", reconciled(done), want)
				nodetest.Equal(t, what+"it took", time.Since(start), took)
				n.Exec.Plugins = plugins()
				n.reconcile(r)
				n.del(eth0)
				n.wantNothing()
			})
		}
	}
}

// list are the parts of "one, another".
func list(text string) []string {
	if text == "" {
		return nil
	}
	return strings.Split(text, ", ")
}

// What is wanted may be an old answer. It attaches, and only a confirmed one detaches.
func TestReconcileDetachesOnlyWhatIsConfirmedToBeUnwanted(t *testing.T) {
	t.Parallel()
	const unknown = "?"
	for name, tt := range map[string]struct {
		before, wanted, confirmed string
		done                      string
		asked                     int // how often for a confirmation
		then                      string
	}{
		"an attach needs none":              {"ipvlan", "ipvlan macvlan@hot0", unknown, "ATTACH macvlan hot0", 0, "ipvlan net1, macvlan hot0"},
		"a detach that is confirmed":        {"ipvlan macvlan", "ipvlan", "ipvlan", "DETACH macvlan net2", 1, "ipvlan net1"},
		"an old answer":                     {"ipvlan macvlan", "ipvlan", "ipvlan macvlan", "", 1, "ipvlan net1, macvlan net2"},
		"the confirmed answer attaches too": {"ipvlan", "", "ipvlan macvlan", "ATTACH macvlan net2", 2, "ipvlan net1, macvlan net2"},
		"not known":                         {"ipvlan@hot0 macvlan", "macvlan@hot0 tuning@hot1", unknown, "ATTACH tuning hot1", 1, "ipvlan hot0, macvlan net1, tuning hot1"},
		"a replacement that is confirmed":   {"ipvlan@hot0?a", "ipvlan@hot0?b", "ipvlan@hot0?b", "DETACH ipvlan hot0, ATTACH ipvlan hot0", 1, "ipvlan hot0"},
		"a replacement that is not":         {"ipvlan@hot0?a", "ipvlan@hot0?b", "ipvlan@hot0?a", "", 1, "ipvlan hot0"},
		"a replacement that is not known":   {"ipvlan@hot0?a", "ipvlan@hot0?b", unknown, "", 1, "ipvlan hot0"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t)
			n.own(tt.before)
			var why error
			asked := 0
			r := keep(strings.Fields(tt.wanted)...)
			r.Replace = true
			r.Confirmed = func(context.Context, AddRecord) ([]Wanted, error) {
				if asked++; tt.confirmed == unknown {
					why = types.NewError(11, "the API is away", "")
				}
				return wanted(strings.Fields(tt.confirmed)...), why
			}
			done, err := n.Reconcile(t.Context(), eth0, r)
			if nodetest.Is(t, err, why); why == nil {
				nodetest.OK(t, err)
			}
			nodetest.Equal(t, "done", strings.Join(reconciled(done), ", "), tt.done)
			nodetest.Equal(t, "asked", asked, tt.asked)
			n.wantAttachments(list(tt.then)...)
		})
	}
}
