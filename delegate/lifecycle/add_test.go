package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/delegatetest"
	"github.com/metacni/metacni/internal/bounds"
	nodetest "github.com/metacni/metacni/internal/test/node"
	"github.com/metacni/metacni/scratch"
	"github.com/metacni/metacni/status"
)

var noneValid = []types.GCAttachment{}

// Wherever an ADD fails it is undone, the failing plugin included, the record
// goes and the cause's code stays.
func TestAddThatFailsAnywhereIsUndone(t *testing.T) {
	t.Parallel()
	all := []string{"DEL macvlan net0", "DEL tuning eth0", "DEL bridge eth0"}
	later := types.NewError(11, "later", "")
	for name, tt := range map[string]struct {
		prepare func(*node, *Transaction)
		code    uint
		undone  []string
	}{
		"first plugin":  {func(n *node, _ *Transaction) { n.FailOn("ADD bridge", 101) }, 101, all[2:]},
		"second plugin": {func(n *node, _ *Transaction) { n.FailOn("ADD tuning", 102) }, 102, all[1:]},
		"third plugin":  {func(n *node, _ *Transaction) { n.FailOn("ADD macvlan", 103) }, 103, all},
		"noise": {func(n *node, _ *Transaction) {
			n.Exec.Plugins["macvlan"] = delegatetest.NoiseOn("ADD", "hello\n", n.Exec.Plugins["macvlan"])
		}, 6, all},
		"not a result": {func(n *node, _ *Transaction) {
			n.Exec.Plugins["macvlan"] = func(context.Context, delegatetest.Call) ([]byte, error) {
				return []byte(`{"cniVersion":"1.1.0","ips":7}`), nil
			}
		}, 6, all},
		"a deep result":   {func(n *node, _ *Transaction) { n.printing("macvlan", withResult(deep(bounds.Depth))) }, 6, all},
		"a deeper result": {func(n *node, _ *Transaction) { n.printing("macvlan", withResult(deep(9_999))) }, 6, all},
		"Report": {func(_ *node, t *Transaction) {
			t.Report = func(context.Context, []delegate.Attached) error { return later }
		}, 11, all},
		"Report without a code": {func(_ *node, t *Transaction) {
			t.Report = func(context.Context, []delegate.Attached) error { return errors.New("broken pipe") }
		}, 999, all},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t)
			tr := pair(eth0)
			tt.prepare(n, &tr)
			added, err := n.Add(t.Context(), eth0, tr)
			if added != nil {
				t.Errorf("Add returned %v", added)
			}
			nodetest.Code(t, err, tt.code)
			if e := (*Error)(nil); !errors.As(err, &e) || e.Op != "ADD" || e.Key != eth0 {
				t.Errorf("err = %#v", err)
			}
			nodetest.Equal(t, "undone", n.trace()[len(n.trace())-len(tt.undone):], tt.undone)
			n.wantNothing()
			// It is as if nothing had been: DEL and GC have nothing to do.
			calls := n.trace()
			n.del(eth0)
			n.wantTrace(calls...)
		})
	}
}

// When the record of an undone ADD cannot be removed, that is said beside the
// cause.
func TestRecordThatCannotBeDeletedStays(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	tr := pair(eth0)
	tr.Report = func(context.Context, []delegate.Attached) error {
		file := n.recordFile(eth0)
		return errors.Join(types.NewError(101, "no", ""), os.Remove(file), os.MkdirAll(filepath.Join(file, "x"), 0o700))
	}
	_, err := n.Add(t.Context(), eth0, tr)
	nodetest.Code(t, err, 101)
	if e := (*scratch.Error)(nil); !errors.As(err, &e) || e.Op != "delete" {
		t.Errorf("err = %v", err)
	}
	nodetest.Equal(t, "alive", n.Exec.Live(), nil)
}

// A Report that fails because its context has ended says so.
func TestReportAfterTheContextHasEnded(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	ctx, cancel := context.WithCancel(t.Context())
	tr := pair(eth0)
	tr.Report = func(context.Context, []delegate.Attached) error { cancel(); return errors.New("broken pipe") }
	_, err := n.Add(ctx, eth0, tr)
	nodetest.Code(t, err, 11)
	nodetest.Is(t, err, context.Canceled)
	n.wantNothing()
}

