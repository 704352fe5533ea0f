package lifecycle

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/google/go-cmp/cmp"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/delegatetest"
	"github.com/metacni/metacni/scratch"
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
		"first plugin":  {func(n *node, _ *Transaction) { n.failOn("ADD bridge", 101) }, 101, all[2:]},
		"second plugin": {func(n *node, _ *Transaction) { n.failOn("ADD tuning", 102) }, 102, all[1:]},
		"third plugin":  {func(n *node, _ *Transaction) { n.failOn("ADD macvlan", 103) }, 103, all},
		"noise": {func(n *node, _ *Transaction) {
			n.exec.Plugins["macvlan"] = delegatetest.NoiseOn("ADD", "hello\n", n.exec.Plugins["macvlan"])
		}, 6, all},
		"not a result": {func(n *node, _ *Transaction) {
			n.exec.Plugins["macvlan"] = func(context.Context, delegatetest.Call) ([]byte, error) {
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
			wantCode(t, err, tt.code)
			if e := (*Error)(nil); !errors.As(err, &e) || e.Op != "ADD" || e.Key != eth0 {
				t.Errorf("err = %#v", err)
			}
			if d := cmp.Diff(tt.undone, n.trace()[len(n.trace())-len(tt.undone):]); d != "" {
				t.Errorf("undone (-want +got):\n%s", d)
			}
			n.wantNothing()
			// It is as if nothing had been: DEL and GC have nothing to do.
			calls := n.trace()
			n.del(eth0)
			n.wantTrace(calls...)
		})
	}
}

// The same when the context ends, at each place, whoever notices.
func TestAddWhoseContextEndsAnywhereIsUndone(t *testing.T) {
	t.Parallel()
	for _, at := range []string{"begin", "plan", "ADD bridge", "ADD tuning", "ADD macvlan", "hang", "adjust", "adjust silently", "adjust failing"} {
		t.Run(at, func(t *testing.T) {
			t.Parallel()
			n := newNode(t)
			ctx, cancel := context.WithCancel(t.Context())
			end := func(here string) {
				if at == here {
					cancel()
				}
			}
			for _, plugin := range []string{"ADD bridge", "ADD tuning", "ADD macvlan"} {
				n.on(plugin, func(context.Context, delegatetest.Call) error { end(plugin); return nil })
			}
			if at == "hang" {
				n.exec.Plugins["tuning"] = delegatetest.HangOn("ADD", n.exec.Plugins["tuning"])
				n.on("ADD tuning", func(context.Context, delegatetest.Call) error { cancel(); return nil })
			}
			plan := pair(eth0).Plan
			end("begin")
			_, err := n.Add(ctx, eth0, Transaction{
				Plan: func(_ context.Context, taken []string) ([]delegate.Attachment, error) {
					end("plan")
					return plan(t.Context(), taken)
				},
				Adjust: func(ctx context.Context, _ []delegate.Attached) error {
					switch at {
					case "adjust":
						cancel()
						return ctx.Err()
					case "adjust failing":
						cancel()
						return errors.New("no such device")
					case "adjust silently":
						cancel()
					}
					return nil
				},
				Report: func(context.Context, []delegate.Attached) error {
					t.Error("reported")
					return nil
				},
			})
			if !errors.Is(err, context.Canceled) {
				t.Errorf("err = %v", err)
			}
			wantCode(t, err, 11)
			n.wantNothing()
		})
	}
}

// Undoing fails: the record stays, with the results, and DEL does it.
func TestRecordStaysWhenTheUndoFails(t *testing.T) {
	t.Parallel()
	for _, at := range []string{"ADD macvlan", "report"} {
		t.Run(at, func(t *testing.T) {
			t.Parallel()
			n := newNode(t)
			tr := pair(eth0)
			if at == "report" {
				tr.Report = func(context.Context, []delegate.Attached) error { return types.NewError(101, "no", "") }
			} else {
				n.failOn(at, 101)
			}
			n.failOn("DEL tuning", 102)
			_, err := n.Add(t.Context(), eth0, tr)
			wantCode(t, err, 101) // the cause's
			var left *delegate.UndoError
			if !errors.As(err, &left) {
				t.Fatalf("err = %v", err)
			}
			wantCode(t, left.Undo, 102)
			n.wantRecords("c1/eth0 leftover")
			if d := cmp.Diff([]string{"tuning c1 eth0"}, n.exec.Live()); d != "" {
				t.Errorf("alive (-want +got):\n%s", d)
			}
			wantCode(t, n.Check(t.Context(), eth0), 7)
			n.exec.Plugins = plugins()
			n.del(eth0)
			if at == "report" && stdin(t, n.last("DEL tuning"))["prevResult"] == nil {
				t.Error("DEL was not given the result, which is known")
			}
			n.wantNothing()
		})
	}
}

