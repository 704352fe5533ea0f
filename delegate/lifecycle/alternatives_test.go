package lifecycle

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/delegatetest"
	"github.com/metacni/metacni/internal/nodetest"
	"github.com/metacni/metacni/scratch"
	"github.com/metacni/metacni/status"
)

// choose plans one network of each plugin in turn, and tells what its hooks
// are called with: "next 101", "undone 102".
func choose(k scratch.Key, said *[]string, plugins ...string) Transaction {
	plan := func(i int) []delegate.Attachment {
		return []delegate.Attachment{attachment(nodetest.Network(plugins[i], plugins[i]), k.ContainerID, k.IfName)}
	}
	chosen := 0
	return Transaction{
		Plan: Plan(plan(0)...),
		Next: func(_ context.Context, failed error) ([]delegate.Attachment, error) {
			*said = append(*said, fmt.Sprint("next ", status.Code(failed)))
			if chosen++; chosen == len(plugins) {
				return nil, nil
			}
			return plan(chosen), nil
		},
		Undone: func(_ context.Context, cause error) error {
			*said = append(*said, fmt.Sprint("undone ", status.Code(cause)))
			return nil
		},
	}
}

// The first plan that can be carried out is, once those before it have been
// undone, and Next is asked no more often than it can help.
func TestFirstPlanThatWorks(t *testing.T) {
	t.Parallel()
	no := types.NewError(103, "no", "")
	once := func(what error) func(context.Context, []delegate.Attached) error {
		done := false
		return func(context.Context, []delegate.Attached) error {
			if done {
				return nil
			}
			done = true
			return what
		}
	}
	for name, tt := range map[string]struct {
		spoil func(n *node, t *Transaction, cancel func())
		code  uint
		said  []string
		calls []string
	}{
		"the first":  {func(*node, *Transaction, func()) {}, 0, nil, []string{"ADD bridge eth0"}},
		"the second": {func(n *node, _ *Transaction, _ func()) { n.FailOn("ADD bridge", 101) }, 0, []string{"next 101"}, []string{"ADD bridge eth0", "DEL bridge eth0", "ADD macvlan eth0"}},
		"the third": {func(n *node, _ *Transaction, _ func()) {
			n.FailOn("ADD bridge", 101)
			delete(n.Exec.Plugins, "macvlan")
		}, 0, []string{"next 101", "next 7"}, []string{"ADD bridge eth0", "DEL bridge eth0", "ADD ipvlan eth0"}},
		"none": {func(n *node, _ *Transaction, _ func()) {
			for i, p := range []string{"bridge", "macvlan", "ipvlan"} {
				n.FailOn("ADD "+p, 101+uint(i))
			}
		}, 103, []string{"next 101", "next 102", "next 103", "undone 103"}, []string{
			"ADD bridge eth0", "DEL bridge eth0", "ADD macvlan eth0", "DEL macvlan eth0", "ADD ipvlan eth0", "DEL ipvlan eth0",
		}},
		"an impossible first": {func(_ *node, t *Transaction, _ func()) {
			t.Plan = Plan(attachment(nodetest.Network("x", "bridge"), "c2", "eth0"))
		}, 0, []string{"next 7"}, []string{"ADD macvlan eth0"}},
		"impossible alone": {func(_ *node, t *Transaction, _ func()) {
			t.Plan = Plan(attachment(nodetest.Network("x", "bridge"), "c2", "eth0"))
			t.Next = nil
		}, 7, nil, nil}, // nothing was recorded, so that nothing was undone
		"an impossible second": {func(n *node, t *Transaction, _ func()) {
			n.FailOn("ADD bridge", 101)
			next := t.Next
			t.Next = func(ctx context.Context, failed error) ([]delegate.Attachment, error) {
				plan, err := next(ctx, failed)
				if len(plan) > 0 {
					plan[0].ContainerID = "c2"
				}
				return plan, err
			}
		}, 7, []string{"next 101", "next 7", "next 7", "undone 7"}, []string{"ADD bridge eth0", "DEL bridge eth0"}},
		"Adjust": {func(_ *node, t *Transaction, _ func()) { t.Adjust = once(no) }, 0, []string{"next 103"}, []string{"ADD bridge eth0", "DEL bridge eth0", "ADD macvlan eth0"}},
		"Adjust that leaves no result": {func(_ *node, t *Transaction, _ func()) {
			first := once(no)
			t.Adjust = func(ctx context.Context, added []delegate.Attached) error {
				if first(ctx, nil) != nil {
					added[0].Result = nil
				}
				return nil
			}
		}, 0, []string{"next 6"}, []string{"ADD bridge eth0", "DEL bridge eth0", "ADD macvlan eth0"}},
		"Report": {func(_ *node, t *Transaction, _ func()) { t.Report = once(no) }, 103, []string{"undone 103"}, []string{"ADD bridge eth0", "DEL bridge eth0"}},
		"Next fails": {func(n *node, t *Transaction, _ func()) {
			n.FailOn("ADD bridge", 101)
			t.Next = func(context.Context, error) ([]delegate.Attachment, error) {
				return nil, types.NewError(104, "no more", "")
			}
		}, 104, []string{"undone 104"}, []string{"ADD bridge eth0", "DEL bridge eth0"}},
		"the context ends in Next": {func(n *node, t *Transaction, cancel func()) {
			n.FailOn("ADD bridge", 101)
			next := t.Next
			t.Next = func(ctx context.Context, failed error) ([]delegate.Attachment, error) {
				cancel()
				return next(ctx, failed)
			}
		}, 11, []string{"next 101", "undone 11"}, []string{"ADD bridge eth0", "DEL bridge eth0"}},
		"the context ends in a plugin": {func(n *node, _ *Transaction, cancel func()) {
			n.On("ADD bridge", func(context.Context, delegatetest.Call) error { cancel(); return no })
		}, 11, []string{"undone 11"}, []string{"ADD bridge eth0", "DEL bridge eth0"}},
		"the record vanishes at a plugin": {func(n *node, _ *Transaction, _ func()) {
			n.On("ADD bridge", func(context.Context, delegatetest.Call) error { return os.Remove(n.recordFile(eth0)) })
		}, 5, []string{"undone 5"}, []string{"ADD bridge eth0", "DEL bridge eth0"}},
		"the record vanishes in Adjust": {func(n *node, t *Transaction, _ func()) {
			t.Adjust = func(context.Context, []delegate.Attached) error { return os.Remove(n.recordFile(eth0)) }
		}, 5, []string{"undone 5"}, []string{"ADD bridge eth0", "DEL bridge eth0"}},
		"the record cannot be written": {func(n *node, t *Transaction, _ func()) {
			plan := t.Plan
			t.Plan = func(ctx context.Context, taken []string) ([]delegate.Attachment, error) {
				n.Cleanup(func() { _ = os.Remove(n.recordFile(eth0)) })
				if err := os.Mkdir(n.recordFile(eth0), 0o700); err != nil {
					return nil, err
				}
				return plan(ctx, taken)
			}
		}, 5, nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t)
			var said []string
			tr := choose(eth0, &said, "bridge", "macvlan", "ipvlan")
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			tt.spoil(n, &tr, cancel)
			added, err := n.Add(ctx, eth0, tr)
			nodetest.Code(t, err, tt.code)
			nodetest.Equal(t, "hooks", said, tt.said)
			n.Exec.Plugins = plugins() // for the trace
			nodetest.Equal(t, "calls", append([]string(nil), n.trace()...), tt.calls)
			if err != nil {
				if live := n.Exec.Live(); len(live) > 0 {
					t.Errorf("alive: %q", live)
				}
				if os.Remove(n.recordFile(eth0)) == nil { // the lock's file was kept for it
					n.del(eth0)
				}
				n.wantNothing()
				return
			}
			n.wantRecords("c1/eth0 added")
			rs, err := n.Container(t.Context(), "c1")
			if err != nil || len(added) != 1 || len(rs[0].Attached) != 1 || rs[0].Attached[0].Network.Name() != added[0].Network.Name() {
				t.Errorf("added %v, recorded %v, %v", added, rs, err)
			}
			n.del(eth0)
			n.wantNothing()
		})
	}
}