// printing makes the ADD of a plugin print a result, and do the rest well.
func (n *node) printing(plugin, result string) {
	n.Exec.Plugins[plugin] = func(ctx context.Context, c delegatetest.Call) ([]byte, error) {
		if c.Command == "ADD" {
			return []byte(result), nil
		}
		return delegatetest.Result(nil)(ctx, c)
	}
}

// dieOn ends the process, as it were, at the calls that begin so.
func (n *node) dieOn(prefix string) {
	n.On(prefix, func(context.Context, delegatetest.Call) error { runtime.Goexit(); return nil })
}

// A record in which nothing can be noted does not keep the rest from going.
func TestDelGoesOnWithoutNotes(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.add(eth0)
	n.On("DEL macvlan", func(context.Context, delegatetest.Call) error {
		n.damage(eth0) // nothing can be noted in it
		return nil
	})
	n.halfDelete(eth0)
	n.wantTrace("ADD bridge eth0", "ADD tuning eth0", "ADD macvlan net0", "DEL macvlan net0", "DEL tuning eth0", "DEL bridge eth0")
}

// choose plans one network of each plugin in turn, and tells what Next
// is called with: "next 101".
func choose(k scratch.Key, said *[]string, plugins ...string) Transaction {
	plan := func(i int) []delegate.Attachment {
		return []delegate.Attachment{attachment(nodetest.Network(plugins[i], plugins[i]), k.ContainerID, k.IfName)}
	}
	chosen := 0
	return Transaction{
		Plan: Plan(plan(0)...),
		Next: func(_ context.Context, failed error) ([]delegate.Attachment, error) {
			*said = append(*said, fmt.Sprint("next ", status.Code(failed)))
			if chosen++; chosen == len(plugins) {
				return nil, nil
			}
			return plan(chosen), nil
		},
	}
}

// Next is told why, and is not asked if no plan can help. Which plans are
// tried see TestGuaranteesHoldInEveryHistory.
func TestNoPlanWorks(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		spoil func(n *node, t *Transaction)
		code  uint
		said  []string
		calls []string
	}{
		"none": {func(n *node, _ *Transaction) {
			for i, p := range []string{"bridge", "macvlan", "ipvlan"} {
				n.FailOn("ADD "+p, 101+uint(i))
			}
		}, 103, []string{"next 101", "next 102", "next 103"}, []string{
			"ADD bridge eth0", "DEL bridge eth0", "ADD macvlan eth0", "DEL macvlan eth0", "ADD ipvlan eth0", "DEL ipvlan eth0",
		}},
		"impossible alone": {func(_ *node, t *Transaction) {
			t.Plan = Plan(attachment(nodetest.Network("x", "bridge"), "c2", "eth0"))
			t.Next = nil
		}, 7, nil, nil},
		"the record vanishes at a plugin": {func(n *node, _ *Transaction) {
			n.On("ADD bridge", func(context.Context, delegatetest.Call) error { return os.Remove(n.recordFile(eth0)) })
		}, 5, nil, []string{"ADD bridge eth0", "DEL bridge eth0"}},
		"the record cannot be written": {func(n *node, t *Transaction) {
			plan := t.Plan
			t.Plan = func(ctx context.Context, taken []string) ([]delegate.Attachment, error) {
				n.Cleanup(func() { _ = os.Remove(n.recordFile(eth0)) })
				if err := os.Mkdir(n.recordFile(eth0), 0o700); err != nil {
					return nil, err
				}
				return plan(ctx, taken)
			}
		}, 5, nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t)
			var said []string
			tr := choose(eth0, &said, "bridge", "macvlan", "ipvlan")
			tt.spoil(n, &tr)
			_, err := n.Add(t.Context(), eth0, tr)
			nodetest.Code(t, err, tt.code)
			nodetest.Equal(t, "hooks", said, tt.said)
			n.Exec.Plugins = plugins() // for the trace
			nodetest.Equal(t, "calls", n.trace(), tt.calls)
			nodetest.Equal(t, "alive", n.Exec.Live(), nil)
			if os.Remove(n.recordFile(eth0)) == nil { // the lock's file was kept for it
				n.del(eth0)
			}
			n.wantNothing()
		})
	}
}

