package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/delegatetest"
)

// in returns a with a network namespace.
func in(netns string, a delegate.Attachment) delegate.Attachment {
	a.NetNS = netns
	return a
}

// Names that exist in the network namespace are refused before anything runs:
// a plugin that fails because of one might remove that interface in its DEL.
func TestNamesInTheNamespaceAreRefused(t *testing.T) {
	t.Parallel()
	blue := func(ifname string) delegate.Attachment { return attachment(network("blue", "bridge"), "c1", ifname) }
	red := func(ifname string) delegate.Attachment { return attachment(network("red", "macvlan"), "c1", ifname) }
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
			if d := cmp.Diff(tt.taken, taken); d != "" {
				t.Errorf("taken (-want +got):\n%s", d)
			}
			if d := cmp.Diff(tt.asked, asked); d != "" {
				t.Errorf("asked (-want +got):\n%s", d)
			}
			if tt.refuse == "" {
				if err != nil {
					t.Fatal(err)
				}
				n.del(eth0)
				n.wantNothing()
				return
			}
			wantCode(t, err, 7)
			if !errors.Is(err, ErrPlan) || !strings.Contains(err.Error(), tt.refuse) {
				t.Errorf("err = %v, want it to say %s", err, tt.refuse)
			}
			n.wantTrace()
			n.wantNothing()
		})
	}
}

// Attach refuses them as well, and keeps what it has.
func TestAttachRefusesNamesInTheNamespace(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.add(eth0)
	n.InterfaceNames = func(string) ([]string, error) { return []string{"hot0"}, nil }
	calls := n.trace()
	hot := in("/ns/a", attachment(network("green", "ipvlan"), "c1", "hot0"))
	_, err := n.Attach(t.Context(), eth0, Transaction{NetNS: "/ns/a", Plan: Plan(hot)})
	if !errors.Is(err, ErrPlan) {
		t.Errorf("err = %v", err)
	}
	n.wantTrace(calls...)
	n.wantRecords("c1/eth0 added")
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
			NetNS: "/ns/a", Plan: Plan(in("/ns/b", attachment(network("blue", "bridge"), "c1", "eth0"))),
		})
		if !errors.Is(err, deaf) {
			t.Errorf("%s: %v", which, err)
		}
		n.wantTrace()
		n.wantNothing()
	}
}

// With a function that returns nothing it is the plugins that find a name in
// use: the ADD is undone.
func TestNamesAreThePluginsToFind(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.InterfaceNames = func(string) ([]string, error) { return nil, nil }
	_, err := n.Add(t.Context(), eth0, Transaction{
		NetNS: "/proc/self/ns/net", Plan: Plan(in("/proc/self/ns/net", attachment(network("blue", "bridge"), "c1", "lo"))),
	})
	if err != nil {
		t.Error(err)
	}
	n.wantTrace("ADD bridge lo")
}

// The names in records are refused in every namespace, those of a second plan
// too, and those of an interface that has been undone are free again.
func TestNamesInRecordsAreRefused(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.add(eth0)
	k := key("c1", "eth1")
	blue := func(ifname string) []delegate.Attachment {
		return []delegate.Attachment{in("/ns/b", attachment(network("blue", "bridge"), "c1", ifname))}
	}
	n.InterfaceNames = func(string) ([]string, error) { return nil, nil }
	n.on("ADD bridge eth1", func(context.Context, delegatetest.Call) error { return errors.New("no") })
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
	if d := cmp.Diff([]string{"ADD bridge eth1", "DEL bridge eth1", "ADD bridge eth2"}, n.trace()[calls:]); d != "" {
		t.Errorf("calls (-want +got):\n%s", d)
	}
}
