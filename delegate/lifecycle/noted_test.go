package lifecycle

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/delegatetest"
	"github.com/metacni/metacni/scratch"
)

// printing makes the ADD of a plugin print a result, and do the rest well.
func (n *node) printing(plugin, result string) {
	n.exec.Plugins[plugin] = func(ctx context.Context, c delegatetest.Call) ([]byte, error) {
		if c.Command == "ADD" {
			return []byte(result), nil
		}
		return delegatetest.Result(nil)(ctx, c)
	}
}

// dieOn ends the process, as it were, at the calls that begin so.
func (n *node) dieOn(prefix string) {
	n.on(prefix, func(context.Context, delegatetest.Call) error { runtime.Goexit(); return nil })
}

// prev returns the name of the interface in what a call was given as
// prevResult, which is that of the plugin that printed it.
func prev(tb testing.TB, c delegatetest.Call) string {
	tb.Helper()
	var conf struct {
		PrevResult *struct{ Interfaces []struct{ Name string } }
	}
	if err := json.Unmarshal(c.Stdin, &conf); err != nil {
		tb.Fatal(err)
	}
	if conf.PrevResult == nil {
		return ""
	}
	return conf.PrevResult.Interfaces[0].Name
}

// calls are the calls after the first ones, with the plugin whose result they
// were given: "DEL tuning eth0 <bridge>".
func (n *node) calls(after int) []string {
	n.t.Helper()
	var all []string
	for _, c := range n.exec.Calls()[after:] {
		all = append(all, fmt.Sprintf("%s <%s>", c, prev(n.t, c)))
	}
	return all
}

func (n *node) wantCalls(after int, want ...string) {
	n.t.Helper()
	if d := cmp.Diff(want, n.calls(after)); d != "" {
		n.t.Errorf("calls (-want +got):\n%s", d)
	}
}

// Wherever an ADD is killed, the record says so, and the DEL, GC or ADD of another
// process removes what there may be. Each plugin receives the last result that
// its network had: a firewall finds its rules by the addresses in it.
func TestKilledAddIsCleanedUpWithTheLastResults(t *testing.T) {
	t.Parallel()
	for at, dels := range map[string][]string{
		"ADD bridge":  {"DEL macvlan net0 <>", "DEL tuning eth0 <>", "DEL bridge eth0 <>"},
		"ADD tuning":  {"DEL macvlan net0 <>", "DEL tuning eth0 <bridge>", "DEL bridge eth0 <bridge>"},
		"ADD macvlan": {"DEL macvlan net0 <>", "DEL tuning eth0 <tuning>", "DEL bridge eth0 <tuning>"},
		"adjust":      {"DEL macvlan net0 <macvlan>", "DEL tuning eth0 <tuning>", "DEL bridge eth0 <tuning>"},
		"report":      {"DEL macvlan net0 <macvlan>", "DEL tuning eth0 <tuning>", "DEL bridge eth0 <tuning>"},
	} {
		for _, verb := range []string{"Del", "Add", "GC"} {
			t.Run(at+", "+verb, func(t *testing.T) {
				t.Parallel()
				dead := newNode(t)
				dead.crash(at, eth0)
				n := nodeAt(t, dead.Dir)
				state := "planned"
				if at == "report" { // everything is done and nobody knows
					state = "added"
				}
				n.wantRecords("c1/eth0 " + state)
				switch verb {
				case "Del":
					n.del(eth0)
				case "Add":
					if at == "report" {
						_, err := n.Add(t.Context(), eth0, pair(eth0))
						wantCode(t, err, 7)
						return
					}
					n.add(eth0)
					n.wantRecords("c1/eth0 added")
					n.wantCalls(0, append(slices.Clip(dels), "ADD bridge eth0 <>", "ADD tuning eth0 <bridge>", "ADD macvlan net0 <>")...)
					return
				case "GC":
					if err := n.GC(t.Context(), Collection{Network: "multi", Valid: noneValid}); err != nil {
						t.Fatal(err)
					}
				}
				n.wantCalls(0, dels...)
				n.wantNothing()
			})
		}
	}
}

