package lifecycle

import (
	"context"
	"errors"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/metacni/metacni/delegate/delegatetest"
	"github.com/metacni/metacni/scratch"
)

// After our network was renamed a DEL finds the record by the container and the
// interface, if there is just one of this plugin.
func TestDelFindsTheRecordAfterARename(t *testing.T) {
	t.Parallel()
	named := func(network, ifname string) scratch.Key {
		return scratch.Key{Network: network, ContainerID: "c1", IfName: ifname}
	}
	for name, tt := range map[string]struct {
		typ  string // of the DEL
		add  func(n *node)
		code uint
		left []string
	}{
		"one record":              {"mine", func(n *node) { n.add(eth0) }, 0, nil},
		"another interface":       {"mine", func(n *node) { n.add(key("c1", "eth1")) }, 0, []string{"c1/eth1 added"}},
		"another container":       {"mine", func(n *node) { n.add(key("c2", "eth0")) }, 0, []string{"c2/eth0 added"}},
		"another plugin":          {"theirs", func(n *node) { n.add(eth0) }, 0, []string{"c1/eth0 added"}},
		"a plugin without a type": {"", func(n *node) { n.add(eth0) }, 0, []string{"c1/eth0 added"}},
		"its own record": {"mine", func(n *node) {
			n.add(eth0)
			n.addNamed(named("new", "eth0"))
		}, 0, []string{"c1/eth0 added"}},
		"two records": {"mine", func(n *node) {
			n.add(eth0)
			n.addNamed(named("other", "eth0"))
		}, 7, []string{"c1/eth0 added", "c1/eth0 added"}},
		"a damaged record": {"mine", func(n *node) {
			n.add(eth0)
			n.damage(eth0)
		}, 5, []string{"c1/eth0 damaged"}},
		"a damaged record of another interface": {"mine", func(n *node) {
			n.add(key("c1", "eth1"))
			n.damage(key("c1", "eth1"))
		}, 0, []string{"c1/eth1 damaged"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t)
			n.Type = "mine"
			tt.add(n)
			n.Type = tt.typ
			err := n.Del(t.Context(), Removal{Key: named("new", "eth0")})
			wantCode(t, err, tt.code)
			if tt.code == 7 {
				wantSaid(t, err, `"multi" and "other"`)
			}
			if d := cmp.Diff(tt.left, n.records()); d != "" {
				t.Errorf("records (-want +got):\n%s", d)
			}
		})
	}
}

// If the renamed record cannot be removed because a disk is full, DEL fails: only a DEL
// without a record succeeds then.
func TestDelOfARenamedRecordFailsWithoutRoom(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.Type = "mine"
	n.add(eth0)
	n.on("DEL bridge", func(context.Context, delegatetest.Call) error { return syscall.ENOSPC })
	renamed := scratch.Key{Network: "new", ContainerID: eth0.ContainerID, IfName: eth0.IfName}
	if err := n.Del(t.Context(), Removal{Key: renamed}); !errors.Is(err, syscall.ENOSPC) {
		t.Error(err)
	}
	n.wantRecords("c1/eth0 deleting")
}

// addNamed attaches k with interfaces that no other attachment has.
func (n *node) addNamed(k scratch.Key) {
	n.t.Helper()
	tr := Transaction{Plan: Plan(attachment(network("blue", "bridge"), k.ContainerID, "x-"+k.Network))}
	if _, err := n.Add(n.t.Context(), k, tr); err != nil {
		n.t.Fatal(err)
	}
}
