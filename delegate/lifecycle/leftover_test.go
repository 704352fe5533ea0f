package lifecycle

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/scratch"
)

// What a failed Attach has left, and what cannot be removed, is in nobody's way
// but that of its own interface name.
func TestLeftoverOfAttachBlocksNothingElse(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.add(eth0)
	n.failOn("ADD ipvlan hot0", 101)
	n.failOn("DEL ipvlan hot0", 102)
	_, err := n.Attach(t.Context(), eth0, hotplug(eth0))
	wantCode(t, err, 101)
	n.wantRecords("c1/eth0 partial")

	if err := n.Check(t.Context(), eth0); err != nil {
		t.Error(err)
	}
	other := Transaction{Plan: Plan(attachment(network("green", "ipvlan"), "c1", "hot1"))}
	if _, err := n.Attach(t.Context(), eth0, other); err != nil {
		t.Error(err)
	}
	n.wantRecords("c1/eth0 partial")
	if err := n.Check(t.Context(), eth0); err != nil {
		t.Error(err)
	}
	n.wantTrace(append(n.trace()[:len(n.trace())-4],
		"CHECK bridge eth0", "CHECK tuning eth0", "CHECK macvlan net0", "CHECK ipvlan hot1")...)

	_, err = n.Attach(t.Context(), eth0, hotplug(eth0))
	if !errors.Is(err, ErrPlan) {
		t.Errorf("the leftover's own name: %v", err)
	}
	wantSaid(t, err, "hot0", "in use", "DEL network") // and why it is
	wantCode(t, n.Detach(t.Context(), eth0, "hot0"), 102)
	if err := n.Detach(t.Context(), eth0, "hot1"); err != nil {
		t.Error(err)
	}
	n.wantRecords("c1/eth0 partial")

	n.exec.Plugins = plugins() // it is mended
	if _, err := n.Attach(t.Context(), eth0, hotplug(eth0)); err != nil {
		t.Error(err)
	}
	n.wantRecords("c1/eth0 added")
	n.del(eth0)
	n.wantNothing()
}

// named makes the interfaces of the namespace at netns known.
func (n *node) named(netns string, names ...string) {
	n.InterfaceNames = func(path string) ([]string, error) {
		if path == netns {
			return append([]string{"lo"}, names...), nil
		}
		return nil, nil
	}
}

// failedAdd makes an ADD fail whose undo fails too, in the namespace netns.
func (n *node) failedAdd(k scratch.Key, netns string) {
	n.t.Helper()
	n.failOn("ADD tuning", 101)
	n.failOn("DEL bridge", 102)
	tr := pair(k)
	tr.Plan = inNetNS(tr.Plan, netns)
	_, err := n.Add(n.t.Context(), k, tr)
	wantCode(n.t, err, 101)
	n.named(netns)
	n.wantRecords(k.ContainerID + "/" + k.IfName + " leftover")
}

// What never was attached does not hold up the DEL of a container, unless its interface
// is there: the record stays, and sweeps and GC try again.
func TestLeftoverOfAnAddDoesNotHoldUpTheDel(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		there []string
		holds bool
	}{
		"its interface is not there": {nil, false},
		"its interface is there":     {[]string{"eth0"}, true},
		"another one is there":       {[]string{"eth1"}, false},
		"one that was undone":        {[]string{"net0"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n, netns := newNode(t), newNetNS(t)
			n.failedAdd(eth0, netns)
			n.named(netns, tt.there...)
			for range 2 {
				err := n.Del(t.Context(), Removal{Key: eth0, NetNS: netns})
				if tt.holds {
					wantCode(t, err, 102)
				} else if err != nil {
					t.Error(err)
				}
				n.wantRecords("c1/eth0 leftover")
			}
			n.exec.Plugins = plugins()
			newSweeper(n).sweep(Sweep{Removed: 1})
			n.wantNothing()
		})
	}
}