// So it is with an Attach, whose leftovers the next Attach, Detach and Del
// remove.
func TestKilledAttachLeavesTheLastResults(t *testing.T) {
	t.Parallel()
	hot := Transaction{Plan: Plan(attachment(network("green", "ipvlan", "tuning"), "c1", "hot0"))}
	for then, want := range map[string][]string{
		"Attach": {"DEL tuning hot0 <ipvlan>", "DEL ipvlan hot0 <ipvlan>", "ADD ipvlan hot0 <>", "ADD tuning hot0 <ipvlan>"},
		"Detach": {"DEL tuning hot0 <ipvlan>", "DEL ipvlan hot0 <ipvlan>"},
		"Del": {
			"DEL tuning hot0 <ipvlan>", "DEL ipvlan hot0 <ipvlan>",
			"DEL macvlan net0 <macvlan>", "DEL tuning eth0 <tuning>", "DEL bridge eth0 <tuning>",
		},
	} {
		t.Run(then, func(t *testing.T) {
			t.Parallel()
			dead := newNode(t)
			dead.add(eth0)
			dead.dieOn("ADD tuning hot0")
			dead.dies(func() error { _, err := dead.Attach(t.Context(), eth0, hot); return err })
			n := nodeAt(t, dead.Dir)
			for r, err := range n.Records(t.Context()) {
				if err != nil || r.State != scratch.Partial || !r.Whole(0) || !r.Whole(1) || r.Whole(2) || r.Attached[2].Added {
					t.Errorf("%s: %+v, %v", r.State, r.Attached, err)
				}
			}
			var err error
			switch then {
			case "Attach":
				_, err = n.Attach(t.Context(), eth0, hot)
			case "Detach":
				err = n.Detach(t.Context(), eth0, "hot0")
			case "Del":
				n.del(eth0)
			}
			if err != nil {
				t.Fatal(err)
			}
			n.wantCalls(0, want...)
		})
	}
}

// trio plans two networks, of three plugins and of one.
func trio(k scratch.Key) Transaction {
	return Transaction{Plan: Plan(
		attachment(network("blue", "bridge", "tuning", "ipvlan"), k.ContainerID, k.IfName),
		attachment(network("red", "macvlan"), k.ContainerID, second(k)),
	)}
}

// Whatever removes an attachment, and however it is interrupted, a plugin whose
// DEL has succeeded is not run again, and those that are left are given the
// result.
func TestNextTryLeavesOutWhatIsGone(t *testing.T) {
	t.Parallel()
	report := func(context.Context, []delegate.Attached) error { return errors.New("nobody listens") }
	gc := func(n *node) error {
		return n.GC(n.t.Context(), Collection{Network: "multi", Valid: noneValid})
	}
	for name, tt := range map[string]struct {
		add   bool // before
		first func(*node) error
		state string
	}{
		"Del": {true, func(n *node) error { return n.Del(n.t.Context(), Removal{Key: eth0}) }, "deleting"},
		"GC":  {true, gc, "deleting"},
		"Undo": {false, func(n *node) error {
			tr := trio(eth0)
			tr.Report = report
			_, err := n.Add(n.t.Context(), eth0, tr)
			return err
		}, "leftover"},
		"ADD": {false, func(n *node) error {
			n.failOn("ADD macvlan", 101)
			_, err := n.Add(n.t.Context(), eth0, trio(eth0))
			return err
		}, "leftover"},
		"Again": {true, func(n *node) error { return errors.Join(gc(n), gc(n)) }, "deleting"},
	} {
		for _, how := range []string{"fails", "dies"} {
			t.Run(name+" "+how, func(t *testing.T) {
				t.Parallel()
				n := newNode(t)
				if tt.add {
					if _, err := n.Add(t.Context(), eth0, trio(eth0)); err != nil {
						t.Fatal(err)
					}
				}
				want := []string{"DEL tuning eth0 <ipvlan>"}
				if how == "dies" {
					n.dieOn("DEL tuning")
					n.dies(func() error { return tt.first(n) })
					want = append(want, "DEL bridge eth0 <ipvlan>")
				} else {
					n.failOn("DEL tuning", 101)
					if err := tt.first(n); err == nil {
						t.Fatal("it succeeded")
					}
				}
				n = nodeAt(t, n.Dir)
				n.wantRecords("c1/eth0 " + tt.state)
				n.del(eth0)
				n.wantCalls(0, want...)
				n.wantNothing()
			})
		}
	}
}

// A Detach that is tried again leaves out what is gone, and so does the Del
// that comes instead.
func TestDetachTriedAgainLeavesOutWhatIsGone(t *testing.T) {
	t.Parallel()
	for _, then := range []string{"Detach", "Del", "Attach"} {
		for _, how := range []string{"fails", "dies"} {
			t.Run(how+", "+then, func(t *testing.T) {
				t.Parallel()
				n := newNode(t)
				swap := Transaction{Plan: Plan(
					attachment(network("red", "macvlan"), "c1", "eth0"),
					attachment(network("blue", "bridge", "tuning", "ipvlan"), "c1", "net0"),
				)}
				if _, err := n.Add(t.Context(), eth0, swap); err != nil {
					t.Fatal(err)
				}
				detach := func() error { return n.Detach(t.Context(), eth0, "net0") }
				want := []string{"DEL tuning net0 <ipvlan>"}
				if how == "dies" {
					n.dieOn("DEL tuning")
					n.dies(detach)
					want = append(want, "DEL bridge net0 <ipvlan>")
				} else {
					n.failOn("DEL tuning", 101)
					wantCode(t, detach(), 101)
				}
				n = nodeAt(t, n.Dir)
				n.wantRecords("c1/eth0 partial")
				if r, err := n.store().Get(eth0); err != nil || r.State != scratch.Partial {
					t.Errorf("written as %s, %v", r.State, err)
				}
				switch then {
				case "Detach":
					if err := detach(); err != nil {
						t.Error(err)
					}
					n.wantRecords("c1/eth0 added")
					if err := n.Check(t.Context(), eth0); err != nil {
						t.Error(err)
					}
					want = append(want, "CHECK macvlan eth0 <macvlan>")
				case "Del":
					n.del(eth0)
					n.wantNothing()
					want = append(want, "DEL macvlan eth0 <macvlan>")
				case "Attach":
					n.attach()
					n.wantRecords("c1/eth0 added")
					want = append(want, "ADD ipvlan hot0 <>")
				}
				n.wantCalls(0, want...)
			})
		}
	}
}

