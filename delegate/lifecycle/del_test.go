package lifecycle

import (
	"context"
	"errors"
	"os"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/delegatetest"
	"github.com/metacni/metacni/netconf"
	"github.com/metacni/metacni/scratch"
)

// A DEL that fails tries everything, keeps the record, and the next one tries
// again.
func TestDelThatFailsIsTriedAgain(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.add(eth0)
	delete(n.exec.Plugins, "bridge") // its binary is gone
	n.failOn("DEL macvlan", 101)
	for range 2 {
		err := n.Del(t.Context(), Removal{Key: eth0})
		wantCode(t, err, 101)
		if !errors.Is(err, delegate.ErrPluginNotFound) {
			t.Errorf("err = %v, want it to name the missing plugin as well", err)
		}
		n.wantRecords("c1/eth0 deleting")
	}
	wantCode(t, n.Check(t.Context(), eth0), 7)
	n.exec.Plugins = plugins()
	n.del(eth0)
	n.wantNothing()
	n.wantTrace("ADD bridge eth0", "ADD tuning eth0", "ADD macvlan net0",
		"DEL macvlan net0", "DEL tuning eth0",
		"DEL macvlan net0", // what has gone is not asked again
		"DEL macvlan net0", "DEL bridge eth0")
}

// The second DEL is a no-op. Without a record nothing was done.
func TestDelTwiceAndWithoutARecordSucceeds(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.del(eth0) // no directory
	if _, err := os.Stat(n.Dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a DEL without a record made the directory: %v", err)
	}
	n.add(eth0)
	n.del(key("c2", "eth0")) // no record
	n.del(key("c1", "eth1"))
	n.wantRecords("c1/eth0 added")
	n.del(eth0)
	calls := n.trace()
	n.del(eth0)
	n.wantTrace(calls...)
	n.wantNothing()
}

// A DEL whose context has ended runs nothing more and keeps the record.
func TestDelEndsWithItsContext(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.add(eth0)
	ctx, cancel := context.WithCancel(t.Context())
	n.on("DEL tuning", func(context.Context, delegatetest.Call) error { cancel(); return nil })
	err := n.Del(ctx, Removal{Key: eth0})
	wantCode(t, err, 11)
	if !errors.Is(err, context.Canceled) {
		t.Errorf("err = %v", err)
	}
	n.wantRecords("c1/eth0 deleting")
	wantCode(t, n.Del(ctx, Removal{Key: eth0}), 11)
	n.del(eth0)
	n.wantNothing()
}

// CHECK asks the plugins of what was recorded, all of them.
func TestCheckAsksEveryRecordedPlugin(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	err := n.Check(t.Context(), eth0)
	wantCode(t, err, 7)
	if !errors.Is(err, ErrNotAdded) {
		t.Errorf("err = %v", err)
	}
	n.wantNothing()
	n.add(eth0)
	if err := n.Check(t.Context(), eth0); err != nil {
		t.Fatal(err)
	}
	n.wantTrace("ADD bridge eth0", "ADD tuning eth0", "ADD macvlan net0",
		"CHECK bridge eth0", "CHECK tuning eth0", "CHECK macvlan net0")
	wantCode(t, n.Check(t.Context(), key("c2", "eth0")), 7)
	n.failOn("CHECK tuning", 104)
	err = n.Check(t.Context(), eth0)
	wantCode(t, err, 104)
	if e := (*delegate.Error)(nil); !errors.As(err, &e) || e.Plugin != "tuning" || e.Network != "blue" {
		t.Errorf("err = %v", err)
	}
	n.wantRecords("c1/eth0 added")
}

// STATUS asks each network, stops at the first that is not ready, and needs no
// directory.
func TestStatusIsThePluginsOwn(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	both := []netconf.Network{network("blue", "bridge"), network("red", "macvlan")}
	if err := n.Status(t.Context(), both); err != nil {
		t.Fatal(err)
	}
	n.failOn("STATUS bridge", 50)
	wantCode(t, n.Status(t.Context(), both), 50)
	n.wantTrace("STATUS bridge", "STATUS macvlan", "STATUS bridge")
	n.wantNothing()
}

// Two attachments of one container to one network do not know each other.
func TestTwoAttachmentsOfOneContainerAreIndependent(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	eth1 := key("c1", "eth1")
	other := scratch.Key{Network: "other", ContainerID: "c1", IfName: "eth2"}
	for _, k := range []scratch.Key{eth0, eth1, other} {
		n.add(k)
	}
	n.wantRecords("c1/eth0 added", "c1/eth1 added", "c1/eth2 added")
	// The names of all records are taken, for the planner and for us.
	var taken []string
	_, err := n.Add(t.Context(), key("c1", "eth9"), Transaction{Plan: func(_ context.Context, names []string) ([]delegate.Attachment, error) {
		taken = names
		return []delegate.Attachment{attachment(network("blue", "bridge"), "c1", "net1")}, nil
	}})
	wantCode(t, err, 7)
	if d := cmp.Diff([]string{"eth0", "net0", "eth1", "net1", "eth2", "net2"}, taken); d != "" {
		t.Errorf("taken (-want +got):\n%s", d)
	}
	n.del(eth1)
	n.wantRecords("c1/eth0 added", "c1/eth2 added")
	if d := cmp.Diff([]string{
		"bridge c1 eth0", "bridge c1 eth2", "macvlan c1 net0", "macvlan c1 net2", "tuning c1 eth0", "tuning c1 eth2",
	}, n.exec.Live()); d != "" {
		t.Errorf("alive (-want +got):\n%s", d)
	}
	n.del(other)
	n.del(eth0)
	n.wantNothing()
}

// What comes and goes leaves nothing.
func TestThousandCyclesLeaveNothing(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	stays := key("stays", "eth0")
	n.add(stays)
	before := n.files()
	var ten sync.WaitGroup
	for i := range 10 {
		ten.Go(func() {
			k := key("c"+string(rune('0'+i)), "eth0")
			for range 100 {
				_, err := n.Add(t.Context(), k, pair(k))
				if err := errors.Join(err, n.Del(t.Context(), Removal{Key: k})); err != nil {
					t.Error(err)
				}
			}
		})
	}
	ten.Wait()
	if d := cmp.Diff(before, n.files()); d != "" {
		t.Errorf("files (-before +after):\n%s", d)
	}
	n.del(stays)
	n.wantNothing()
}
