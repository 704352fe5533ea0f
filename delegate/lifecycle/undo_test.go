package lifecycle

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/google/go-cmp/cmp"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/delegatetest"
	"github.com/metacni/metacni/internal/bounds"
	"github.com/metacni/metacni/internal/nodetest"
	"github.com/metacni/metacni/scratch"
	"github.com/metacni/metacni/status"
)

var noneValid = []types.GCAttachment{}

// Wherever an ADD fails it is undone, the failing plugin included, the record
// goes and the cause's code stays.
func TestAddThatFailsAnywhereIsUndone(t *testing.T) {
	t.Parallel()
	all := []string{"DEL macvlan net0", "DEL tuning eth0", "DEL bridge eth0"}
	later := types.NewError(11, "later", "")
	for name, tt := range map[string]struct {
		prepare func(*node, *Transaction)
		code    uint
		undone  []string
	}{
		"first plugin":  {func(n *node, _ *Transaction) { n.FailOn("ADD bridge", 101) }, 101, all[2:]},
		"second plugin": {func(n *node, _ *Transaction) { n.FailOn("ADD tuning", 102) }, 102, all[1:]},
		"third plugin":  {func(n *node, _ *Transaction) { n.FailOn("ADD macvlan", 103) }, 103, all},
		"noise": {func(n *node, _ *Transaction) {
			n.Exec.Plugins["macvlan"] = delegatetest.NoiseOn("ADD", "hello\n", n.Exec.Plugins["macvlan"])
		}, 6, all},
		"not a result": {func(n *node, _ *Transaction) {
			n.Exec.Plugins["macvlan"] = func(context.Context, delegatetest.Call) ([]byte, error) {
				return []byte(`{"cniVersion":"1.1.0","ips":7}`), nil
			}
		}, 6, all},
		"Adjust": {func(_ *node, t *Transaction) {
			t.Adjust = func(context.Context, []delegate.Attached) error { return later }
		}, 11, all},
		"Adjust breaks a result": {func(_ *node, t *Transaction) {
			t.Adjust = func(_ context.Context, added []delegate.Attached) error {
				added[0].Result = json.RawMessage("{")
				return nil
			}
		}, 6, all},
		"Adjust removes a result": {func(_ *node, t *Transaction) {
			t.Adjust = func(_ context.Context, added []delegate.Attached) error {
				added[1].Result = nil
				return nil
			}
		}, 6, all},
		"Adjust leaves a key twice": {func(_ *node, t *Transaction) {
			t.Adjust = func(_ context.Context, added []delegate.Attached) error {
				added[0].Result = json.RawMessage(`{"cniVersion":"1.1.0","x":1,"x":2}`)
				return nil
			}
		}, 6, all},
		"Adjust makes a result too deep": {func(_ *node, t *Transaction) {
			t.Adjust = func(_ context.Context, added []delegate.Attached) error {
				added[0].Result = raw(withResult(deep(bounds.Depth)))
				return nil
			}
		}, 6, all},
		"Note": {func(n *node, t *Transaction) {
			t.Adjust = func(context.Context, []delegate.Attached) error { return os.Remove(n.recordFile(eth0)) }
		}, 5, all},
		"Report": {func(_ *node, t *Transaction) {
			t.Report = func(context.Context, []delegate.Attached) error { return later }
		}, 11, all},
		"Report without a code": {func(_ *node, t *Transaction) {
			t.Report = func(context.Context, []delegate.Attached) error { return errors.New("broken pipe") }
		}, 999, all},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t)
			tr := pair(eth0)
			tt.prepare(n, &tr)
			added, err := n.Add(t.Context(), eth0, tr)
			if added != nil {
				t.Errorf("Add returned %v", added)
			}
			nodetest.Code(t, err, tt.code)
			if e := (*Error)(nil); !errors.As(err, &e) || e.Op != "ADD" || e.Key != eth0 {
				t.Errorf("err = %#v", err)
			}
			nodetest.Equal(t, "undone", n.trace()[len(n.trace())-len(tt.undone):], tt.undone)
			n.wantNothing()
			// It is as if nothing had been: DEL and GC have nothing to do.
			calls := n.trace()
			n.del(eth0)
			n.wantTrace(calls...)
		})
	}
}

// When the record of an undone ADD cannot be removed, that is said beside the
// cause.
func TestRecordThatCannotBeDeletedStays(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	tr := pair(eth0)
	tr.Report = func(context.Context, []delegate.Attached) error {
		file := n.recordFile(eth0)
		return errors.Join(types.NewError(101, "no", ""), os.Remove(file), os.MkdirAll(filepath.Join(file, "x"), 0o700))
	}
	_, err := n.Add(t.Context(), eth0, tr)
	nodetest.Code(t, err, 101)
	if e := (*scratch.Error)(nil); !errors.As(err, &e) || e.Op != "delete" {
		t.Errorf("err = %v", err)
	}
	if left := n.Exec.Live(); len(left) > 0 {
		t.Errorf("alive: %q", left)
	}
}