// The same holds for what an Attach has left of a network that never was attached. What
// was attached keeps the DEL waiting.
func TestLeftoverOfAnAttachDoesNotHoldUpTheDel(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		fails string
		code  uint
		state string
	}{
		"the leftover":        {"DEL ipvlan", 0, "leftover"},
		"an attached network": {"DEL macvlan", 102, "deleting"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t)
			n.add(eth0)
			n.failOn("ADD ipvlan", 101)
			n.failOn("DEL ipvlan", 102)
			_, err := n.Attach(t.Context(), eth0, hotplug(eth0))
			wantCode(t, err, 101)
			n.failOn(tt.fails, 102)
			wantCode(t, n.Del(t.Context(), Removal{Key: eth0}), tt.code)
			n.wantRecords("c1/eth0 " + tt.state)
			n.exec.Plugins = plugins()
			n.del(eth0)
			n.wantNothing()
		})
	}
}

// A leftover does not hinder a new ADD of the container: not one under the same key, nor
// one of another network with the same interface. It is removed after the attachment that
// has its interface: a DEL would remove that.
func TestLeftoverDoesNotHinderAnAdd(t *testing.T) {
	t.Parallel()
	for name, k := range map[string]scratch.Key{
		"the same key":    eth0,
		"another network": {Network: "other", ContainerID: "c1", IfName: "eth0"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n, netns := newNode(t), newNetNS(t)
			n.failedAdd(eth0, netns)
			bridge := n.exec.Plugins["bridge"]
			n.exec.Plugins = plugins()
			n.exec.Plugins["bridge"] = bridge // its DEL fails
			n.addIn(k, netns)
			if err := n.Check(t.Context(), k); err != nil {
				t.Error(err)
			}
			n.named(netns, "eth0", "net0")
			before := len(n.trace())
			n.sweepOnce()
			if k != eth0 {
				if err := n.Del(t.Context(), Removal{Key: eth0, NetNS: netns}); err != nil {
					t.Error(err)
				}
			}
			if got := n.trace()[before:]; len(got) > 0 {
				t.Errorf("beside the attachment: %q", got)
			}
			n.exec.Plugins = plugins()
			n.del(k)
			n.sweepOnce()
			n.wantNothing()
			if got := n.trace()[before:]; strings.Count(strings.Join(got, ","), "DEL bridge eth0") != 2 {
				t.Errorf("the leftover was not removed: %q", got)
			}
		})
	}
}

// Nothing of a leftover is lost when the ADD beside it fails, dies or cannot be undone.
func TestLeftoverOutlivesTheAddsBesideIt(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.failedAdd(eth0, "")
	for _, fails := range []string{"ADD bridge", "ADD macvlan"} {
		sick := nodeAt(t, n.Dir)
		sick.failOn(fails, 103)
		sick.failOn("DEL bridge", 104)
		wantCode(t, sick.addArgs("TRY="+fails), 103)
		sick.wantRecords("c1/eth0 leftover")
	}
	dying := nodeAt(t, n.Dir)
	dying.failOn("DEL bridge", 104)
	dying.dieOn("ADD tuning")
	dying.dies(func() error { return dying.addArgs("TRY=dying") })
	again := nodeAt(t, n.Dir)
	again.failOn("ADD bridge", 103)
	again.failOn("DEL bridge", 104)
	wantCode(t, again.addArgs("TRY=again"), 103)
	again.clear(5)
}

// stuckBridge makes bridge fail in ADD and in DEL, so that an ADD leaves it.
func (n *node) stuckBridge() {
	n.failOn("ADD bridge", 101)
	n.failOn("DEL bridge", 102)
}

// clear mends the plugins and removes eth0. Nothing must be left, and the plugin bridge
// must have been called once for each of the ADDs that left it.
func (n *node) clear(adds int) {
	n.t.Helper()
	n.exec.Plugins = plugins()
	before := len(n.trace())
	n.del(eth0)
	n.wantNothing()
	if got := n.trace()[before:]; strings.Count(strings.Join(got, ","), "DEL bridge eth0") != adds {
		n.t.Errorf("DELs %q, want one of bridge for each of %d ADDs", got, adds)
	}
}

