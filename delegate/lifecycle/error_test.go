package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"strings"
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
	for name, tt := range map[string]struct {
		err  error
		code uint
	}{
		"added":              {ErrAdded, 7},
		"not added":          {ErrNotAdded, 7},
		"plan, explained":    {fmt.Errorf("x: %w", fmt.Errorf("%w: y", ErrPlan)), 7},
		"no list":            {errNoList, 7},
		"superseded":         {fmt.Errorf("x: %w", ErrSuperseded), 11},
		"corrupt":            {&scratch.Error{Err: scratch.ErrCorrupt}, 5},
		"wrapped by another": {&scratch.Error{Err: ErrPlan}, 5},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			err := fail("ADD", eth0, tt.err)
			nodetest.Code(t, err, tt.code)
			if !errors.Is(err, tt.err) {
				t.Error("it does not wrap its cause")
			}
		})
	}
	if err := fail("ADD", eth0, nil); err != nil {
		t.Errorf("%v of nothing", err)
	}
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
		"Release without keep": func(n *node) error { return n.Release(n.Context(), eth0, nil) },
		"Detach, LockTimeout -1": func(n *node) error {
			n.LockTimeout = -1
			return n.Detach(n.Context(), eth0, "net0")
		},
		"GC, LockTimeout -1": func(n *node) error {
			n.LockTimeout = -1
			return n.GC(n.Context(), Collection{Network: "multi", Valid: noneValid})
		},
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
	long := key(longID, "eth0")
	add := func(n *node, k scratch.Key) error { _, err := n.Add(n.Context(), k, pair(k)); return err }
	attach := func(n *node) error { _, err := n.Attach(n.Context(), eth0, hotplug(eth0)); return err }
	del := func(n *node, k scratch.Key) error { return n.Del(n.Context(), k, Removal{}) }
	for name, tt := range map[string]struct {
		before func(*node)
		fail   string // the plugin that fails
		do     func(*node) error
		want   string
	}{
		"the container's own interface": {
			nil, "ADD bridge", func(n *node) error { return add(n, eth0) },
			`ADD c1 eth0: network "blue": plugin "bridge": no`,
		},
		"another interface": {
			nil, "ADD macvlan", func(n *node) error { return add(n, eth0) },
			`ADD c1 eth0: network "red" (net0): plugin "macvlan": no`,
		},
		"a container ID as runtimes make them": {
			nil, "ADD macvlan", func(n *node) error { return add(n, long) },
			`ADD 0123456789ab eth0: network "red" (net0): plugin "macvlan": no`,
		},
		"an undo that fails": {
			func(n *node) { n.FailOn("ADD macvlan", 101) }, "DEL bridge", func(n *node) error { return add(n, eth0) },
			`ADD c1 eth0: network "red" (net0): plugin "macvlan": no; undoing it failed as well: DEL network "blue": plugin "bridge": no`,
		},
		"what an ADD removes first": {
			func(n *node) {
				n.add(eth0)
				sick := nodeAt(n.TB, n.Dir)
				sick.FailOn("DEL", 101)
				nodetest.Code(n.TB, sick.Del(n.Context(), eth0, Removal{}), 101)
			}, "DEL bridge", func(n *node) error { return add(n, eth0) },
			`ADD c1 eth0: what was attached before cannot be removed: DEL network "blue": plugin "bridge": no`,
		},
		"ADD again": {
			func(n *node) { n.add(eth0) }, "", func(n *node) error { return add(n, eth0) },
			"ADD c1 eth0: already added, DEL must come first",
		},
		"several failures": {
			func(n *node) { n.add(eth0) }, "DEL ", func(n *node) error { return del(n, eth0) },
			`DEL c1 eth0: network "red" (net0): plugin "macvlan": no; network "blue": plugin "tuning": no; network "blue": plugin "bridge": no`,
		},
		"CHECK": {
			func(n *node) { n.add(eth0) }, "CHECK macvlan", func(n *node) error { return n.Check(n.Context(), eth0, "") },
			`CHECK c1 eth0: network "red" (net0): plugin "macvlan": no`,
		},
		"CHECK without a record": {
			nil, "", func(n *node) error { return n.Check(n.Context(), eth0, "") },
			"CHECK c1 eth0: not added, or not completely",
		},
		"one more network": {
			func(n *node) { n.add(eth0) }, "ADD ipvlan", attach,
			`ATTACH c1 eth0: network "green" (hot0): plugin "ipvlan": no`,
		},
		"one network fewer": {
			func(n *node) { n.add(eth0); _ = attach(n) }, "DEL ipvlan", func(n *node) error { return n.Detach(n.Context(), eth0, "hot0") },
			`DETACH c1 eth0: network "green" (hot0): plugin "ipvlan": no`,
		},
		"the interface that Detach keeps": {
			func(n *node) { n.add(eth0) }, "", func(n *node) error { return n.Detach(n.Context(), eth0, "eth0") },
			"DETACH c1 eth0: only DEL removes the attachment's own interface",
		},
		"GC of what is stale": {
			func(n *node) { n.add(eth0) }, "DEL macvlan", func(n *node) error {
				return n.GC(n.Context(), Collection{Network: "multi", Valid: []types.GCAttachment{}})
			},
			`GC c1 eth0: DEL network "red" (net0): plugin "macvlan": no`,
		},
		"GC that a plugin is told": {
			nil, "GC ", func(n *node) error {
				nets := []netconf.Network{nodetest.Network("blue", "bridge", "tuning"), nodetest.Network("multi", "macvlan")}
				return n.GC(n.Context(), Collection{Network: "multi", Valid: []types.GCAttachment{}, Networks: nets})
			},
			`GC network "multi": network "blue": plugin "bridge": no; network "blue": plugin "tuning": no; GC network "multi": plugin "macvlan": no`,
		},
		"STATUS": {
			nil, "STATUS bridge", func(n *node) error {
				return n.Status(n.Context(), []netconf.Network{nodetest.Network("blue", "bridge")})
			},
			`STATUS network "blue": plugin "bridge": no`,
		},
		"a sweep": {
			func(n *node) {
				n.crash("ADD tuning", eth0)
			}, "DEL bridge", func(n *node) (err error) {
				s := &Sweeper{Manager: n.Manager, Tell: func(s Swept) { err = s.Err }}
				_, _ = s.Sweep(n.Context())
				return err
			},
			`SWEEP c1 eth0: network "blue": plugin "bridge": no`,
		},
		"a network that cannot be used": {
			nil, "", func(n *node) error {
				a := attachment(nodetest.Parse(`{"name":"storage","type":"bridge","capabilities":{"mac":true}}`), "c1", "net1")
				a.CapabilityArgs = map[string]raw{"mac": raw("{")}
				_, err := n.Add(n.Context(), eth0, Transaction{Plan: Plan(a)})
				return err
			},
			`ADD c1 eth0: network "storage" (net1): ` + (&netconf.Error{Kind: netconf.ErrDecode, Key: "plugins[0].runtimeConfig.mac", Err: errors.New("line 1, column 1: unexpected end of JSON input")}).Error(),
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t)
			if tt.before != nil {
				tt.before(n)
			}
			if tt.fail != "" {
				n.FailOn(tt.fail, 101)
			}
			if got := fmt.Sprint(status.Error(tt.do(n))); got != tt.want {
				t.Errorf("the runtime reads\n\t%s, want\n\t%s", got, tt.want)
			}
		})
	}
}

