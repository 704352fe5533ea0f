package lifecycle

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/delegatetest"
)

// However much a plugin has to say, its failure is counted, and the beginning of it
// kept.
func TestDelThatFailsAtLengthIsCounted(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.DelTries = 2
	n.add(eth0)
	n.on("DEL tuning", func(context.Context, delegatetest.Call) error {
		return types.NewError(101, strings.Repeat("é", 10<<20), "")
	})
	if err := n.Del(t.Context(), Removal{Key: eth0}); err == nil {
		t.Error("success")
	}
	r, err := n.store().Get(eth0)
	if err != nil || r.Value.Tries != 1 || !strings.Contains(r.Value.Why, "tuning") || len(r.Value.Why) > 1<<12 || strings.Contains(r.Value.Why, "\ufffd") {
		t.Errorf("%d tries, %d bytes: %v", r.Value.Tries, len(r.Value.Why), err)
	}
	n.del(eth0)
}

// A DEL that always fails has an end for the runtime once the network namespace
// is gone, and is not forgotten.
func TestDelThatNeverSucceedsIsGivenUp(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name     string
		tries    int
		missing  bool // instead of failing
		there    bool // the namespace is
		attempts []bool
	}{
		{"never", 0, false, false, []bool{false, false, false, false}},
		{"at once", 1, false, false, []bool{true, true}},
		{"after three", 3, false, false, []bool{false, false, true, true}},
		{"after three without an executable", 3, true, false, []bool{false, false, true, true}},
		{"not while the namespace is there", 1, false, true, []bool{false, false}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t)
			n.DelTries = tt.tries
			netns := newNetNS(t)
			plan := pair(eth0)
			plan.Plan = inNetNS(plan.Plan, netns)
			if _, err := n.Add(t.Context(), eth0, plan); err != nil {
				t.Fatal(err)
			}
			if !tt.there {
				unlink(t, netns)
			}
			tuning := n.exec.Plugins["tuning"]
			if tt.missing {
				delete(n.exec.Plugins, "tuning")
			} else {
				n.failOn("DEL tuning", 123)
			}
			for i, ok := range tt.attempts {
				err := n.Del(t.Context(), Removal{Key: eth0, NetNS: netns})
				if (err == nil) != ok {
					t.Fatalf("DEL %d: %v", i+1, err)
				}
				if !ok && tt.missing && !errors.Is(err, delegate.ErrPluginNotFound) {
					t.Errorf("DEL %d: %v", i+1, err)
				}
			}
			n.wantRecords("c1/eth0 deleting")
			r, err := n.store().Get(eth0)
			if err != nil || r.Value.Tries != len(tt.attempts) || !strings.Contains(r.Value.Why, "tuning") {
				t.Errorf("tried %d times, because of %q: %v", r.Value.Tries, r.Value.Why, err)
			}
			if _, err := n.Add(t.Context(), eth0, pair(eth0)); err == nil {
				t.Error("an ADD beside what is left")
			}
			if err := n.GC(t.Context(), Collection{Network: "multi", Valid: []types.GCAttachment{}}); err == nil {
				t.Error("GC said nothing")
			}
			n.exec.Plugins["tuning"] = tuning // it is mended
			if err := n.GC(t.Context(), Collection{Network: "multi", Valid: []types.GCAttachment{}}); err != nil {
				t.Error(err)
			}
			n.wantNothing()
		})
	}
}

// newNetNS returns the path of a network namespace, as far as one can be told
// from another here.
func newNetNS(tb testing.TB) string {
	tb.Helper()
	path := filepath.Join(tb.TempDir(), "ns")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		tb.Fatal(err)
	}
	return path
}

func unlink(tb testing.TB, path string) {
	tb.Helper()
	if err := os.Remove(path); err != nil {
		tb.Fatal(err)
	}
}

// inNetNS is plan in a network namespace.
func inNetNS(plan func(context.Context, []string) ([]delegate.Attachment, error), netns string) func(context.Context, []string) ([]delegate.Attachment, error) {
	return func(ctx context.Context, taken []string) ([]delegate.Attachment, error) {
		as, err := plan(ctx, taken)
		for i := range as {
			as[i].NetNS = netns
		}
		return as, err
	}
}

// While nothing but missing plugins is left, those that were found are not run
// again, whoever tries.
func TestDelThatIsGivenUpLeavesOutWhatIsGone(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.DelTries = 1
	n.add(eth0)
	tuning := n.exec.Plugins["tuning"]
	delete(n.exec.Plugins, "tuning")
	n.del(eth0)
	calls := len(n.exec.Calls())
	for range 2 {
		if err := n.GC(t.Context(), Collection{Network: "multi", Valid: noneValid}); err == nil {
			t.Error("GC found the plugin")
		}
	}
	n.exec.Plugins["tuning"] = tuning
	n.del(eth0)
	var dels []string
	for _, c := range n.calls(calls) {
		if strings.HasPrefix(c, "DEL") {
			dels = append(dels, c)
		}
	}
	if !slices.Equal(dels, []string{"DEL tuning eth0 <tuning>"}) {
		t.Errorf("%q", dels)
	}
	n.wantNothing()
}