// A runtime may repeat an ADD for as long as a mistake is there. Equal leftovers are kept
// and removed once, so that the cost of the ADDs does not grow.
func TestRepeatedAddsLeaveNoMoreThanOne(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.stuckBridge()
	var calls []int
	for range 5 {
		before := len(n.trace())
		wantCode(t, n.addArgs(""), 101)
		calls = append(calls, len(n.trace())-before)
	}
	if calls[4] > calls[1] {
		t.Errorf("calls of the ADDs, one after another: %v", calls)
	}
	n.exec.Plugins = plugins()
	n.del(eth0)
	n.wantNothing()
}

// If the disk is full when a new ADD removes what earlier ones have left, and has room
// again when it records its plan, nothing of the leftovers is lost.
func TestLeftoversAreKeptIfTheyCannotBeNoted(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.stuckBridge()
	for _, args := range []string{"TRY=1", "TRY=2"} {
		wantCode(t, n.addArgs(args), 101)
	}
	record := filepath.Join(n.Dir, "c1@multi@eth0.json")
	full := filepath.Join(n.Dir, ".tmp-c1@multi@eth0.json") // as in files_test.go
	if err := errors.Join(os.Link(record, record+".copy"), os.Mkdir(full, 0o700)); err != nil {
		t.Fatal(err)
	}
	tr := Transaction{Plan: func(context.Context, []string) ([]delegate.Attachment, error) {
		return []delegate.Attachment{attachment(network("green", "ipvlan"), "c1", "eth0")}, errors.Join(os.Remove(record+".copy"), os.Remove(full))
	}}
	if _, err := n.Add(t.Context(), eth0, tr); err != nil {
		t.Fatal(err)
	}
	n.clear(2)
}

// An attachment is not handed to another program while its record is the only one that
// knows of a leftover.
func TestReleaseKeepsLeftovers(t *testing.T) {
	t.Parallel()
	n, netns := newNode(t), newNetNS(t)
	n.failedAdd(eth0, netns)
	bridge := n.exec.Plugins["bridge"]
	n.exec.Plugins = plugins()
	n.exec.Plugins["bridge"] = bridge // its DEL fails
	n.addIn(eth0, netns)
	before := len(n.trace())
	err := n.Release(t.Context(), eth0, func(context.Context, Record) error {
		t.Error("it was handed over")
		return nil
	})
	wantCode(t, err, 11)
	if got := n.trace()[before:]; len(got) > 0 {
		t.Errorf("ran %q", got)
	}
	n.wantRecords("c1/eth0 added")
	n.exec.Plugins = plugins()
	n.del(eth0)
	n.wantNothing()
}

// addArgs adds what most tests attach, with CNI_ARGS.
func (n *node) addArgs(args string) error {
	blue := attachment(network("blue", "bridge", "tuning"), "c1", "eth0")
	red := attachment(network("red", "macvlan"), "c1", "net0")
	blue.Args, red.Args = args, args
	_, err := n.Add(n.t.Context(), eth0, Transaction{Plan: Plan(blue, red)})
	return err
}

// sweepOnce is one pass of a Sweeper that has not tried anything before.
func (n *node) sweepOnce() {
	n.t.Helper()
	if _, err := newSweeper(n).Sweep(n.t.Context()); err != nil {
		n.t.Error(err)
	}
}

// A leftover keeps away from the interface of a damaged record as well.
func TestLeftoverSparesTheInterfaceOfADamagedRecord(t *testing.T) {
	t.Parallel()
	n, netns := newNode(t), newNetNS(t)
	n.failedAdd(eth0, netns)
	n.exec.Plugins = plugins()
	other := scratch.Key{Network: "other", ContainerID: "c1", IfName: "eth0"}
	n.addIn(other, netns)
	n.damage(other)
	before := len(n.trace())
	n.sweepOnce()
	if got := n.trace()[before:]; len(got) > 0 {
		t.Errorf("ran %q", got)
	}
}