// Between two plans the record is there and nobody else gets at the container: a Del
// waits.
func TestNextRunsUnderTheLock(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.FailOn("ADD", 101)
	var said []string
	tr := choose(eth0, &said, "bridge", "macvlan")
	next, asked, deleted := tr.Next, 0, make(chan error, 1)
	tr.Next = func(ctx context.Context, failed error) ([]delegate.Attachment, error) {
		if asked++; asked == 2 { // the second time it waits longer
			go func() {
				deleted <- (&Manager{machine: &fileMachine{}, Invoker: n.Invoker, Dir: n.Dir}).Del(t.Context(), eth0, Removal{})
			}()
		}
		hasty := &Manager{machine: &fileMachine{}, Invoker: n.Invoker, Dir: n.Dir, LockTimeout: time.Millisecond}
		nodetest.Code(t, hasty.Del(t.Context(), eth0, Removal{}), 11)
		nodetest.Equal(t, "records", len(n.records()), 1)
		nodetest.Equal(t, "alive", n.Exec.Live(), nil)
		return next(ctx, failed)
	}
	_, err := n.Add(t.Context(), eth0, tr)
	nodetest.Code(t, err, 101)
	nodetest.OK(t, <-deleted)
	nodetest.Equal(t, "hooks", said, []string{"next 101", "next 101"})
	n.wantTrace("ADD bridge eth0", "DEL bridge eth0", "ADD macvlan eth0", "DEL macvlan eth0")
	n.wantNothing()
}

func (n *node) attach() {
	n.Helper()
	n.mustAttach(eth0, hotplug(eth0))
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
	n.On("ADD ipvlan", func(context.Context, delegatetest.Call) error {
		n.wantRecords("c1/eth0 partial") // it is on disk while it is made
		return nil
	})
	var taken []string
	added, err := n.Attach(t.Context(), eth0, Transaction{
		Plan: func(_ context.Context, names []string) ([]delegate.Attachment, error) {
			taken = names
			return []delegate.Attachment{attachment(nodetest.Network("green", "ipvlan"), "c1", "hot0")}, nil
		},
	})
	nodetest.OK(t, err)
	if len(added) != 1 || added[0].IfName != "hot0" || added[0].Result == nil {
		t.Errorf("added %v", added)
	}
	nodetest.Equal(t, "taken", taken, []string{"eth0", "net0"})
	n.wantRecords("c1/eth0 added")
	for r := range n.Records(t.Context()) {
		created = append(created, r.Created)
	}
	if created[0] != created[1] {
		t.Errorf("created at %v", created)
	}
	nodetest.OK(t, n.Check(t.Context(), eth0, ""))
	nodeAt(t, n.Dir).del(eth0)
	n.wantTrace("ADD bridge eth0", "ADD tuning eth0", "ADD macvlan net0", "ADD ipvlan hot0",
		"CHECK bridge eth0", "CHECK tuning eth0", "CHECK macvlan net0", "CHECK ipvlan hot0")
}

// The last interface of an attachment may go, when its own never came.
func TestDetachRemovesEveryNetworkOfAnInterface(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.mustAdd(eth0, hotplug(eth0))
	nodetest.OK(t, n.Detach(t.Context(), eth0, "hot0"))
	n.wantRecords("c1/eth0 added")
	n.attach()
	n.del(eth0)
	n.wantNothing()
}

// in returns a with a network namespace.
func in(netns string, a delegate.Attachment) delegate.Attachment {
	a.NetNS = netns
	return a
}

