package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/delegatetest"
	"github.com/metacni/metacni/internal/nodetest"
	"github.com/metacni/metacni/netconf"
	"github.com/metacni/metacni/scratch"
)

// sweeping is a Sweeper on a node.
type sweeping struct {
	*Sweeper
	n    *node
	told []string
}

func newSweeper(n *node) *sweeping {
	s := &sweeping{n: n, Sweeper: &Sweeper{Manager: n.Manager}}
	s.Tell = func(swept Swept) {
		said := "removed " + swept.Key.ContainerID
		if swept.Err != nil {
			said = fmt.Sprintf("%s in %s", swept.Key.ContainerID, s.tries[swept.Key].wait)
		}
		s.told = append(s.told, said)
	}
	return s
}

func (s *sweeping) sweep(want Sweep) {
	s.n.Helper()
	got, err := s.Sweep(s.n.Context())
	if err != nil || got != want {
		s.n.Errorf("%+v, want %+v: %v", got, want, err)
	}
}

// come lets the time of each next try come.
func (s *sweeping) come() {
	for _, t := range s.tries {
		t.at = time.Time{}
	}
}

func (s *sweeping) wantTold(want ...string) {
	s.n.Helper()
	if d := cmp.Diff(want, s.told); d != "" {
		s.n.Errorf("told (-want +got):\n%s", d)
	}
}

// addIn attaches what pair plans, in a namespace.
func (n *node) addIn(k scratch.Key, netns string) {
	n.Helper()
	plan := pair(k)
	plan.Plan = inNetNS(plan.Plan, netns)
	n.mustAdd(k, plan)
}

// A sweep removes what nobody will ask for any more, and leaves alone what is
// attached.
func TestSweepRemovesWhatIsStaleAlone(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	alive := newNetNS(t)
	n.addIn(key("alive", "eth0"), alive)
	n.addIn(key("unseen", "eth0"), filepath.Join(t.TempDir(), "ns")) // there never was one
	gone := newNetNS(t)
	n.addIn(key("gone", "eth0"), gone)
	unlink(t, gone)
	n.add(key("deleting", "eth0"))
	n.FailOn("DEL bridge eth0", 101)
	nodetest.Code(t, n.Del(t.Context(), Removal{Key: key("deleting", "eth0")}), 101)
	n.Exec.Plugins = plugins()
	n.dieOn("ADD macvlan")
	n.dies(func() error { n.addIn(key("planned", "eth0"), alive); return nil })
	n = nodeAtWith(n)
	n.wantRecords("alive/eth0 added", "deleting/eth0 deleting", "gone/eth0 added", "planned/eth0 planned", "unseen/eth0 added")

	s := newSweeper(n)
	s.sweep(Sweep{Removed: 3})
	n.wantRecords("alive/eth0 added", "unseen/eth0 added")
	slices.Sort(s.told)
	s.wantTold("removed deleting", "removed gone", "removed planned")
	calls := len(n.trace())
	s.sweep(Sweep{})
	if len(n.trace()) > calls {
		t.Errorf("ran %q", n.trace()[calls:])
	}
	s.Ended = Record.NetNSGone
	s.sweep(Sweep{Removed: 1})
	n.del(key("alive", "eth0"))
	n.wantNothing()
}

// nodeAtWith is another process that works with what is alive on n.
func nodeAtWith(n *node) *node {
	m := nodeAt(n.TB, n.Dir)
	n.Exec.Plugins = plugins()
	m.Node, m.Invoker.Exec = n.Node, n.Exec
	return m
}

// A process that dies between a record and its lock leaves the lock. Nobody will
// take it again, but a sweep.
func TestSweepRemovesLocksOfTheDead(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.add(key("alive", "eth0"))
	for _, c := range []string{"dead", "busy"} {
		n.add(key(c, "eth0"))
		nodetest.OK(t, os.Remove(n.recordFile(key(c, "eth0"))))
	}
	l, err := n.store().Lock(t.Context(), "busy")
	nodetest.OK(t, err)
	newSweeper(n).sweep(Sweep{})
	want := []string{"alive@lock", "alive@multi@eth0.json", "busy@lock"}
	if got := n.files(); !slices.Equal(got, want) {
		t.Errorf("files %q, want %q", got, want)
	}
	nodetest.OK(t, l.Unlock())
	newSweeper(n).sweep(Sweep{})
	if got := n.files(); !slices.Equal(got, want[:2]) {
		t.Errorf("files %q, want %q", got, want[:2])
	}
}

// What the end of the sweep has kept from being removed has not failed.
func TestSweepThatIsEnded(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.add(eth0)
	n.FailOn("DEL bridge eth0", 101)
	nodetest.Code(t, n.Del(t.Context(), Removal{Key: eth0}), 101)
	ctx, cancel := context.WithCancel(t.Context())
	n.On("DEL bridge eth0", func(context.Context, delegatetest.Call) error { cancel(); return nil })
	s := newSweeper(n)
	if got, err := s.Sweep(ctx); got != (Sweep{Waiting: 1}) || !errors.Is(err, context.Canceled) {
		t.Errorf("%+v, %v", got, err)
	}
	s.wantTold()
}

