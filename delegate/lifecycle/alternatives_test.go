package lifecycle

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/delegatetest"
	"github.com/metacni/metacni/internal/nodetest"
	"github.com/metacni/metacni/scratch"
	"github.com/metacni/metacni/status"
)

// choose plans one network of each plugin in turn, and tells what Next
// is called with: "next 101".
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
	}
}

// Next is told why, and is not asked if no plan can help. Which plans are
// tried see TestModel.
func TestNoPlanWorks(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		spoil func(n *node, t *Transaction)
		code  uint
		said  []string
		calls []string
	}{
		"none": {func(n *node, _ *Transaction) {
			for i, p := range []string{"bridge", "macvlan", "ipvlan"} {
				n.FailOn("ADD "+p, 101+uint(i))
			}
		}, 103, []string{"next 101", "next 102", "next 103"}, []string{
			"ADD bridge eth0", "DEL bridge eth0", "ADD macvlan eth0", "DEL macvlan eth0", "ADD ipvlan eth0", "DEL ipvlan eth0",
		}},
		"impossible alone": {func(_ *node, t *Transaction) {
			t.Plan = Plan(attachment(nodetest.Network("x", "bridge"), "c2", "eth0"))
			t.Next = nil
		}, 7, nil, nil},
		"the record vanishes at a plugin": {func(n *node, _ *Transaction) {
			n.On("ADD bridge", func(context.Context, delegatetest.Call) error { return os.Remove(n.recordFile(eth0)) })
		}, 5, nil, []string{"ADD bridge eth0", "DEL bridge eth0"}},
		"the record vanishes in Adjust": {func(n *node, t *Transaction) {
			t.Adjust = func(context.Context, []delegate.Attached) error { return os.Remove(n.recordFile(eth0)) }
		}, 5, nil, []string{"ADD bridge eth0", "DEL bridge eth0"}},
		"the record cannot be written": {func(n *node, t *Transaction) {
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
			tt.spoil(n, &tr)
			_, err := n.Add(t.Context(), eth0, tr)
			nodetest.Code(t, err, tt.code)
			nodetest.Equal(t, "hooks", said, tt.said)
			n.Exec.Plugins = plugins() // for the trace
			nodetest.Equal(t, "calls", n.trace(), tt.calls)
			nodetest.Equal(t, "alive", n.Exec.Live(), nil)
			if os.Remove(n.recordFile(eth0)) == nil { // the lock's file was kept for it
				n.del(eth0)
			}
			n.wantNothing()
		})
	}
}

// Between two plans the record is there and nobody else gets at the container: a Del
// waits.
func TestNextRunsUnderTheLock(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.FailOn("ADD", 101)
	var said []string
	tr := choose(eth0, &said, "bridge", "macvlan")
	next, asked, deleted := tr.Next, 0, make(chan error, 1)
	tr.Next = func(ctx context.Context, failed error) ([]delegate.Attachment, error) {
		if asked++; asked == 2 { // the second time it waits longer
			go func() { deleted <- (&Manager{Invoker: n.Invoker, Dir: n.Dir}).Del(t.Context(), Removal{Key: eth0}) }()
		}
		hasty := &Manager{Invoker: n.Invoker, Dir: n.Dir, LockTimeout: time.Millisecond}
		nodetest.Code(t, hasty.Del(t.Context(), Removal{Key: eth0}), 11)
		nodetest.Equal(t, "records", len(n.records()), 1)
		nodetest.Equal(t, "alive", n.Exec.Live(), nil)
		return next(ctx, failed)
	}
	_, err := n.Add(t.Context(), eth0, tr)
	nodetest.Code(t, err, 101)
	nodetest.OK(t, <-deleted)
	nodetest.Equal(t, "hooks", said, []string{"next 101", "next 101"})
	n.wantTrace("ADD bridge eth0", "DEL bridge eth0", "ADD macvlan eth0", "DEL macvlan eth0")
	n.wantNothing()
}