// Names that exist in the network namespace are refused before anything runs:
// a plugin that fails because of one might remove that interface in its DEL.
func TestNamesInTheNamespaceAreRefused(t *testing.T) {
	t.Parallel()
	blue := func(ifname string) delegate.Attachment {
		return attachment(nodetest.Network("blue", "bridge"), "c1", ifname)
	}
	red := func(ifname string) delegate.Attachment {
		return attachment(nodetest.Network("red", "macvlan"), "c1", ifname)
	}
	there := map[string][]string{"/ns/a": {"lo", "eth0"}, "/ns/b": {"lo", "net0"}, "/ns/c": {"lo"}}
	for name, tt := range map[string]struct {
		netns  string // of the transaction
		plan   []delegate.Attachment
		taken  []string // what Plan is told
		asked  []string // the namespaces looked into
		refuse string
	}{
		"free":                          {"/ns/a", []delegate.Attachment{in("/ns/a", blue("eth1"))}, []string{"lo", "eth0"}, []string{"/ns/a"}, ""},
		"in use":                        {"/ns/a", []delegate.Attachment{in("/ns/a", blue("eth0"))}, []string{"lo", "eth0"}, []string{"/ns/a", "/ns/a"}, `network "blue": the interface name is in use`},
		"the second":                    {"/ns/b", []delegate.Attachment{in("/ns/b", blue("eth0")), in("/ns/b", red("net0"))}, []string{"lo", "net0"}, []string{"/ns/b", "/ns/b"}, `network "red" (net0): the interface name is in use`},
		"loopback":                      {"/ns/c", []delegate.Attachment{in("/ns/c", blue("lo"))}, []string{"lo"}, []string{"/ns/c", "/ns/c"}, `network "blue" (lo): the interface name is in use`},
		"another namespace than t's":    {"/ns/c", []delegate.Attachment{in("/ns/a", blue("eth0"))}, []string{"lo"}, []string{"/ns/c", "/ns/a", "/ns/c"}, `network "blue": the interface name is in use`},
		"t has none":                    {"", []delegate.Attachment{in("/ns/a", blue("eth0"))}, nil, []string{"/ns/a"}, `network "blue": the interface name is in use`},
		"t has none, and it is free":    {"", []delegate.Attachment{in("/ns/b", blue("eth0"))}, nil, []string{"/ns/b"}, ""},
		"no namespace":                  {"", []delegate.Attachment{blue("eth0")}, nil, nil, ""},
		"several, each looked at once":  {"/ns/c", []delegate.Attachment{in("/ns/b", blue("eth0")), in("/ns/b", red("eth7")), in("/ns/a", red("eth8"))}, []string{"lo"}, []string{"/ns/c", "/ns/b", "/ns/a"}, ""},
		"several, the name in another":  {"/ns/c", []delegate.Attachment{in("/ns/a", blue("net0")), in("/ns/b", red("eth0"))}, []string{"lo"}, []string{"/ns/c", "/ns/a", "/ns/b"}, ""},
		"several, the last is refused":  {"/ns/c", []delegate.Attachment{in("/ns/a", blue("net0")), in("/ns/b", red("eth0")), in("/ns/b", red("net0"))}, []string{"lo"}, []string{"/ns/c", "/ns/a", "/ns/b", "/ns/c"}, `network "red" (net0): the interface name is in use`},
		"in use in t's, not in its own": {"/ns/a", []delegate.Attachment{in("/ns/c", blue("eth0"))}, []string{"lo", "eth0"}, []string{"/ns/a", "/ns/c", "/ns/a"}, `network "blue": the interface name is in use`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t)
			var asked, taken []string
			n.InterfaceNames = func(netns string) ([]string, error) {
				asked = append(asked, netns)
				names, known := there[netns]
				if !known {
					return nil, fmt.Errorf("%q: nobody knows", netns)
				}
				return names, nil
			}
			_, err := n.Add(t.Context(), eth0, Transaction{NetNS: tt.netns, Plan: func(_ context.Context, names []string) ([]delegate.Attachment, error) {
				taken = slices.Clone(names)
				for i := range names {
					names[i] = "spoilt" // it is the planner's to change
				}
				return tt.plan, nil
			}})
			nodetest.Equal(t, "taken", taken, tt.taken)
			nodetest.Equal(t, "asked", asked, tt.asked)
			if tt.refuse == "" {
				nodetest.OK(t, err)
				n.del(eth0)
				n.wantNothing()
				return
			}
			nodetest.Code(t, err, 7)
			if !errors.Is(err, ErrPlan) || !strings.Contains(err.Error(), tt.refuse) {
				t.Errorf("err = %v, want it to say %s", err, tt.refuse)
			}
			n.del(eth0)
			n.wantTrace()
			n.wantNothing()
		})
	}
}

