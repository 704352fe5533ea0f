package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
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

// Wherever an ADD fails it is undone, the failing plugin included, the record goes and the cause's
// code stays: see TestGuaranteesHoldInEveryHistory too.
func TestAddThatFailsAnywhereIsUndone(t *testing.T) {
	t.Parallel()
	all := []string{"ADD bridge eth0", "ADD tuning eth0", "ADD macvlan net0", "DEL macvlan net0", "DEL tuning eth0", "DEL bridge eth0"}
	reporting := func(err error) func(*node, *Transaction, func()) {
		return func(_ *node, t *Transaction, end func()) {
			t.Report = func(context.Context, []delegate.Attached) error { end(); return err }
		}
	}
	for name, tt := range map[string]struct {
		prepare func(n *node, t *Transaction, end func())
		code    uint
	}{
		"the last plugin":                     {func(n *node, _ *Transaction, _ func()) { n.FailOn("ADD macvlan", 103) }, 103},
		"a deeper result":                     {func(n *node, _ *Transaction, _ func()) { n.printing("macvlan", withResult(deep(bounds.Depth))) }, 6},
		"Report, after the context has ended": {reporting(errors.New("broken pipe")), 11},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t)
			tr := pair(eth0)
			ctx, end := context.WithCancel(t.Context())
			defer end()
			tt.prepare(n, &tr, end)
			added, err := n.Add(ctx, eth0, tr)
			nodetest.Code(t, err, tt.code)
			wantError(t, err, "ADD", eth0)
			nodetest.Equal(t, "added", len(added), 0)
			if ctx.Err() != nil {
				nodetest.Is(t, err, context.Canceled)
			}
			n.WantTrace(all...)
			n.wantNothing()
			n.del(eth0) // it is as if nothing had been
			n.WantTrace()
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

// printing makes the ADD of a plugin print a result, and do the rest well.
func (n *node) printing(plugin, result string) {
	n.Exec.Plugins[plugin] = func(ctx context.Context, c delegatetest.Invocation) ([]byte, error) {
		if c.Command == "ADD" {
			return []byte(result), nil
		}
		return delegatetest.Result(nil)(ctx, c)
	}
}

// dieOn ends the process, as it were, at the calls that begin so.
func (n *node) dieOn(prefix string) {
	n.On(prefix, func(context.Context, delegatetest.Invocation) error { runtime.Goexit(); return nil })
}

// A record in which nothing can be noted does not keep the rest from going.
func TestDelGoesOnWithoutNotes(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.add(eth0)
	n.On("DEL macvlan", func(context.Context, delegatetest.Invocation) error {
		n.damage(eth0) // nothing can be noted in it
		return nil
	})
	n.halfDelete(eth0)
	n.WantTrace("ADD bridge eth0", "ADD tuning eth0", "ADD macvlan net0", "DEL macvlan net0", "DEL tuning eth0", "DEL bridge eth0")
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

// Next is told why, and is not asked if no plan can help. Which plans are tried see
// TestGuaranteesHoldInEveryHistory.
func TestNoPlanWorks(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		spoil func(n *node)
		code  uint
		said  []string
		calls []string
	}{
		"none": {func(n *node) {
			for i, p := range []string{"bridge", "macvlan"} {
				n.FailOn("ADD "+p, 101+uint(i))
			}
		}, 102, []string{"next 101", "next 102"}, []string{"ADD bridge eth0", "DEL bridge eth0", "ADD macvlan eth0", "DEL macvlan eth0"}},
		"the record vanishes at a plugin": {func(n *node) {
			n.On("ADD bridge", func(context.Context, delegatetest.Invocation) error { return os.Remove(n.recordFile(eth0)) })
		}, 5, nil, []string{"ADD bridge eth0", "DEL bridge eth0"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t)
			var said []string
			tt.spoil(n)
			_, err := n.Add(t.Context(), eth0, choose(eth0, &said, "bridge", "macvlan"))
			nodetest.Code(t, err, tt.code)
			nodetest.Equal(t, "hooks", said, tt.said)
			n.WantTrace(tt.calls...)
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
			go func() { deleted <- another(n, 0).Del(t.Context(), eth0, DelRequest{}) }()
		}
		nodetest.Code(t, another(n, time.Millisecond).Del(t.Context(), eth0, DelRequest{}), 11)
		nodetest.Equal(t, "records", len(n.records()), 1)
		nodetest.Equal(t, "alive", n.Exec.Live(), nil)
		return next(ctx, failed)
	}
	_, err := n.Add(t.Context(), eth0, tr)
	nodetest.Code(t, err, 101)
	nodetest.OK(t, <-deleted)
	nodetest.Equal(t, "hooks", said, []string{"next 101", "next 101"})
	n.WantTrace("ADD bridge eth0", "DEL bridge eth0", "ADD macvlan eth0", "DEL macvlan eth0")
	n.wantNothing()
}

func (n *node) attach() {
	n.Helper()
	n.mustAttach(eth0, hotplug(eth0))
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
// Where the names cannot be had nothing runs either.
func TestNamesInTheNamespaceAreRefused(t *testing.T) {
	t.Parallel()
	blue := func(netns, ifname string) delegate.Attachment {
		return in(netns, attachment(nodetest.Network("blue", "bridge"), "c1", ifname))
	}
	red := func(netns, ifname string) delegate.Attachment {
		return in(netns, attachment(nodetest.Network("red", "macvlan"), "c1", ifname))
	}
	deaf := errors.New("netlink is deaf")
	there := map[string][]string{"/ns/a": {"lo", "eth0"}, "/ns/b": {"lo", "net0"}, "/ns/c": {"lo"}}
	for name, tt := range map[string]struct {
		netns  string // of the transaction
		plan   []delegate.Attachment
		asked  []string // the namespaces looked into
		refuse string
		err    error
	}{
		"free":                          {netns: "/ns/a", plan: []delegate.Attachment{blue("/ns/a", "eth1")}, asked: []string{"/ns/a"}},
		"in use":                        {"/ns/b", []delegate.Attachment{blue("/ns/b", "eth0"), red("/ns/b", "net0")}, []string{"/ns/b", "/ns/b"}, `network "red" (net0): the interface name is in use`, ErrPlan},
		"t has none":                    {"", []delegate.Attachment{blue("/ns/a", "eth0")}, []string{"/ns/a"}, `network "blue": the interface name is in use`, ErrPlan},
		"no namespace":                  {plan: []delegate.Attachment{blue("", "eth0")}},
		"several, each looked at once":  {netns: "/ns/c", plan: []delegate.Attachment{blue("/ns/b", "eth0"), red("/ns/b", "eth7"), red("/ns/a", "eth8")}, asked: []string{"/ns/c", "/ns/b", "/ns/a"}},
		"several, the last is refused":  {"/ns/c", []delegate.Attachment{blue("/ns/a", "net0"), red("/ns/b", "eth0"), red("/ns/b", "net0")}, []string{"/ns/c", "/ns/a", "/ns/b", "/ns/c"}, `network "red" (net0): the interface name is in use`, ErrPlan},
		"in use in t's, not in its own": {"/ns/a", []delegate.Attachment{blue("/ns/c", "eth0")}, []string{"/ns/a", "/ns/c", "/ns/a"}, `network "blue": the interface name is in use`, ErrPlan},
		"unknown in t's":                {"/ns/x", []delegate.Attachment{blue("/ns/a", "eth0")}, []string{"/ns/x"}, "deaf", deaf},
		"unknown in its own":            {"/ns/c", []delegate.Attachment{blue("/ns/x", "eth0")}, []string{"/ns/c", "/ns/x"}, "deaf", deaf},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t)
			var asked []string
			n.InterfaceNames = func(netns string) ([]string, error) {
				asked = append(asked, netns)
				if names, known := there[netns]; known {
					return names, nil
				}
				return nil, deaf
			}
			_, err := n.Add(t.Context(), eth0, Transaction{NetNS: tt.netns, Plan: func(_ context.Context, names []string) ([]delegate.Attachment, error) {
				nodetest.Equal(t, "taken", names, there[tt.netns])
				for i := range names {
					names[i] = "spoilt" // it is the planner's to change
				}
				return tt.plan, nil
			}})
			nodetest.Equal(t, "asked", asked, tt.asked)
			nodetest.Is(t, err, tt.err)
			nodetest.Says(t, err, strings.Fields(tt.refuse)...)
			if tt.err != nil {
				n.WantTrace()
			}
			n.del(eth0)
			n.wantNothing()
		})
	}
}

