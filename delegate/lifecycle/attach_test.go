package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/delegatetest"
	"github.com/metacni/metacni/internal/nodetest"
	"github.com/metacni/metacni/scratch"
)

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
	var taken []string
	added, err := n.Attach(t.Context(), eth0, Transaction{
		Plan: func(_ context.Context, names []string) ([]delegate.Attachment, error) {
			taken = names
			return []delegate.Attachment{attachment(nodetest.Network("green", "ipvlan"), "c1", "hot0")}, nil
		},
		Adjust: func(context.Context, []delegate.Attached) error {
			n.wantRecords("c1/eth0 partial") // it is on disk while it is made
			return nil
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
	nodetest.OK(t, n.Check(t.Context(), eth0))
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
		"in use":                        {"/ns/a", []delegate.Attachment{in("/ns/a", blue("eth0"))}, []string{"lo", "eth0"}, []string{"/ns/a"}, `network "blue": the interface name is in use`},
		"the second":                    {"/ns/b", []delegate.Attachment{in("/ns/b", blue("eth0")), in("/ns/b", red("net0"))}, []string{"lo", "net0"}, []string{"/ns/b"}, `network "red" (net0): the interface name is in use`},
		"loopback":                      {"/ns/c", []delegate.Attachment{in("/ns/c", blue("lo"))}, []string{"lo"}, []string{"/ns/c"}, `network "blue" (lo): the interface name is in use`},
		"another namespace than t's":    {"/ns/c", []delegate.Attachment{in("/ns/a", blue("eth0"))}, []string{"lo"}, []string{"/ns/c", "/ns/a"}, `network "blue": the interface name is in use`},
		"t has none":                    {"", []delegate.Attachment{in("/ns/a", blue("eth0"))}, nil, []string{"/ns/a"}, `network "blue": the interface name is in use`},
		"t has none, and it is free":    {"", []delegate.Attachment{in("/ns/b", blue("eth0"))}, nil, []string{"/ns/b"}, ""},
		"no namespace":                  {"", []delegate.Attachment{blue("eth0")}, nil, nil, ""},
		"several, each looked at once":  {"/ns/c", []delegate.Attachment{in("/ns/b", blue("eth0")), in("/ns/b", red("eth7")), in("/ns/a", red("eth8"))}, []string{"lo"}, []string{"/ns/c", "/ns/b", "/ns/a"}, ""},
		"several, the name in another":  {"/ns/c", []delegate.Attachment{in("/ns/a", blue("net0")), in("/ns/b", red("eth0"))}, []string{"lo"}, []string{"/ns/c", "/ns/a", "/ns/b"}, ""},
		"several, the last is refused":  {"/ns/c", []delegate.Attachment{in("/ns/a", blue("net0")), in("/ns/b", red("eth0")), in("/ns/b", red("net0"))}, []string{"lo"}, []string{"/ns/c", "/ns/a", "/ns/b"}, `network "red" (net0): the interface name is in use`},
		"in use in t's, not in its own": {"/ns/a", []delegate.Attachment{in("/ns/c", blue("eth0"))}, []string{"lo", "eth0"}, []string{"/ns/a", "/ns/c"}, `network "blue": the interface name is in use`},
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

// An interface that was attached and is not in its namespace any more was detached by
// another program: an ADD removes the rest, and attaches anew. Without an interface in
// the result nobody knows, and the attachment counts as attached.
func TestAddAgainAfterTheInterfaceWasRemoved(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		result string
		there  []string
		again  bool
	}{
		"gone":                       {made, []string{"lo"}, true},
		"there":                      {made, []string{"lo", "eth0"}, false},
		"not known":                  {made, nil, false},
		"none was made":              {`{"cniVersion":"1.1.0"}`, []string{"lo"}, false},
		"made without a MAC address": {strings.Replace(made, "mac", "x", 1), []string{"lo"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n, netns := newNode(t), newNetNS(t)
			n.printing("tuning", tt.result)
			n.addIn(eth0, netns)
			n.InterfaceNames = func(string) ([]string, error) { return tt.there, nil }
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

// What has ended of the container's other attachments is removed before an ADD attaches
// anything: another program may have detached it, or its network namespace is gone. Later
// it would be in the way of an ADD with the same interface name, and its DEL could remove
// what plugins keep for the container, such as its published ports.
func TestAddRemovesOtherAttachmentsThatHaveEnded(t *testing.T) {
	t.Parallel()
	other, removed := scratch.Key{Network: "other", ContainerID: "c1", IfName: "eth0"}, []string{"DEL macvlan net0", "DEL tuning eth0", "DEL bridge eth0"}
	for name, tt := range map[string]struct {
		there []string // interfaces when the second ADD comes
		gone  bool     // the namespace of the first
		fails string   // what the DEL of the first does
		add   string   // the interface of the second
		code  uint
		calls []string
		left  []string
	}{
		"the interface is gone": {
			there: []string{"lo"}, add: "eth0",
			calls: append(removed[:3:3], "ADD bridge eth0"), left: []string{"c1/eth0 added"},
		},
		"the interface is gone, another name": {
			there: []string{"lo"}, add: "eth1",
			calls: append(removed[:3:3], "ADD bridge eth1"), left: []string{"c1/eth1 added"},
		},
		"the namespace is gone": {
			there: []string{"lo"}, gone: true, add: "eth1",
			calls: append(removed[:3:3], "ADD bridge eth1"), left: []string{"c1/eth1 added"},
		},
		"it is attached": {
			there: []string{"lo", "eth0"}, add: "eth1",
			calls: []string{"ADD bridge eth1"}, left: []string{"c1/eth1 added", "c1/eth0 added"},
		},
		"it is attached, and has the name": {
			there: []string{"lo", "eth0"}, add: "eth0", code: 7, left: []string{"c1/eth0 added"},
		},
		"its DEL fails": {
			there: []string{"lo"}, fails: "DEL tuning", add: "eth1",
			calls: append(removed[:3:3], "ADD bridge eth1"), left: []string{"c1/eth1 added", "c1/eth0 deleting"},
		},
		"its DEL fails, and it has the name": {
			there: []string{"lo"}, fails: "DEL tuning", add: "eth0", code: 7,
			calls: removed, left: []string{"c1/eth0 deleting"},
		},
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
			if tt.fails != "" {
				n.FailOn(tt.fails, 104)
			}
			ran := len(n.trace())
			k := key("c1", tt.add)
			plan := Plan(attachment(nodetest.Network("blue", "bridge"), "c1", tt.add))
			_, err := n.Add(t.Context(), k, Transaction{NetNS: now, Plan: inNetNS(plan, now)})
			nodetest.Code(t, err, tt.code)
			nodetest.Equal(t, "calls", n.trace()[ran:], tt.calls)
			nodetest.Equal(t, "records", n.records(), tt.left)
		})
	}
}
