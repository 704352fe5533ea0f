package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/internal/fault"
	nodetest "github.com/metacni/metacni/internal/test/node"
	"github.com/metacni/metacni/netconf"
	"github.com/metacni/metacni/scratch"
	"github.com/metacni/metacni/status"
)

// A sentinel has its code wherever it is found first.
func TestSentinelsHaveTheirCodesHoweverWrapped(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		err  error
		code uint
	}{
		{ErrAdded, 7},
		{ErrNotAdded, 7},
		{fmt.Errorf("x: %w", fmt.Errorf("%w: y", ErrPlan)), 7},
		{errNoList, 7},
		{fmt.Errorf("x: %w", ErrSuperseded), 11},
		{&scratch.Error{Err: scratch.ErrCorrupt}, 5},
		{&scratch.Error{Err: ErrPlan}, 5}, // of the first
	} {
		err := fail("ADD", eth0, tt.err)
		nodetest.Code(t, err, tt.code)
		nodetest.Is(t, err, tt.err)
	}
	nodetest.OK(t, fail("ADD", eth0, nil))
}

// Without a descriptor to hand down nothing runs, and the runtime tries again:
// a plugin that outlived us would work beside the next DEL.
func TestNoDescriptorToHandDownIsTryAgainLater(t *testing.T) {
	t.Parallel()
	nodetest.Code(t, handing(t.Context(), nil, func(context.Context) error { panic("something runs") }), 11)
}

// What can never be right is refused before anything is done.
func TestMistakesOfTheCallerAreRefusedFirst(t *testing.T) {
	t.Parallel()
	for name, do := range map[string]func(*node) error{
		"Release without keep":   func(n *node) error { return n.Release(n.Context(), eth0, nil) },
		"Detach, LockTimeout -1": func(n *node) error { n.LockTimeout = -1; return n.verb(n.Context(), "DETACH") },
		"GC, LockTimeout -1":     func(n *node) error { n.LockTimeout = -1; return n.verb(n.Context(), "GC") },
		"Add, UndoTimeout -1": func(n *node) error {
			n.Invoker.UndoTimeout = -1
			_, err := n.Add(n.Context(), key("c2", "eth0"), pair(key("c2", "eth0")))
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t)
			n.add(eth0)
			n.Trace()
			nodetest.Code(t, do(n), types.ErrInvalidNetworkConfig)
			n.wantRecords("c1/eth0 added")
			n.WantTrace()
		})
	}
}

const longID = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