// The names in records are refused in every namespace, those of a second plan
// too, and those of an interface that has been undone are free again.
func TestNamesInRecordsAreRefused(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.add(eth0)
	n.Trace()
	blue := func(ifname string) []delegate.Attachment {
		return []delegate.Attachment{in("/ns/b", attachment(nodetest.Network("blue", "bridge"), "c1", ifname))}
	}
	n.InterfaceNames = func(string) ([]string, error) { return nil, nil }
	n.FailOn("ADD bridge eth1", 101)
	plans := [][]delegate.Attachment{blue("net0"), blue("eth1"), blue("net0"), blue("eth2")}
	n.mustAdd(key("c1", "eth1"), Transaction{Plan: Plan(blue("eth0")...), Next: func(context.Context, error) ([]delegate.Attachment, error) {
		plan := plans[0]
		plans = plans[1:]
		return plan, nil
	}})
	nodetest.Equal(t, "plans left", len(plans), 0)
	n.WantTrace("ADD bridge eth1", "DEL bridge eth1", "ADD bridge eth2")
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
		"destroyed":             {made, []hostLink{bridge}, false, true},
		"and its bridge too":    {made, []hostLink{lo}, false, true},
		"there":                 {made, []hostLink{bridge, peer}, false, false},
		"there, not its bridge": {made, []hostLink{peer}, false, false},
		"renamed":               {made, []hostLink{bridge, {"other", peer.mac, "veth", 3}}, false, false},
		"of another host":       {made, []hostLink{bridge}, true, false},
		"without its peer":      {`{"cniVersion":"1.1.0","interfaces":[{"name":"eth0","mac":"02:00:00:00:00:12","sandbox":"/s"}]}`, []hostLink{lo}, false, false},
		"without its sandbox":   {`{"cniVersion":"1.1.0","interfaces":[{"name":"eth0","mac":"02:00:00:00:00:12"}]}`, []hostLink{lo}, false, false},
		"without an interface":  {`{"cniVersion":"1.1.0"}`, []hostLink{lo}, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n, netns := newNode(t), newNetNS(t)
			n.machine = &fileMachine{host: []hostLink{bridge, peer}}
			n.printing("tuning", tt.result)
			n.addIn(eth0, netns)
			n.machine = &fileMachine{host: tt.host, otherHost: tt.elsewhere}
			n.Trace()
			tr := pairIn(eth0, netns)
			_, err := n.Add(t.Context(), eth0, tr)
			if tt.again {
				nodetest.OK(t, err)
				n.WantTrace("DEL macvlan net0", "DEL tuning eth0", "DEL bridge eth0", "ADD bridge eth0", "ADD tuning eth0", "ADD macvlan net0")
				nodetest.Equal(t, "DEL is given", n.Last("DEL bridge").NetNS, netns)
			} else {
				nodetest.Is(t, err, ErrAdded)
				n.WantTrace()
			}
		})
	}
}