// Whatever wraps an error on its way, what the operation says is left out of it,
// and nothing else is.
func TestErrorOmitsWhatItSaysHoweverItsCauseIsWrapped(t *testing.T) {
	t.Parallel()
	k := key(longID, "eth0")
	locked := &scratch.Error{Op: "lock", Key: scratch.Key{ContainerID: longID}, Err: context.DeadlineExceeded}
	another := &scratch.Error{Op: "put", Key: key("c2", "eth0"), Err: scratch.ErrCorrupt}
	busy := &delegate.Error{Event: delegate.Event{Command: "DEL", Plugin: "bridge", Network: "blue", ContainerID: longID, IfName: "eth0"}, Err: types.NewError(101, "busy\n\nas ever\n", "")}
	conf := &delegate.Error{Event: delegate.Event{Command: "DEL", Network: "red", IfName: "net0"}, Err: &netconf.Error{Kind: netconf.ErrInvalid, Network: "red", Key: "mtu"}}
	unnamed := (&netconf.Error{Kind: netconf.ErrInvalid, Key: "mtu"}).Error()
	for want, cause := range map[string]error{
		`network "blue": plugin "bridge": busy; as ever`:                               busy,
		`first: network "blue": plugin "bridge": busy; as ever: then`:                  fmt.Errorf("first: %w: then", busy),
		`network "red" (net0): ` + unnamed + `; x; y`:                                  errors.Join(conf, errors.New("x\ny")),
		`x; undoing it failed as well: network "blue": plugin "bridge": busy; as ever`: fault.NotUndone(errors.New("x"), errors.Join(busy)),
		(&scratch.Error{Op: "lock", Err: context.DeadlineExceeded}).Error():            locked,
		another.Error():                          another,
		"deep: y; " + another.Error() + ", then": fmt.Errorf("deep: %w, then", errors.Join(errors.New("y"), another)),
	} {
		got := fail(opDel, k, cause).Error()
		if want := "DEL 0123456789ab eth0: " + want; got != want {
			t.Errorf("text\n\t%s, want\n\t%s", got, want)
		}
		if strings.Contains(got, longID) || strings.Contains(got, "\n") {
			t.Errorf("long: %q", got)
		}
	}
	for want, err := range map[string]error{
		`GC network "multi": a; b`: fail(opGC, scratch.Key{Network: "multi"}, errors.New("a\nb")),
		"SWEEP: a":                 fail(opSweep, scratch.Key{}, errors.New("a")),
	} {
		if err.Error() != want {
			t.Errorf("text %q, want %q", err, want)
		}
	}
}