// The runtime, and so the operator, reads one line. It names the operation, the
// container, the interface, the network and the plugin once, and no package.
func TestErrorNamesEachThingOnce(t *testing.T) {
	t.Parallel()
	verb := func(verb string) func(n *node) error {
		return func(n *node) error { return n.verb(n.Context(), verb) }
	}
	add := func(k scratch.Key, t Transaction) func(n *node) error {
		return func(n *node) error { _, err := n.Add(n.Context(), k, t); return err }
	}
	storage := attachment(nodetest.Parse(`{"name":"storage","type":"bridge","capabilities":{"mac":true}}`), "c1", "net1")
	storage.CapabilityArgs = map[string]raw{"mac": raw("{")}
	multi := []netconf.Network{nodetest.Network("blue", "bridge", "tuning"), nodetest.Network("multi", "macvlan")}
	for name, tt := range map[string]struct {
		added bool   // eth0 is
		fail  string // the plugin that fails
		do    func(*node) error
		want  string
	}{
		"the container's own interface": {false, "ADD bridge", verb("ADD"), `ADD c1 eth0: network "blue": plugin "bridge": no`},
		"a container ID as runtimes make them": {
			false, "ADD macvlan", add(key(longID, "eth0"), pair(key(longID, "eth0"))),
			`ADD 0123456789ab eth0: network "red" (net0): plugin "macvlan": no`,
		},
		"an undo that fails": {
			false, "DEL bridge", func(n *node) error { n.FailOn("ADD macvlan", 101); return n.verb(n.Context(), "ADD") },
			`ADD c1 eth0: network "red" (net0): plugin "macvlan": no; undoing it failed as well: DEL network "blue": plugin "bridge": no`,
		},
		"what an ADD removes first": {
			true, "DEL bridge", func(n *node) error { nodeAt(n.TB, n.Dir).halfDelete(eth0); return n.verb(n.Context(), "ADD") },
			`ADD c1 eth0: what was attached before cannot be removed: DEL network "blue": plugin "bridge": no`,
		},
		"ADD again": {true, "", verb("ADD"), "ADD c1 eth0: already added, DEL must come first"},
		"several failures": {
			true, "DEL ", verb("DEL"),
			`DEL c1 eth0: network "red" (net0): plugin "macvlan": no; network "blue": plugin "tuning": no; network "blue": plugin "bridge": no`,
		},
		"CHECK without a record":          {false, "", verb("CHECK"), "CHECK c1 eth0: not added, or not completely"},
		"one more network":                {true, "ADD ipvlan", verb("ATTACH"), `ATTACH c1 eth0: network "green" (hot0): plugin "ipvlan": no`},
		"the interface that Detach keeps": {true, "", func(n *node) error { return n.Detach(n.Context(), eth0, "eth0") }, "DETACH c1 eth0: only DEL removes the attachment's own interface"},
		"GC of what is stale":             {true, "DEL macvlan", verb("GC"), `GC c1 eth0: DEL network "red" (net0): plugin "macvlan": no`},
		"GC that a plugin is told": {
			false, "GC ", func(n *node) error {
				return n.GC(n.Context(), GCRequest{Network: "multi", Valid: noneValid, Networks: multi})
			},
			`GC network "multi": network "blue": plugin "bridge": no; network "blue": plugin "tuning": no; GC network "multi": plugin "macvlan": no`,
		},
		"a sweep": {
			true, "DEL bridge", func(n *node) (err error) {
				nodeAt(n.TB, n.Dir).halfDelete(eth0)
				s := &Sweeper{Manager: n.Manager, Tell: func(s SweepResult) { err = s.Err }}
				_, _ = s.Sweep(n.Context())
				return err
			},
			`SWEEP c1 eth0: network "blue": plugin "bridge": no`,
		},
		"a network that cannot be used": {
			false, "", add(eth0, Transaction{Plan: Plan(storage)}),
			`ADD c1 eth0: network "storage" (net1): ` + (&netconf.Error{Kind: netconf.ErrDecode, Key: "plugins[0].runtimeConfig.mac", Err: errors.New("line 1, column 1: unexpected end of JSON input")}).Error(),
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t)
			if tt.added {
				n.add(eth0)
			}
			if tt.fail != "" {
				n.FailOn(tt.fail, 101)
			}
			nodetest.Equal(t, "the runtime reads", fmt.Sprint(status.Error(tt.do(n))), tt.want)
		})
	}
}

// Whatever wraps an error on its way, what the operation says is left out of it,
// and nothing else is.
func TestErrorOmitsWhatItSaysHoweverItsCauseIsWrapped(t *testing.T) {
	t.Parallel()
	k := key(longID, "eth0")
	locked := &scratch.Error{Op: "lock", Key: scratch.Key{ContainerID: longID}, Err: context.DeadlineExceeded}
	other := &scratch.Error{Op: "put", Key: key("c2", "eth0"), Err: scratch.ErrCorrupt}
	busy := &delegate.Error{Event: delegate.Event{Command: "DEL", Plugin: "bridge", Network: "blue", ContainerID: longID, IfName: "eth0"}, Err: types.NewError(101, "busy\n\nas ever\n", "")}
	conf := &delegate.Error{Event: delegate.Event{Command: "DEL", Network: "red", IfName: "net0"}, Err: &netconf.Error{Kind: netconf.ErrInvalid, Network: "red", Key: "mtu"}}
	unnamed := (&netconf.Error{Kind: netconf.ErrInvalid, Key: "mtu"}).Error()
	for want, err := range map[string]error{
		`DEL 0123456789ab eth0: first: network "blue": plugin "bridge": busy; as ever: then`:                  fail(opDel, k, fmt.Errorf("first: %w: then", busy)),
		`DEL 0123456789ab eth0: network "red" (net0): ` + unnamed + `; x; y`:                                  fail(opDel, k, errors.Join(conf, errors.New("x\ny"))),
		`DEL 0123456789ab eth0: x; undoing it failed as well: network "blue": plugin "bridge": busy; as ever`: fail(opDel, k, fault.NotUndone(errors.New("x"), errors.Join(busy))),
		"DEL 0123456789ab eth0: " + (&scratch.Error{Op: "lock", Err: context.DeadlineExceeded}).Error():       fail(opDel, k, locked),
		"DEL 0123456789ab eth0: deep: y; " + other.Error() + ", then":                                         fail(opDel, k, fmt.Errorf("deep: %w, then", errors.Join(errors.New("y"), other))),
		`GC network "multi": a; b`: fail(opGC, scratch.Key{Network: "multi"}, errors.New("a\nb")),
		"SWEEP: a":                 fail(opSweep, scratch.Key{}, errors.New("a")),
	} {
		nodetest.Equal(t, "text", err.Error(), want)
	}
}