// An ADD removes no other attachment of the container, whatever became of its interface: a guest
// may have renamed or moved it.
func TestAddSparesOtherAttachments(t *testing.T) {
	t.Parallel()
	other := scratch.Key{Network: "other", ContainerID: "c1", IfName: "eth0"}
	for name, tt := range map[string]struct {
		gone bool   // the namespace of the first
		add  string // the interface of the second
		code uint
		left []string
	}{
		"its interface is not there":       {add: "eth1", left: []string{"c1/eth1 added", "c1/eth0 added"}},
		"nor is it, but its name is asked": {add: "eth0", code: 7, left: []string{"c1/eth0 leftover", "c1/eth0 added"}},
		"its namespace is gone":            {gone: true, add: "eth1", left: []string{"c1/eth1 added", "c1/eth0 added"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n, before, now := newNode(t), newNetNS(t), newNetNS(t)
			n.printing("tuning", made)
			n.addIn(other, before)
			if n.named(before); tt.gone {
				unlink(t, before)
			} else {
				now = before
			}
			n.Trace()
			plan := Plan(attachment(nodetest.Network("blue", "bridge"), "c1", tt.add))
			_, err := n.Add(t.Context(), key("c1", tt.add), Transaction{NetNS: now, Plan: inNetNS(plan, now)})
			if nodetest.Code(t, err, tt.code); tt.code == 0 {
				n.WantTrace("ADD bridge eth1")
			}
			n.WantTrace()
			n.wantRecords(tt.left...)
		})
	}
}