// What Adjust makes of the results is what CHECK and DEL hand to the plugins,
// and what Add returns.
func TestAdjustedResultsAreRecorded(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	tr := pair(eth0)
	const adjusted = `{"cniVersion":"1.1.0","routes":[{"dst":"0.0.0.0/0"}],"n":9007199254740993}`
	tr.Adjust = func(_ context.Context, added []delegate.Attached) error {
		added[1].Result = json.RawMessage(adjusted)
		return nil
	}
	var reported string
	tr.Report = func(_ context.Context, added []delegate.Attached) error {
		reported = string(added[1].Result)
		return nil
	}
	added, err := n.Add(t.Context(), eth0, tr)
	nodetest.OK(t, err)
	if got := string(added[1].Result); got != adjusted || reported != adjusted {
		t.Errorf("added %s, reported %s", got, reported)
	}
	nodetest.OK(t, n.Check(t.Context(), eth0))
	n.del(eth0)
	for _, verb := range []string{"CHECK macvlan", "DEL macvlan"} {
		var conf struct{ PrevResult json.RawMessage }
		nodetest.OK(t, json.Unmarshal(n.Last(verb).Stdin, &conf))
		var got, want map[string]json.RawMessage
		nodetest.OK(t, errors.Join(json.Unmarshal(conf.PrevResult, &got), json.Unmarshal([]byte(adjusted), &want)))
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("%s: prevResult (-want +got):\n%s", verb, d)
		}
	}
	n.wantNothing()
}

// What Adjust has changed is undone with the plugins' own results: by the ADD, and by a DEL
// after a process that has died in between.
func TestUndoUsesThePluginsOwnResults(t *testing.T) {
	t.Parallel()
	want := []string{"DEL macvlan net0 <macvlan>", "DEL tuning eth0 <tuning>", "DEL bridge eth0 <tuning>"}
	tr := pair(eth0)
	tr.Adjust = func(_ context.Context, added []delegate.Attached) error {
		for i := range added {
			added[i].Result = json.RawMessage(`{"cniVersion":"1.1.0","interfaces":[{"name":"adjusted"}]}`)
		}
		return nil
	}
	tr.Report = func(context.Context, []delegate.Attached) error { return errors.New("nobody listens") }
	n := newNode(t)
	if _, err := n.Add(t.Context(), eth0, tr); err == nil {
		t.Fatal("Add succeeded")
	}
	n.wantCalls(3, want...)
	n.wantNothing()
	dead := newNode(t)
	dead.dieOn("DEL macvlan")
	dead.dies(func() error { _, err := dead.Add(t.Context(), eth0, tr); return err })
	n = nodeAt(t, dead.Dir)
	n.wantRecords("c1/eth0 leftover")
	n.del(eth0)
	n.wantCalls(0, want...)
}

// A Report that fails because its context has ended says so.
func TestReportAfterTheContextHasEnded(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	ctx, cancel := context.WithCancel(t.Context())
	tr := pair(eth0)
	tr.Report = func(context.Context, []delegate.Attached) error { cancel(); return errors.New("broken pipe") }
	_, err := n.Add(ctx, eth0, tr)
	nodetest.Code(t, err, 11)
	if !errors.Is(err, context.Canceled) {
		t.Errorf("err = %v", err)
	}
	n.wantNothing()
}

// printing makes the ADD of a plugin print a result, and do the rest well.
func (n *node) printing(plugin, result string) {
	n.Exec.Plugins[plugin] = func(ctx context.Context, c delegatetest.Call) ([]byte, error) {
		if c.Command == "ADD" {
			return []byte(result), nil
		}
		return delegatetest.Result(nil)(ctx, c)
	}
}

// dieOn ends the process, as it were, at the calls that begin so.
func (n *node) dieOn(prefix string) {
	n.On(prefix, func(context.Context, delegatetest.Call) error { runtime.Goexit(); return nil })
}

// prev returns the name of the interface in what a call was given as
// prevResult, which is that of the plugin that printed it.
func prev(tb testing.TB, c delegatetest.Call) string {
	tb.Helper()
	var conf struct {
		PrevResult *struct{ Interfaces []struct{ Name string } }
	}
	nodetest.OK(tb, json.Unmarshal(c.Stdin, &conf))
	if conf.PrevResult == nil {
		return ""
	}
	return conf.PrevResult.Interfaces[0].Name
}

// calls are the calls after the first ones, with the plugin whose result they
// were given: "DEL tuning eth0 <bridge>".
func (n *node) calls(after int) []string {
	n.Helper()
	var all []string
	for _, c := range n.Exec.Calls()[after:] {
		all = append(all, fmt.Sprintf("%s <%s>", c, prev(n.TB, c)))
	}
	return all
}

func (n *node) wantCalls(after int, want ...string) {
	n.Helper()
	nodetest.Equal(n.TB, "calls", n.calls(after), want)
}

// A record in which nothing can be noted does not keep the rest from going.
func TestDelGoesOnWithoutNotes(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.add(eth0)
	n.On("DEL macvlan", func(context.Context, delegatetest.Call) error {
		n.damage(eth0) // nothing can be noted in it
		return nil
	})
	n.FailOn("DEL bridge", 101)
	nodetest.Code(t, n.Del(t.Context(), Removal{Key: eth0}), 101)
	n.wantTrace("ADD bridge eth0", "ADD tuning eth0", "ADD macvlan net0", "DEL macvlan net0", "DEL tuning eth0", "DEL bridge eth0")
}

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
// tried see TestGuaranteesHoldInEveryHistory.
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
