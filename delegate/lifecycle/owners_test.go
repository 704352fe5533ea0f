package lifecycle

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/metacni/metacni/delegate/delegatetest"
	"github.com/metacni/metacni/scratch"
)

// dead records attachments of containers whose namespace is gone, d0 with the address
// 10.0.0.10 and so on.
func (n *node) dead(count int) (ks []scratch.Key) {
	n.t.Helper()
	for i := range count {
		k := key(fmt.Sprint("d", i), "eth0")
		netns := newNetNS(n.t)
		n.printing("bridge", ipsOf(fmt.Sprintf("10.0.0.1%d/24", i)))
		n.printing("tuning", ipsOf(fmt.Sprintf("10.0.0.1%d/24", i)))
		tr := Transaction{Plan: inNetNS(Plan(attachment(network("blue", "bridge", "tuning"), k.ContainerID, k.IfName)), netns)}
		if _, err := n.Add(n.t.Context(), k, tr); err != nil {
			n.t.Fatal(err)
		}
		unlink(n.t, netns)
		ks = append(ks, k)
	}
	return ks
}

// hasAddress reports whether the DEL of container id has its address.
func (n *node) hasAddress(id string) bool {
	n.t.Helper()
	for _, c := range slices.Backward(n.exec.Calls()) {
		if c.String() == "DEL tuning eth0" && c.ContainerID == id {
			return strings.Contains(string(c.Stdin), "10.0.0.1"+strings.TrimPrefix(id, "d"))
		}
	}
	n.t.Fatalf("no DEL of %s", id)
	return false
}

// While a pass removes many attachments others come and go. Who has an address
// counts when the DEL begins, not when the pass began.
func TestOwnersThatComeAndGoWhileManyAreRemoved(t *testing.T) {
	t.Parallel()
	for name, pass := range map[string]func(n *node){
		"GC": func(n *node) {
			err := n.GC(n.t.Context(), Collection{Network: "multi", Valid: validFor(key("old", "eth0"), key("new", "eth0"))})
			if err != nil {
				n.t.Error(err)
			}
		},
		"Sweep": func(n *node) {
			s := &Sweeper{Manager: n.Manager}
			for _, k := range []string{"d0", "d1", "d2", "d3"} { // one after another
				done, err := s.remove(n.t.Context(), key(k, "eth0"), errand{})
				if !done || err != nil {
					n.t.Error(k, done, err)
				}
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t)
			n.dead(4)
			other := nodeAt(t, n.Dir)
			other.addWith(key("old", "eth0"), "blue", ipsOf("10.0.0.12/24", "10.0.0.13/24"))
			n.on("DEL tuning", func(_ context.Context, c delegatetest.Call) error {
				switch c.ContainerID {
				case "d0":
					other.addWith(key("new", "eth0"), "blue", ipsOf("10.0.0.11/24"))
				case "d1":
					other.del(key("old", "eth0"))
				case "d2":
					other.addWith(key("old", "eth0"), "blue", ipsOf("10.0.0.13/24"))
				}
				return nil
			})
			pass(n)
			got := make(map[string]bool)
			for _, id := range []string{"d0", "d1", "d2", "d3"} {
				got[id] = n.hasAddress(id)
			}
			want := map[string]bool{"d0": true, "d1": false, "d2": true, "d3": false}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("DEL has the address (-want +got):\n%s", diff)
			}
			n.wantRecords("new/eth0 added", "old/eth0 added")
		})
	}
}