// A plugin is gone once its DEL has succeeded, also where it was another
// plugin's network that failed, and where several are removed at once.
func TestParallelDelLeavesOutWhatIsGone(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.Invoker.Parallel = 4
	as := []delegate.Attachment{attachment(network("blue", "bridge", "tuning"), "c1", "eth0")}
	for i := range 5 {
		as = append(as, attachment(network(fmt.Sprint("red", i), "macvlan", "ipvlan"), "c1", fmt.Sprint("net", i)))
	}
	if _, err := n.Add(t.Context(), eth0, Transaction{Plan: Plan(as...)}); err != nil {
		t.Fatal(err)
	}
	n.failOn("DEL macvlan net3", 101)
	n.failOn("DEL bridge", 102)
	wantCode(t, n.Del(t.Context(), Removal{Key: eth0}), 101)
	n = nodeAt(t, n.Dir)
	n.del(eth0)
	n.wantCalls(0, "DEL macvlan net3 <ipvlan>", "DEL bridge eth0 <tuning>")
	n.wantNothing()
}

// A record in which nothing can be noted does not keep the rest from going.
func TestDelGoesOnWithoutNotes(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.add(eth0)
	n.on("DEL macvlan", func(context.Context, delegatetest.Call) error {
		n.damage(eth0) // nothing can be noted in it
		return nil
	})
	n.failOn("DEL bridge", 101)
	wantCode(t, n.Del(t.Context(), Removal{Key: eth0}), 101)
	n.wantTrace("ADD bridge eth0", "ADD tuning eth0", "ADD macvlan net0", "DEL macvlan net0", "DEL tuning eth0", "DEL bridge eth0")
}

// A DEL is on record before its first plugin runs.
func TestDelIsOnRecordBeforeItsFirstPlugin(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.add(eth0)
	n.on("DEL macvlan", func(context.Context, delegatetest.Call) error {
		n.wantRecords("c1/eth0 deleting")
		return nil
	})
	n.failOn("DEL", 101)
	wantCode(t, n.Del(t.Context(), Removal{Key: eth0}), 101)
}

// A Detach from what could not be deleted removes its interface, and the next
// Del leaves that out.
func TestDetachFromWhatIsBeingDeleted(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	tr := Transaction{Plan: Plan(
		attachment(network("blue", "bridge"), "c1", "eth0"), attachment(network("red", "macvlan", "ipvlan"), "c1", "net0"),
	)}
	if _, err := n.Add(t.Context(), eth0, tr); err != nil {
		t.Fatal(err)
	}
	n.failOn("DEL", 101)
	wantCode(t, n.Del(t.Context(), Removal{Key: eth0}), 101)
	sick := nodeAt(t, n.Dir)
	sick.failOn("DEL macvlan", 102)
	wantCode(t, sick.Detach(t.Context(), eth0, "net0"), 102)
	sick.wantTrace("DEL ipvlan net0", "DEL macvlan net0")
	n = nodeAt(t, n.Dir)
	n.wantRecords("c1/eth0 deleting")
	if err := n.Detach(t.Context(), eth0, "net0"); err != nil {
		t.Error(err)
	}
	n.wantRecords("c1/eth0 deleting")
	n.del(eth0)
	n.wantCalls(0, "DEL macvlan net0 <ipvlan>", "DEL bridge eth0 <bridge>")
	n.wantNothing()
}

// What a Detach has removed stays out when a Del that comes after it dies.
func TestDelThatDiesKeepsWhatADetachHasRemoved(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	tr := Transaction{Plan: Plan(
		attachment(network("blue", "bridge", "tuning", "ipvlan"), "c1", "net0"), attachment(network("red", "macvlan"), "c1", "eth0"),
	)}
	if _, err := n.Add(t.Context(), eth0, tr); err != nil {
		t.Fatal(err)
	}
	n.failOn("DEL tuning", 101)
	wantCode(t, n.Detach(t.Context(), eth0, "net0"), 101)
	dead := nodeAt(t, n.Dir)
	dead.dieOn("DEL macvlan")
	dead.dies(func() error { return dead.Del(t.Context(), Removal{Key: eth0}) })
	n = nodeAt(t, n.Dir)
	n.wantRecords("c1/eth0 deleting")
	n.del(eth0)
	n.wantCalls(0, "DEL macvlan eth0 <macvlan>", "DEL tuning net0 <ipvlan>")
	n.wantNothing()
}
