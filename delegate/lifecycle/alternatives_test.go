package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/google/go-cmp/cmp"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/delegatetest"
	"github.com/metacni/metacni/scratch"
	"github.com/metacni/metacni/status"
)

// choose plans one network of each plugin in turn, and tells what its hooks
// are called with: "next 101", "undone 102".
func choose(k scratch.Key, said *[]string, plugins ...string) Transaction {
	plan := func(i int) []delegate.Attachment {
		return []delegate.Attachment{attachment(network(plugins[i], plugins[i]), k.ContainerID, k.IfName)}
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
		"the second": {func(n *node, _ *Transaction, _ func()) { n.failOn("ADD bridge", 101) }, 0, []string{"next 101"}, []string{"ADD bridge eth0", "DEL bridge eth0", "ADD macvlan eth0"}},
		"the third": {func(n *node, _ *Transaction, _ func()) {
			n.failOn("ADD bridge", 101)
			delete(n.exec.Plugins, "macvlan")
		}, 0, []string{"next 101", "next 7"}, []string{"ADD bridge eth0", "DEL bridge eth0", "ADD ipvlan eth0"}},
		"none": {func(n *node, _ *Transaction, _ func()) {
			for i, p := range []string{"bridge", "macvlan", "ipvlan"} {
				n.failOn("ADD "+p, 101+uint(i))
			}
		}, 103, []string{"next 101", "next 102", "next 103", "undone 103"}, []string{
			"ADD bridge eth0", "DEL bridge eth0", "ADD macvlan eth0", "DEL macvlan eth0", "ADD ipvlan eth0", "DEL ipvlan eth0",
		}},
		"an impossible first": {func(_ *node, t *Transaction, _ func()) {
			t.Plan = Plan(attachment(network("x", "bridge"), "c2", "eth0"))
		}, 0, []string{"next 7"}, []string{"ADD macvlan eth0"}},
		"impossible alone": {func(_ *node, t *Transaction, _ func()) {
			t.Plan = Plan(attachment(network("x", "bridge"), "c2", "eth0"))
			t.Next = nil
		}, 7, nil, nil}, // nothing was recorded, so that nothing was undone
		"an impossible second": {func(n *node, t *Transaction, _ func()) {
			n.failOn("ADD bridge", 101)
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
			n.failOn("ADD bridge", 101)
			t.Next = func(context.Context, error) ([]delegate.Attachment, error) {
				return nil, types.NewError(104, "no more", "")
			}
		}, 104, []string{"undone 104"}, []string{"ADD bridge eth0", "DEL bridge eth0"}},
		"the context ends in Next": {func(n *node, t *Transaction, cancel func()) {
			n.failOn("ADD bridge", 101)
			next := t.Next
			t.Next = func(ctx context.Context, failed error) ([]delegate.Attachment, error) {
				cancel()
				return next(ctx, failed)
			}
		}, 11, []string{"next 101", "undone 11"}, []string{"ADD bridge eth0", "DEL bridge eth0"}},
		"the context ends in a plugin": {func(n *node, _ *Transaction, cancel func()) {
			n.on("ADD bridge", func(context.Context, delegatetest.Call) error { cancel(); return no })
		}, 11, []string{"undone 11"}, []string{"ADD bridge eth0", "DEL bridge eth0"}},
		"the record vanishes at a plugin": {func(n *node, _ *Transaction, _ func()) {
			n.on("ADD bridge", func(context.Context, delegatetest.Call) error { return os.Remove(n.recordFile(eth0)) })
		}, 5, []string{"undone 5"}, []string{"ADD bridge eth0", "DEL bridge eth0"}},
		"the record vanishes in Adjust": {func(n *node, t *Transaction, _ func()) {
			t.Adjust = func(context.Context, []delegate.Attached) error { return os.Remove(n.recordFile(eth0)) }
		}, 5, []string{"undone 5"}, []string{"ADD bridge eth0", "DEL bridge eth0"}},
		"the record cannot be written": {func(n *node, t *Transaction, _ func()) {
			plan := t.Plan
			t.Plan = func(ctx context.Context, taken []string) ([]delegate.Attachment, error) {
				n.t.Cleanup(func() { _ = os.Remove(n.recordFile(eth0)) })
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
			wantCode(t, err, tt.code)
			if d := cmp.Diff(tt.said, said); d != "" {
				t.Errorf("hooks (-want +got):\n%s", d)
			}
			n.exec.Plugins = plugins() // for the trace
			if d := cmp.Diff(tt.calls, append([]string(nil), n.trace()...)); d != "" {
				t.Errorf("calls (-want +got):\n%s", d)
			}
			if err != nil {
				if live := n.exec.Live(); len(live) > 0 {
					t.Errorf("alive: %q", live)
				}
				_ = os.Remove(n.recordFile(eth0))
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

// While an undo has failed nothing else is tried, and nothing is said to have
// been undone: the record stays, for Del.
func TestNoNextPlanBesideWhatIsLeft(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.failOn("ADD bridge", 101)
	n.failOn("DEL bridge", 102)
	var said []string
	_, err := n.Add(t.Context(), eth0, choose(eth0, &said, "bridge", "macvlan"))
	wantCode(t, err, 101)
	if len(said) > 0 {
		t.Errorf("hooks: %q", said)
	}
	n.wantTrace("ADD bridge eth0", "DEL bridge eth0")
	n.wantRecords("c1/eth0 leftover")
}

// An Attach has alternatives too. The attachment keeps what it had, whichever
// works.
func TestAttachTriesPlans(t *testing.T) {
	t.Parallel()
	for _, works := range []bool{true, false} {
		n := newNode(t)
		n.add(eth0)
		n.failOn("ADD ipvlan hot0", 101)
		if !works {
			n.failOn("ADD macvlan hot0", 102)
		}
		var said []string
		_, err := n.Attach(t.Context(), eth0, choose(scratch.Key{ContainerID: "c1", IfName: "hot0"}, &said, "ipvlan", "macvlan"))
		want, live := []string{"next 101"}, 4
		if !works {
			wantCode(t, err, 102)
			want, live = []string{"next 101", "next 102", "undone 102"}, 3
		} else if err != nil {
			t.Error(err)
		}
		if d := cmp.Diff(want, said); d != "" {
			t.Errorf("hooks (-want +got):\n%s", d)
		}
		if got := n.exec.Live(); len(got) != live {
			t.Errorf("alive: %q", got)
		}
		n.wantRecords("c1/eth0 added")
		if err := n.Check(t.Context(), eth0); err != nil {
			t.Error(err)
		}
		n.del(eth0)
		n.wantNothing()
	}
}

// Between two plans, and while Undone runs, the record is there and nobody
// else gets at the container: a Del waits. Undone's context lives and ends.
func TestHooksRunUnderTheLock(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.failOn("ADD", 101)
	var said []string
	tr := choose(eth0, &said, "bridge", "macvlan")
	hasty := &Manager{Invoker: n.Invoker, Dir: n.Dir, LockTimeout: time.Millisecond}
	locked := func(where string) {
		wantCode(t, hasty.Del(t.Context(), Removal{Key: eth0}), 11)
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
		if live := n.exec.Live(); len(live) > 0 {
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
	wantCode(t, err, 101)
	if err := <-deleted; err != nil {
		t.Error(err)
	}
	if d := cmp.Diff([]string{"next 101", "next 101", "undone 101"}, said); d != "" {
		t.Errorf("hooks (-want +got):\n%s", d)
	}
	n.wantTrace("ADD bridge eth0", "DEL bridge eth0", "ADD macvlan eth0", "DEL macvlan eth0")
	n.wantNothing()
}

// A Del that comes in cancels an ADD in Next and Undone as well, whose cause
// says so.
func TestUndoneIsToldOfADel(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	in := make(chan struct{})
	n.on("ADD bridge", func(ctx context.Context, _ delegatetest.Call) error {
		close(in)
		<-ctx.Done()
		return ctx.Err()
	})
	tr := pair(eth0)
	tr.Undone = func(ctx context.Context, cause error) error {
		if ctx.Err() != nil || !errors.Is(cause, context.Canceled) {
			t.Errorf("cause %v, %v", cause, ctx.Err())
		}
		return nil
	}
	errs := make(chan error)
	go func() { _, err := n.Add(t.Context(), eth0, tr); errs <- err }()
	<-in
	n.del(eth0)
	if err := <-errs; !errors.Is(err, ErrSuperseded) {
		t.Errorf("ADD: %v", err)
	}
	n.wantNothing()
}

// When Undone fails the record stays, with everything in it gone: whoever is
// next runs nothing for it.
func TestFailedUndoneKeepsARecordOfNothing(t *testing.T) {
	t.Parallel()
	for then, do := range map[string]func(*node) error{
		"Del": func(n *node) error { return n.Del(n.t.Context(), Removal{Key: eth0}) },
		"GC": func(n *node) error {
			return n.GC(n.t.Context(), Collection{Network: "multi", Valid: noneValid})
		},
		"Add": func(n *node) error {
			_, err := n.Add(n.t.Context(), eth0, Transaction{Plan: func(context.Context, []string) ([]delegate.Attachment, error) {
				return nil, nil
			}})
			if !errors.Is(err, ErrPlan) {
				return err
			}
			return nil
		},
	} {
		for _, at := range []string{"ADD bridge", "ADD macvlan", "report"} {
			t.Run(at+", "+then, func(t *testing.T) {
				t.Parallel()
				n := newNode(t)
				n.failOn(at, 101)
				tr := pair(eth0)
				if at == "report" {
					tr.Report = func(context.Context, []delegate.Attached) error { return types.NewError(101, "no", "") }
				}
				mirror := errors.New("the mirror is down")
				tr.Undone = func(context.Context, error) error { return mirror }
				_, err := n.Add(t.Context(), eth0, tr)
				wantCode(t, err, 101)
				var undo *delegate.UndoError
				if !errors.As(err, &undo) || undo.Undo != mirror || !errors.Is(err, mirror) {
					t.Errorf("err = %v", err)
				}
				n.wantRecords("c1/eth0 leftover")
				for r := range n.Records(t.Context()) {
					if d := cmp.Diff([][]int{{0, 1}, {0}}, [][]int{r.Attached[0].Gone, r.Attached[1].Gone}); d != "" {
						t.Errorf("gone (-want +got):\n%s", d)
					}
				}
				wantCode(t, n.Check(t.Context(), eth0), 7)
				n = nodeAt(t, n.Dir)
				if err := do(n); err != nil {
					t.Error(err)
				}
				n.wantTrace()
				n.wantNothing()
			})
		}
	}
}

// So it is with an Attach: of the attachment's own nothing changes.
func TestFailedUndoneOfAttachKeepsARecordOfNothing(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.add(eth0)
	n.failOn("ADD ipvlan", 101)
	tr := hotplug(eth0)
	tr.Undone = func(context.Context, error) error { return errors.New("the mirror is down") }
	_, err := n.Attach(t.Context(), eth0, tr)
	wantCode(t, err, 101)
	n.wantRecords("c1/eth0 partial")
	calls := n.trace()
	if err := n.Detach(t.Context(), eth0, "hot0"); err != nil {
		t.Error(err)
	}
	n.wantTrace(calls...)
	n.wantRecords("c1/eth0 added")
	if err := n.Check(t.Context(), eth0); err != nil {
		t.Error(err)
	}
	n.del(eth0)
	n.wantNothing()
}
