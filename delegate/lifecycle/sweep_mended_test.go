package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/delegatetest"
	"github.com/metacni/metacni/internal/nodetest"
	"github.com/metacni/metacni/netconf"
)

// What never was attached because of a mistake in its configuration goes once
// that is mended, although the mistake is on record. Another network of the same
// name is no mended one.
func TestSweepWithMendedConfiguration(t *testing.T) {
	t.Parallel()
	ipam := func(typ string) netconf.Network {
		return nodetest.Parse(fmt.Sprintf(`{"cniVersion":"1.1.0","name":"red","plugins":[{"type":"macvlan","ipam":{"type":%q}}]}`, typ))
	}
	now := func(n netconf.Network) func(*sweeping) {
		return func(s *sweeping) {
			s.Current = func(delegate.Attachment) (netconf.Network, error) { return n, nil }
		}
	}
	for _, tt := range []struct {
		name string
		mend func(*sweeping)
		want Sweep
	}{
		{"as it is configured now", now(ipam("host-local")), Sweep{Removed: 1}},
		{"as another container has it", func(s *sweeping) {
			plan := Transaction{Plan: inNetNS(Plan(attachment(ipam("host-local"), "c2", "eth0")), newNetNS(s.n.TB))}
			if _, err := s.n.Add(s.n.Context(), key("c2", "eth0"), plan); err != nil {
				s.n.Fatal(err)
			}
		}, Sweep{Removed: 1}},
		{"not mended", now(ipam("host-lcl")), Sweep{Failed: 1}},
		{"another network", now(nodetest.Network("red", "ipvlan")), Sweep{Failed: 1}},
		{"no network", func(s *sweeping) {
			s.Current = func(delegate.Attachment) (netconf.Network, error) { return netconf.Network{}, netconf.ErrNotFound }
		}, Sweep{Failed: 1}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t)
			n.On("", func(_ context.Context, c delegatetest.Call) error {
				if c.Plugin == "macvlan" && !strings.Contains(string(c.Stdin), "host-local") {
					return errors.New("no such IPAM")
				}
				return nil
			})
			_, err := n.Add(t.Context(), eth0, Transaction{Plan: Plan(
				attachment(nodetest.Network("blue", "bridge"), "c1", "eth0"), attachment(ipam("host-locl"), "c1", "net0"),
			)})
			if err == nil {
				t.Fatal("success")
			}
			n.wantRecords("c1/eth0 leftover")
			s := newSweeper(n)
			s.sweep(Sweep{Failed: 1})
			tt.mend(s)
			s.now = s.now.Add(time.Hour)
			s.sweep(tt.want)
		})
	}
}

// Of what goes with a mended configuration the plugins that are gone already are
// not run again.
func TestSweepWithMendedConfigurationRunsWhatIsLeft(t *testing.T) {
	t.Parallel()
	red := func(mode string) netconf.Network {
		return nodetest.Parse(fmt.Sprintf(`{"cniVersion":"1.1.0","name":"red","plugins":[{"type":"macvlan","mode":%q},{"type":"tuning"}]}`, mode))
	}
	n := newNode(t)
	n.On("", func(_ context.Context, c delegatetest.Call) error {
		if strings.Contains(string(c.Stdin), "wrong") {
			return errors.New("no such mode")
		}
		return nil
	})
	if _, err := n.Add(t.Context(), eth0, Transaction{Plan: Plan(attachment(red("wrong"), "c1", "eth0"))}); err == nil {
		t.Fatal("success")
	}
	s := newSweeper(n)
	s.Current = func(delegate.Attachment) (netconf.Network, error) { return red("right"), nil }
	s.sweep(Sweep{Removed: 1})
	n.wantNothing()
	if slices.Contains(n.trace(), "DEL tuning eth0") {
		t.Errorf("ran what never was attached: %q", n.trace())
	}
}

// What another program has attached is not removed with another configuration
// either, although nobody has kept its result.
func TestSweepKeepsToWhatWasAdopted(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	a := n.foreign(eth0, "")
	a.Gone = true
	for i := range a.Attached {
		a.Attached[i].Result, a.Attached[i].Added = nil, false
	}
	n.adopt(a, true)
	n.On("DEL macvlan", func(_ context.Context, c delegatetest.Call) error {
		if !strings.Contains(string(c.Stdin), "mode") {
			return errors.New("not now")
		}
		return nil
	})
	s := newSweeper(n)
	s.Current = func(delegate.Attachment) (netconf.Network, error) {
		return nodetest.Parse(`{"cniVersion":"1.1.0","name":"red","plugins":[{"type":"macvlan","mode":"l2"}]}`), nil
	}
	s.sweep(Sweep{Failed: 1})
	n.wantRecords("c1/eth0 deleting")
}

// What was attached is never removed with another configuration, even if the plugins are
// the same and would succeed.
func TestSweepKeepsToWhatWasAttached(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.add(eth0)
	n.On("DEL macvlan", func(_ context.Context, c delegatetest.Call) error {
		if !strings.Contains(string(c.Stdin), "mode") {
			return errors.New("not now")
		}
		return nil
	})
	if err := n.Del(t.Context(), Removal{Key: eth0}); err == nil {
		t.Fatal("success")
	}
	s := newSweeper(n)
	s.Current = func(delegate.Attachment) (netconf.Network, error) {
		return nodetest.Parse(`{"cniVersion":"1.1.0","name":"red","plugins":[{"type":"macvlan","mode":"l2"}]}`), nil
	}
	s.sweep(Sweep{Failed: 1})
	n.wantRecords("c1/eth0 deleting")
}