// What cannot be recorded any more is undone all the same.
func TestAddWhoseRecordVanishesIsUndone(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.failOn("DEL bridge", 101)
	tr := pair(eth0)
	tr.Adjust = func(context.Context, []delegate.Attached) error { return os.RemoveAll(n.Dir) }
	_, err := n.Add(t.Context(), eth0, tr)
	wantCode(t, err, 5)
	if d := cmp.Diff([]string{"bridge c1 eth0"}, n.exec.Live()); d != "" {
		t.Errorf("alive (-want +got):\n%s", d)
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
	wantCode(t, err, 101)
	if e := (*scratch.Error)(nil); !errors.As(err, &e) || e.Op != "delete" {
		t.Errorf("err = %v", err)
	}
	if left := n.exec.Live(); len(left) > 0 {
		t.Errorf("alive: %q", left)
	}
}

// What is undone is undone with the results as the plugins gave them.
func TestUndoUsesThePluginsOwnResults(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	tr := pair(eth0)
	tr.Adjust = func(_ context.Context, added []delegate.Attached) error {
		added[1].Result = json.RawMessage(`{"cniVersion":"1.1.0","dns":{}}`)
		return nil
	}
	tr.Report = func(context.Context, []delegate.Attached) error { return errors.New("no") }
	if _, err := n.Add(t.Context(), eth0, tr); err == nil {
		t.Fatal("Add succeeded")
	}
	prev, _ := stdin(t, n.last("DEL macvlan"))["prevResult"].(map[string]any)
	if prev["interfaces"] == nil {
		t.Errorf("prevResult %v", prev)
	}
	n.wantNothing()
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
	if err != nil {
		t.Fatal(err)
	}
	if got := string(added[1].Result); got != adjusted || reported != adjusted {
		t.Errorf("added %s, reported %s", got, reported)
	}
	if err := n.Check(t.Context(), eth0); err != nil {
		t.Fatal(err)
	}
	n.del(eth0)
	for _, verb := range []string{"CHECK macvlan", "DEL macvlan"} {
		var conf struct{ PrevResult json.RawMessage }
		if err := json.Unmarshal(n.last(verb).Stdin, &conf); err != nil {
			t.Fatal(err)
		}
		var got, want map[string]json.RawMessage
		if err := errors.Join(json.Unmarshal(conf.PrevResult, &got), json.Unmarshal([]byte(adjusted), &want)); err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("%s: prevResult (-want +got):\n%s", verb, d)
		}
	}
	n.wantNothing()
}

// An ADD whose context ends while it removes what was there before plans
// nothing: it has nothing to be undone.
func TestEndedWhileLeftoversAreRemoved(t *testing.T) {
	t.Parallel()
	dead := newNode(t)
	dead.crash("ADD bridge", eth0)
	n := nodeAt(t, dead.Dir)
	ctx, cancel := context.WithCancel(t.Context())
	n.on("DEL bridge", func(context.Context, delegatetest.Call) error { cancel(); return nil })
	_, err := n.Add(ctx, eth0, Transaction{
		Plan:   func(context.Context, []string) ([]delegate.Attachment, error) { t.Error("planned"); return nil, nil },
		Undone: func(context.Context, error) error { t.Error("undone"); return nil },
	})
	wantCode(t, err, 11)
	n.wantNothing()
}

// A process that dies while it undoes what it has adjusted leaves the plugins'
// own results, for the DEL that comes.
func TestKilledWhileUndoingLeavesPluginsResults(t *testing.T) {
	t.Parallel()
	dead := newNode(t)
	dead.dieOn("DEL macvlan")
	tr := pair(eth0)
	tr.Adjust = func(_ context.Context, added []delegate.Attached) error {
		for i := range added {
			added[i].Result = json.RawMessage(`{"cniVersion":"1.1.0","interfaces":[{"name":"adjusted"}]}`)
		}
		return nil
	}
	tr.Report = func(context.Context, []delegate.Attached) error { return errors.New("nobody listens") }
	dead.dies(func() error { _, err := dead.Add(t.Context(), eth0, tr); return err })
	n := nodeAt(t, dead.Dir)
	n.wantRecords("c1/eth0 leftover")
	n.del(eth0)
	n.wantCalls(0, "DEL macvlan net0 <macvlan>", "DEL tuning eth0 <tuning>", "DEL bridge eth0 <tuning>")
}

// Plugins that have not run are gone, also where no undo has succeeded.
func TestWhatHasNotRunIsNotDeleted(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.failOn("ADD bridge", 101)
	n.failOn("DEL bridge", 102)
	_, err := n.Add(t.Context(), eth0, pair(eth0))
	wantCode(t, err, 101)
	n = nodeAt(t, n.Dir)
	n.del(eth0)
	n.wantTrace("DEL bridge eth0")
	n.wantNothing()
}

// A Report that fails because its context has ended says so.
func TestReportAfterTheContextHasEnded(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	ctx, cancel := context.WithCancel(t.Context())
	tr := pair(eth0)
	tr.Report = func(context.Context, []delegate.Attached) error { cancel(); return errors.New("broken pipe") }
	_, err := n.Add(ctx, eth0, tr)
	wantCode(t, err, 11)
	if !errors.Is(err, context.Canceled) {
		t.Errorf("err = %v", err)
	}
	n.wantNothing()
}