// Where the names cannot be had nothing runs: a namespace that cannot be looked
// into may hold any name.
func TestUnknownNamesAreAReasonToStop(t *testing.T) {
	t.Parallel()
	deaf := errors.New("netlink is deaf")
	for _, which := range []string{"/ns/a", "/ns/b"} {
		n := newNode(t)
		n.InterfaceNames = func(netns string) ([]string, error) {
			if netns == which {
				return nil, deaf
			}
			return nil, nil
		}
		_, err := n.Add(t.Context(), eth0, Transaction{
			NetNS: "/ns/a", Plan: Plan(in("/ns/b", attachment(nodetest.Network("blue", "bridge"), "c1", "eth0"))),
		})
		if !errors.Is(err, deaf) {
			t.Errorf("%s: %v", which, err)
		}
		n.wantTrace()
		n.wantNothing()
	}
}

// The names in records are refused in every namespace, those of a second plan
// too, and those of an interface that has been undone are free again.
func TestNamesInRecordsAreRefused(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.add(eth0)
	k := key("c1", "eth1")
	blue := func(ifname string) []delegate.Attachment {
		return []delegate.Attachment{in("/ns/b", attachment(nodetest.Network("blue", "bridge"), "c1", ifname))}
	}
	n.InterfaceNames = func(string) ([]string, error) { return nil, nil }
	n.On("ADD bridge eth1", func(context.Context, delegatetest.Call) error { return errors.New("no") })
	calls := len(n.trace())
	plans := [][]delegate.Attachment{blue("net0"), blue("eth1"), blue("net0"), blue("eth2")}
	_, err := n.Add(t.Context(), k, Transaction{Plan: Plan(blue("eth0")...), Next: func(context.Context, error) ([]delegate.Attachment, error) {
		plan := plans[0]
		plans = plans[1:]
		return plan, nil
	}})
	if err != nil || len(plans) > 0 {
		t.Errorf("%d plans are left: %v", len(plans), err)
	}
	nodetest.Equal(t, "calls", n.trace()[calls:], []string{"ADD bridge eth1", "DEL bridge eth1", "ADD bridge eth2"})
}

// An ADD on what is added removes it only if the veth pair is gone, by the result and on the host
// of the first ADD: another program has detached the container. What is in the namespace proves
// nothing.
func TestAddOnWhatIsDestroyed(t *testing.T) {
	t.Parallel()
	lo, bridge, peer := hostLink{name: "lo", kind: "loopback"}, hostLink{name: "cni0", mac: "02:00:00:00:00:10", kind: "bridge"}, hostLink{"veth1", "02:00:00:00:00:11", "veth", 3}
	for name, tt := range map[string]struct {
		result    string
		host      []hostLink // when the second ADD comes
		elsewhere bool       // on another host
		again     bool
	}{
		"destroyed":               {made, []hostLink{bridge}, false, true},
		"and its bridge too":      {made, []hostLink{lo}, false, true},
		"there":                   {made, []hostLink{bridge, peer}, false, false},
		"there, without a bridge": {made, []hostLink{peer}, false, false},
		"renamed":                 {made, []hostLink{bridge, {"other", peer.mac, "veth", 3}}, false, false},
		"of another host":         {made, []hostLink{bridge}, true, false},
		"not on the host":         {`{"cniVersion":"1.1.0","interfaces":[{"name":"eth0","mac":"02:00:00:00:00:12","sandbox":"/s"}]}`, []hostLink{lo}, false, false},
		"without its sandbox":     {`{"cniVersion":"1.1.0","interfaces":[{"name":"eth0","mac":"02:00:00:00:00:12"}]}`, []hostLink{lo}, false, false},
		"none was made":           {`{"cniVersion":"1.1.0"}`, []hostLink{lo}, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n, netns := newNode(t), newNetNS(t)
			n.machine = &fileMachine{host: []hostLink{bridge, peer}}
			n.printing("tuning", tt.result)
			n.addIn(eth0, netns)
			n.machine = &fileMachine{host: tt.host, otherHost: tt.elsewhere}
			before := len(n.trace())
			tr := pair(eth0)
			tr.Plan = inNetNS(tr.Plan, netns)
			_, err := n.Add(t.Context(), eth0, tr)
			if !tt.again {
				if !errors.Is(err, ErrAdded) || len(n.trace()) > before {
					t.Errorf("ran %q: %v", n.trace()[before:], err)
				}
				return
			}
			nodetest.OK(t, err)
			want := []string{"DEL macvlan net0", "DEL tuning eth0", "DEL bridge eth0", "ADD bridge eth0", "ADD tuning eth0", "ADD macvlan net0"}
			nodetest.Equal(t, "calls", n.trace()[before:], want)
		})
	}
}