// What cannot be removed is left alone for longer each time, and said once.
func TestSweepBacksOff(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.add(eth0)
	n.FailOn("DEL bridge eth0", 101)
	nodetest.Code(t, n.Del(t.Context(), Removal{Key: eth0}), 101)
	s := newSweeper(n)
	s.Wait = time.Minute
	for _, minutes := range []float64{1, 2, 4, 8, 10, 10} {
		s.sweep(Sweep{Failed: 1})
		if got := s.tries[eth0].wait; got.Minutes() != minutes || time.Until(s.tries[eth0].at) > got {
			t.Errorf("waits for %s, want %v minutes", got, minutes)
		}
		s.sweep(Sweep{Waiting: 1})
		s.come()
	}
	s.wantTold("c1 in 1m0s")
	n.Exec.Plugins = plugins()
	n.FailOn("DEL bridge eth0", 102)
	n.Exec.Plugins["bridge"] = delegatetest.FailOn("DEL", 102, "for another reason", n.Exec.Plugins["bridge"])
	s.sweep(Sweep{Failed: 1})
	s.wantTold("c1 in 1m0s", "c1 in 10m0s")
	n.del2(eth0) // by somebody else
	s.sweep(Sweep{})
	n.wantNothing()
}

// del2 is del with plugins that succeed.
func (n *node) del2(k scratch.Key) {
	n.Helper()
	n.Exec.Plugins = plugins()
	n.del(k)
}

// A sweep does not wait for another operation, nor count it as a failure.
func TestSweepLeavesAloneWhatOthersWorkOn(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	in, out := n.Gate("ADD macvlan")
	done := make(chan error)
	go func() {
		_, err := n.Add(t.Context(), eth0, pair(eth0))
		done <- err
	}()
	<-in
	s := newSweeper(n)
	s.sweep(Sweep{Waiting: 1})
	out()
	nodetest.OK(t, <-done)
	s.sweep(Sweep{})
	n.wantRecords("c1/eth0 added")
	s.wantTold()
}

// A record that cannot be read is said once.
func TestSweepSaysWhatIsDamaged(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.add(eth0)
	n.damage(eth0)
	s := newSweeper(n)
	s.sweep(Sweep{Unreadable: 1})
	s.sweep(Sweep{Unreadable: 1})
	if len(s.told) != 1 {
		t.Errorf("told %q", s.told)
	}
}

// A directory that cannot be read is said once, too: nothing would be swept there.
func TestSweepSaysThatTheDirectoryCannotBeRead(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	nodetest.OK(t, os.WriteFile(n.Dir, nil, 0o600))
	s := newSweeper(n)
	var told []error
	s.Tell = func(swept Swept) { told = append(told, swept.Err) }
	s.sweep(Sweep{Unreadable: 1})
	s.sweep(Sweep{Unreadable: 1})
	if len(told) != 1 || !errors.Is(told[0], syscall.ENOTDIR) || strings.Contains(told[0].Error(), `""`) {
		t.Errorf("told %q", told)
	}
	unlink(t, n.Dir)
	s.sweep(Sweep{})
}

// Several attachments are removed at the same time by one pass, which shares nothing that
// it writes.
func TestSweepRemovesSeveralAtOnce(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	var all sync.WaitGroup
	all.Add(sweepers) // none goes on before all are there
	n.On("DEL macvlan", func(context.Context, delegatetest.Call) error {
		all.Done()
		all.Wait()
		return nil
	})
	for i := range sweepers {
		netns := newNetNS(t)
		n.addIn(key(fmt.Sprint("c", i), "eth0"), netns)
		unlink(t, netns)
	}
	newSweeper(n).sweep(Sweep{Removed: sweepers})
	n.wantNothing()
}

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
			s.n.mustAdd(key("c2", "eth0"), plan)
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
			s.come()
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

// What was attached is never removed with another configuration, even if the plugins are
// the same and would succeed; also if another program has attached it, and nobody has kept
// its result.
func TestSweepKeepsToWhatWasAttached(t *testing.T) {
	t.Parallel()
	for _, adopted := range []bool{true, false} {
		n := newNode(t)
		n.On("DEL macvlan", func(_ context.Context, c delegatetest.Call) error {
			if !strings.Contains(string(c.Stdin), "mode") {
				return errors.New("not now")
			}
			return nil
		})
		if adopted {
			a := n.foreign(eth0, "")
			a.Gone = true
			for i := range a.Attached {
				a.Attached[i].Result, a.Attached[i].Added = nil, false
			}
			n.adopt(a, true)
		} else {
			n.add(eth0)
			if err := n.Del(t.Context(), Removal{Key: eth0}); err == nil {
				t.Fatal("success")
			}
		}
		s := newSweeper(n)
		s.Current = func(delegate.Attachment) (netconf.Network, error) {
			return nodetest.Parse(`{"cniVersion":"1.1.0","name":"red","plugins":[{"type":"macvlan","mode":"l2"}]}`), nil
		}
		s.sweep(Sweep{Failed: 1})
		n.wantRecords("c1/eth0 deleting")
	}
}
