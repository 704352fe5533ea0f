package lifecycle

import (
	"errors"
	"testing"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/metacni/metacni/delegate"
)

// A plugin that is gone keeps a container from going only as long as the
// Manager's owner wants it to, and is not forgotten. D36.
func TestD36SkipMissing(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name     string
		skip     int
		failDEL  bool // another plugin fails as well
		attempts []bool
	}{
		{"never", 0, false, []bool{false, false, false, false}},
		{"at once", 1, false, []bool{true, true}},
		{"after three", 3, false, []bool{false, false, true, true}},
		{"not beside another failure", 1, true, []bool{false, false}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t)
			n.SkipMissing = tt.skip
			n.add(eth0)
			tuning := n.exec.Plugins["tuning"]
			delete(n.exec.Plugins, "tuning")
			if tt.failDEL {
				n.failOn("DEL bridge", types.ErrTryAgainLater)
			}
			for i, ok := range tt.attempts {
				err := n.Del(t.Context(), Removal{Key: eth0})
				if (err == nil) != ok {
					t.Fatalf("DEL %d: %v", i+1, err)
				}
				if !ok && !errors.Is(err, delegate.ErrPluginNotFound) {
					t.Errorf("DEL %d: %v", i+1, err)
				}
			}
			n.wantRecords("c1/eth0 deleting")
			_, err := n.Add(t.Context(), eth0, pair(eth0))
			wantCode(t, err, 7)
			if !tt.failDEL {
				wantCode(t, n.GC(t.Context(), Collection{Network: "multi", Valid: []types.GCAttachment{}}), 7)
				n.exec.Plugins["tuning"] = tuning // it is back
				if err := n.GC(t.Context(), Collection{Network: "multi", Valid: []types.GCAttachment{}}); err != nil {
					t.Error(err)
				}
				n.wantNothing()
			}
		})
	}
}