// An ADD removes no other attachment of the container, whatever became of its interface: a guest
// may have renamed or moved it.
func TestAddSparesOtherAttachments(t *testing.T) {
	t.Parallel()
	other := scratch.Key{Network: "other", ContainerID: "c1", IfName: "eth0"}
	for name, tt := range map[string]struct {
		there []string // interfaces when the second ADD comes
		gone  bool     // the namespace of the first
		add   string   // the interface of the second
		code  uint
		calls []string
		left  []string
	}{
		"its interface is not there":       {there: []string{"lo"}, add: "eth1", calls: []string{"ADD bridge eth1"}, left: []string{"c1/eth1 added", "c1/eth0 added"}},
		"nor is it, but its name is asked": {there: []string{"lo"}, add: "eth0", code: 7, left: []string{"c1/eth0 leftover", "c1/eth0 added"}},
		"its namespace is gone":            {there: []string{"lo"}, gone: true, add: "eth1", calls: []string{"ADD bridge eth1"}, left: []string{"c1/eth1 added", "c1/eth0 added"}},
		"it is there":                      {there: []string{"lo", "eth0"}, add: "eth1", calls: []string{"ADD bridge eth1"}, left: []string{"c1/eth1 added", "c1/eth0 added"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n, before, now := newNode(t), newNetNS(t), newNetNS(t)
			if !tt.gone {
				now = before
			}
			n.printing("tuning", made)
			n.addIn(other, before)
			n.InterfaceNames = func(string) ([]string, error) { return tt.there, nil }
			if tt.gone {
				unlink(t, before)
			}
			n.Trace()
			plan := Plan(attachment(nodetest.Network("blue", "bridge"), "c1", tt.add))
			_, err := n.Add(t.Context(), key("c1", tt.add), Transaction{NetNS: now, Plan: inNetNS(plan, now)})
			nodetest.Code(t, err, tt.code)
			n.WantTrace(tt.calls...)
			nodetest.Equal(t, "records", n.records(), tt.left)
		})
	}
}

// An ADD that waits in line is cancelled as well, and one that has ended does
// not hide the others from the DEL.
func TestDelCancelsEveryAdd(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	in := make(chan struct{})
	n.On("ADD bridge", func(ctx context.Context, _ delegatetest.Call) error {
		close(in)
		<-ctx.Done()
		return errors.New("killed")
	})
	errs := make(chan error)
	go func() {
		_, err := n.Add(t.Context(), eth0, pair(eth0))
		errs <- err
	}()
	<-in
	short, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	_, err := n.Add(short, eth0, pair(eth0)) // waits in vain, and is gone
	nodetest.Code(t, err, 11)
	patient := &Manager{machine: &fileMachine{}, Invoker: n.Invoker, Dir: n.Dir}
	done := make(chan error)
	go func() { done <- patient.Del(t.Context(), eth0, Removal{}) }() // of "another process": it only waits
	n.del(eth0)
	nodetest.Is(t, <-errs, ErrSuperseded)
	nodetest.OK(t, <-done)
	n.wantNothing()
	if len(n.adds) > 0 {
		t.Errorf("%d ADDs are still known", len(n.adds))
	}
}