// An ADD that waits in line is cancelled as well, and one that has ended does
// not hide the others from the DEL.
func TestDelCancelsEveryAdd(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	in := make(chan struct{})
	n.On("ADD bridge", func(ctx context.Context, _ delegatetest.Invocation) error {
		close(in)
		<-ctx.Done()
		return errors.New("killed")
	})
	errs, done := make(chan error), make(chan error)
	go func() { errs <- n.verb(t.Context(), "ADD") }()
	<-in
	short, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	nodetest.Code(t, n.verb(short, "ADD"), 11)                                 // waits in vain, and is gone
	go func() { done <- another(n, 0).Del(t.Context(), eth0, DelRequest{}) }() // of "another process": it only waits
	n.del(eth0)
	nodetest.Is(t, <-errs, ErrSuperseded)
	nodetest.OK(t, <-done)
	n.wantNothing()
	nodetest.Equal(t, "ADDs that are still known", len(n.adds), 0)
}

// An ADD whose context ends while it removes what is left of an earlier one attaches nothing.
func TestAddThatEndsBeforeItsPlan(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.add(eth0)
	n.halfDelete(eth0)
	n.Exec.Plugins = plugins()
	ctx, cancel := context.WithCancel(t.Context())
	n.On("DEL bridge", func(context.Context, delegatetest.Invocation) error { cancel(); return nil })
	_, err := n.Add(ctx, eth0, Transaction{Plan: func(context.Context, []string) ([]delegate.Attachment, error) {
		t.Error("asked for a plan")
		return nil, nil
	}})
	nodetest.Is(t, err, context.Canceled)
	n.wantNothing()
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
	n.Trace()
	hasty := another(n, time.Millisecond)
	nodetest.Code(t, hasty.Del(t.Context(), eth1, DelRequest{}), 11)
	nodetest.Code(t, hasty.Del(t.Context(), eth0, DelRequest{}), 11) // nor does another Manager
	n.WantTrace()
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
		n.Trace()
		l, err := n.store().Lock(t.Context(), "c1")
		nodetest.OK(t, err)
		for _, verb := range []string{"DEL", "CHECK", "DETACH", "GC", "ADD", "ATTACH"} {
			for _, limit := range []time.Duration{time.Hour, time.Second} {
				start := time.Now()
				ctx, cancel := context.WithTimeout(t.Context(), limit)
				err := n.verb(ctx, verb)
				cancel()
				nodetest.Code(t, err, 11)
				wantError(t, err, verb, eth0)
				nodetest.Equal(t, verb+": waited for", time.Since(start), min(limit, defaultLockTimeout))
			}
		}
		n.WantTrace("GC bridge", "GC tuning", "GC macvlan") // with the attachment: somebody is working on it
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
	n.On("ADD bridge", func(context.Context, delegatetest.Invocation) error {
		return fmt.Errorf("%w; %w", types.NewError(117, "why", ""), delegate.ErrNotUndone)
	})
	var said []string
	_, err := n.Add(t.Context(), eth0, choose(eth0, &said, "bridge"))
	nodetest.Code(t, err, 117)
	nodetest.Equal(t, "something is left", errors.Is(err, delegate.ErrNotUndone), false)
	nodetest.Equal(t, "hooks", said, []string{"next 117"})
	n.wantNothing()
}
