package lifecycle

import (
	"context"
	"errors"
	"testing"
	"time"
)

// A DEL that is older than the attachment removes nothing, and whether it is older is
// decided while nobody else can attach the container.
func TestStaleDelChangesNothing(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.add(eth0)
	records, err := n.Container(t.Context(), eth0.ContainerID)
	if err != nil || len(records) != 1 {
		t.Fatal(records, err)
	}
	ended, end := context.WithCancel(t.Context())
	end()
	unknown := errors.New("the queue cannot be read")
	before := n.exec.Trace()
	for _, tt := range []struct {
		stale bool
		err   error
	}{{true, nil}, {false, unknown}} {
		n.Stale = func(recorded time.Time) (bool, error) {
			if !recorded.Equal(records[0].Created) {
				t.Errorf("recorded %v, want %v", recorded, records[0].Created)
			}
			if _, err := n.store().Lock(ended, eth0.ContainerID); err == nil {
				t.Error("the container is not locked")
			}
			return tt.stale, tt.err
		}
		if err := n.Del(t.Context(), Removal{Key: eth0}); !errors.Is(err, tt.err) {
			t.Errorf("%v, want %v", err, tt.err)
		}
	}
	if got := n.exec.Trace(); len(got) != len(before) {
		t.Errorf("calls %q", got[len(before):])
	}
	n.wantRecords("c1/eth0 added")
	n.Stale = func(time.Time) (bool, error) { return false, nil }
	if err := n.Del(t.Context(), Removal{Key: eth0}); err != nil {
		t.Fatal(err)
	}
	n.wantRecords()
	if err := n.Del(t.Context(), Removal{Key: eth0}); err != nil {
		t.Errorf("without a record: %v", err)
	}
}