// Between two plans, and while Undone runs, the record is there and nobody
// else gets at the container: a Del waits. Undone's context lives and ends.
func TestHooksRunUnderTheLock(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.FailOn("ADD", 101)
	var said []string
	tr := choose(eth0, &said, "bridge", "macvlan")
	hasty := &Manager{Invoker: n.Invoker, Dir: n.Dir, LockTimeout: time.Millisecond}
	locked := func(where string) {
		nodetest.Code(t, hasty.Del(t.Context(), Removal{Key: eth0}), 11)
		if got := n.records(); len(got) != 1 {
			t.Errorf("in %s: records %q", where, got)
		}
	}
	next, undone := tr.Next, tr.Undone
	tr.Next = func(ctx context.Context, failed error) ([]delegate.Attachment, error) {
		locked("Next")
		return next(ctx, failed)
	}
	deleted := make(chan error, 1)
	ctx, cancel := context.WithCancel(t.Context())
	tr.Undone = func(ctx context.Context, cause error) error {
		cancel()
		if _, limited := ctx.Deadline(); ctx.Err() != nil || !limited {
			t.Errorf("context of Undone: limited %v, %v", limited, ctx.Err())
		}
		if live := n.Exec.Live(); len(live) > 0 {
			t.Errorf("alive: %q", live)
		}
		patient := &Manager{Invoker: n.Invoker, Dir: n.Dir}
		go func() { deleted <- patient.Del(t.Context(), Removal{Key: eth0}) }()
		locked("Undone")
		select {
		case err := <-deleted:
			t.Errorf("a Del did not wait: %v", err)
			deleted <- err
		default:
		}
		return undone(ctx, cause)
	}
	_, err := n.Add(ctx, eth0, tr)
	nodetest.Code(t, err, 101)
	if err := <-deleted; err != nil {
		t.Error(err)
	}
	nodetest.Equal(t, "hooks", said, []string{"next 101", "next 101", "undone 101"})
	n.wantTrace("ADD bridge eth0", "DEL bridge eth0", "ADD macvlan eth0", "DEL macvlan eth0")
	n.wantNothing()
}