// A DEL of another attachment of the container waits, and cancels nothing.
func TestDelOfAnotherKeyWaits(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	eth1 := key("c1", "eth1")
	n.add(eth1)
	in, out := n.Gate("ADD bridge eth0")
	var add sync.WaitGroup
	add.Go(func() { n.add(eth0) })
	<-in
	calls := n.trace()
	hasty := &Manager{machine: &fileMachine{}, Invoker: n.Invoker, Dir: n.Dir, LockTimeout: time.Millisecond}
	nodetest.Code(t, hasty.Del(t.Context(), eth1, Removal{}), 11)
	nodetest.Code(t, hasty.Del(t.Context(), eth0, Removal{}), 11) // nor does another Manager
	n.wantTrace(calls...)
	n.wantRecords("c1/eth0 planned", "c1/eth1 added")
	n.del(key("c2", "eth0")) // other containers have locks of their own
	out()
	n.del(eth1)
	add.Wait()
	n.wantRecords("c1/eth0 added")
	n.del(eth0)
	n.wantNothing()
}

// Without LockTimeout an operation waits for ten seconds, and then kills
// nobody who is alive. The context counts too.
func TestWaitForTheLockIsBounded(t *testing.T) {
	t.Parallel()
	dir := newNode(t).Dir
	synctest.Test(t, func(t *testing.T) {
		n := nodeAt(t, dir)
		n.add(eth0)
		l, err := scratch.Store[record]{Dir: dir}.Lock(t.Context(), "c1")
		nodetest.OK(t, err)
		verbs := map[string]func(context.Context) error{
			"DEL":    func(ctx context.Context) error { return n.Del(ctx, eth0, Removal{}) },
			"CHECK":  func(ctx context.Context) error { return n.Check(ctx, eth0, "") },
			"DETACH": func(ctx context.Context) error { return n.Detach(ctx, eth0, "net0") },
			"GC":     func(ctx context.Context) error { return n.GC(ctx, Collection{Network: "multi", Valid: noneValid}) },
			"ADD":    func(ctx context.Context) error { _, err := n.Add(ctx, eth0, pair(eth0)); return err },
			"ATTACH": func(ctx context.Context) error { _, err := n.Attach(ctx, eth0, hotplug(eth0)); return err },
		}
		for verb, do := range verbs {
			start := time.Now()
			err := do(t.Context())
			if e := (*Error)(nil); !errors.As(err, &e) || e.Op != verb || e.Key.ContainerID != "c1" {
				t.Errorf("%s: %v", verb, err)
			}
			nodetest.Code(t, err, 11)
			if took := time.Since(start); took != defaultLockTimeout {
				t.Errorf("%s: waited for %s", verb, took)
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			start = time.Now()
			err = do(ctx)
			cancel()
			nodetest.Code(t, err, 11)
			if took := time.Since(start); took != time.Second {
				t.Errorf("%s: waited for %s with a second to go", verb, took)
			}
		}
		nodetest.Equal(t, "calls", n.trace(), []string{
			"ADD bridge eth0", "ADD tuning eth0", "ADD macvlan net0",
			"GC bridge", "GC tuning", "GC macvlan", // with the attachment: somebody is working on it
		})
		wantValid(t, n.Last("GC macvlan"), "c1 net0")
		nodetest.OK(t, l.Unlock())
		n.wantRecords("c1/eth0 added")
		n.del(eth0)
		n.wantNothing()
	})
}

// A plugin in this process may use package delegate itself. What it could not undo its DEL
// undoes, so that nothing is left, and another plan is tried.
func TestPluginThatCouldNotUndoIsUndone(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.Exec.Plugins["tuning"] = func(_ context.Context, c delegatetest.Call) ([]byte, error) {
		if c.Command == "ADD" {
			return nil, fmt.Errorf("%w; %w", types.NewError(117, "why", ""), delegate.ErrNotUndone)
		}
		return nil, nil
	}
	asked := 0
	_, err := n.Add(t.Context(), key("c1", "eth0"), Transaction{
		Plan: Plan(attachment(nodetest.Network("blue", "bridge", "tuning"), "c1", "eth0")),
		Next: func(context.Context, error) ([]delegate.Attachment, error) { asked++; return nil, nil },
	})
	if errors.Is(err, delegate.ErrNotUndone) || status.Code(err) != 117 || asked != 1 {
		t.Errorf("code %d: %v; asked %d times for another plan", status.Code(err), err, asked)
	}
	n.wantNothing()
}
