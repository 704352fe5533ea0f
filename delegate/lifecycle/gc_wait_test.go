package lifecycle

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/metacni/metacni/delegate/delegatetest"
	"github.com/metacni/metacni/scratch"
)

// A plugin whose GC hangs is ended before the ADDs that wait for it fail. They
// get their turn, and the next network is told of what they recorded.
func TestHangingGCDoesNotFailAnADD(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.add(eth0)
	other := nodeAt(t, n.Dir)
	n.LockTimeout = 4 * time.Second // the ADD's is longer
	k := key("c2", "eth0")
	added := make(chan error, 1)
	var once sync.Once
	n.on("GC bridge", func(ctx context.Context, _ delegatetest.Call) error {
		once.Do(func() {
			go func() {
				_, err := other.Add(t.Context(), k, pair(k))
				added <- err
			}()
		})
		<-ctx.Done()
		return ctx.Err()
	})
	want := []string{"c1 net0"}
	n.on("GC macvlan", func(ctx context.Context, _ delegatetest.Call) error {
		rs, err := n.Container(ctx, k.ContainerID)
		if len(rs) > 0 {
			want = append(want, "c2 net0")
		}
		return err
	})
	ctx, cancel := context.WithTimeout(t.Context(), 2*DefaultLockTimeout)
	defer cancel()
	wantCode(t, n.GC(ctx, Collection{Network: "multi", Valid: validFor(eth0)}), types.ErrTryAgainLater)
	if err := <-added; err != nil {
		t.Errorf("ADD: %v", err)
	}
	wantValid(t, n.last("GC macvlan"), want...)
}

// A noted change that this program does not understand does not keep a stale
// record for ever, as one that others are changing.
func TestGCCollectsARecordWithAnUnknownChange(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.add(eth0)
	r, err := n.store().Get(eth0)
	if err == nil {
		err = n.locked(t.Context(), "c1", func(_ context.Context, l *scratch.Lock) error {
			return n.store().NoteChange(l, r, change{At: len(r.Value.Delegates)})
		})
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := n.GC(t.Context(), Collection{Network: "multi", Valid: noneValid}); err != nil {
		t.Fatal(err)
	}
	n.wantNothing()
}
