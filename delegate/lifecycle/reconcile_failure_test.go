package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/google/go-cmp/cmp"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/delegatetest"
	"github.com/metacni/metacni/internal/nodetest"
	"github.com/metacni/metacni/netconf"
)

// A failure is reported, with the attachment, and the others go on.
func TestReconcileGoesOnAfterAFailure(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.own()
	n.reconcile(keep("ipvlan@hot0", "macvlan@hot1"))
	n.FailOn("DEL ipvlan", 101)
	n.Exec.Plugins["vlan"] = n.Exec.Plugins["bridge"]
	n.FailOn("ADD vlan", 103)
	done, err := n.Reconcile(t.Context(), eth0, keep("vlan", "tuning@hot2", "vlan", "tuning@hot0"))
	nodetest.Equal(t, "done", reconciled(done), []string{
		"DETACH macvlan hot1", "DETACH ipvlan hot0 failed",
		"ATTACH vlan net1 failed", "ATTACH tuning hot2", "ATTACH vlan net1 failed", "ATTACH tuning hot0 failed",
	})
	for i, code := range []uint{0, 101, 103, 0, 103, 7} {
		nodetest.Code(t, done[i].Err, code)
		if done[i].Err != nil && !errors.Is(err, done[i].Err) {
			t.Errorf("not in %v: %v", err, done[i].Err)
		}
		if attached := done[i].Attached.Result != nil; attached != (i < 2 || i == 3) {
			t.Errorf("%d has a result: %v", i, attached)
		}
	}
	nodetest.Says(t, done[1].Err, "DETACH c1 eth0: ", `network "ipvlan"`, "hot0")
	nodetest.Says(t, done[5].Err, "ATTACH c1 eth0: ", `network "tuning"`, "hot0", "in use")
	n.wantAttachments("ipvlan hot0 half", "tuning hot2")
	n.wantRecords("c1/eth0 partial")
	n.Exec.Plugins = plugins()
	n.Exec.Plugins["vlan"] = n.Exec.Plugins["bridge"]
	nodetest.Equal(t, "then", n.reconcile(keep("vlan", "tuning@hot2", "vlan", "tuning@hot0")), []string{
		"DETACH ipvlan hot0", "ATTACH vlan net1", "ATTACH vlan net2", "ATTACH tuning hot0",
	})
	n.wantRecords("c1/eth0 added")
}

// What is wanted is read again before each change, under the lock.
func TestReconcileReadsWhatIsWantedBeforeEachChange(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.own()
	var seen []string
	lists := [][]string{{"ipvlan", "macvlan"}, {"ipvlan", "tuning"}, {"tuning"}}
	r := keep()
	r.Wanted = func(_ context.Context, r Record) ([]Wanted, error) {
		seen = append(seen, fmt.Sprint(len(r.Attached)))
		list := lists[0]
		lists = lists[min(1, len(lists)-1):]
		return wanted(list...), nil
	}
	nodetest.Equal(t, "done", n.reconcile(r), []string{"ATTACH ipvlan net1", "ATTACH tuning net2", "DETACH ipvlan net1"})
	nodetest.Equal(t, "attachments when asked", seen, []string{"2", "3", "4", "3"})
	n.wantAttachments("tuning net2")
}

// The same interface can change hands more than once in a pass.
func TestReconcileFollowsEditsOfOneInterface(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.own()
	n.reconcile(keep("macvlan@hot0"))
	lists := []string{"ipvlan@hot0", "ipvlan@hot0", "tuning@hot0"}
	r := keep()
	r.Wanted = func(context.Context, Record) ([]Wanted, error) {
		list := lists[0]
		lists = lists[min(1, len(lists)-1):]
		return wanted(list), nil
	}
	nodetest.Equal(t, "done", n.reconcile(r), []string{"DETACH macvlan hot0", "ATTACH ipvlan hot0", "DETACH ipvlan hot0", "ATTACH tuning hot0"})
	n.wantAttachments("tuning hot0")
}

// When it cannot be said what is wanted, nothing changes any more.
func TestReconcileChangesNothingWithoutKnowingWhatIsWanted(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.own()
	n.reconcile(keep("ipvlan"))
	calls := n.trace()
	r, why := keep(), types.NewError(6, "no annotation that can be read", "")
	r.Wanted = func(context.Context, Record) ([]Wanted, error) { return nil, why }
	done, err := n.Reconcile(t.Context(), eth0, r)
	if len(done) > 0 || !errors.Is(err, why) {
		t.Errorf("%v, %v", reconciled(done), err)
	}
	nodetest.Code(t, err, 6)
	n.wantTrace(calls...)
	asked := 0
	r.Wanted = func(context.Context, Record) ([]Wanted, error) {
		if asked++; asked > 1 {
			return nil, why
		}
		return wanted("macvlan", "tuning"), nil
	}
	done, err = n.Reconcile(t.Context(), eth0, r)
	if d := cmp.Diff([]string{"DETACH ipvlan net1"}, reconciled(done)); d != "" || !errors.Is(err, why) {
		t.Errorf("%v\n%s", err, d)
	}
	n.wantAttachments()
}

// A DEL of the same attachment does not wait for the rest.
func TestDelCancelsReconcile(t *testing.T) {
	t.Parallel()
	for _, at := range []string{"ADD ipvlan", "DEL macvlan"} {
		t.Run(at, func(t *testing.T) {
			t.Parallel()
			n := newNode(t)
			n.own()
			n.reconcile(keep("macvlan"))
			removed := make(chan error, 1)
			first := true
			n.On(at, func(ctx context.Context, _ delegatetest.Call) error {
				if !first {
					return nil
				}
				first = false
				go func() { removed <- n.Del(n.Context(), Removal{Key: eth0}) }()
				<-ctx.Done()
				return errors.New("signal: killed")
			})
			done, err := n.Reconcile(t.Context(), eth0, keep("ipvlan", "tuning"))
			if !errors.Is(err, ErrSuperseded) || !errors.Is(done[len(done)-1].Err, ErrSuperseded) {
				t.Errorf("%v, %v", reconciled(done), err)
			}
			nodetest.Code(t, err, 11)
			if strings.Count(err.Error(), ErrSuperseded.Error()) > 1 {
				t.Errorf("says it twice: %v", err)
			}
			if err := <-removed; err != nil {
				t.Error(err)
			}
			if got := n.trace(); slices.Contains(got, "ADD tuning net2") || slices.Contains(got, "ADD tuning net1") {
				t.Errorf("went on: %q", got)
			}
			n.wantNothing()
		})
	}
}

// A plan that would not be recognized in the record would be carried out in each
// pass. It is refused before a plugin runs.
func TestReconcileRefusesAPlanOfSomethingElse(t *testing.T) {
	t.Parallel()
	for name, spoil := range map[string]func(*delegate.Attachment){
		"no origin":         func(a *delegate.Attachment) { a.Origin = nil },
		"another network":   func(a *delegate.Attachment) { a.Origin = raw(`{"Network":"red","IfName":"hot0"}`) },
		"other options":     func(a *delegate.Attachment) { a.Origin = raw(`{"Network":"ipvlan","IfName":"hot0","Options":"x"}`) },
		"another interface": func(a *delegate.Attachment) { a.IfName = "hot1" },
		"its own interface": func(a *delegate.Attachment) { a.IfName = "eth0" },
		"another container": func(a *delegate.Attachment) { a.ContainerID = "c2" },
		"no network":        func(a *delegate.Attachment) { a.Network = netconf.Network{} },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t)
			n.own()
			r := keep()
			r.Wanted = func(context.Context, Record) ([]Wanted, error) {
				ws := wanted("ipvlan@hot0")
				plan := ws[0].Plan
				ws[0].Plan = func(ctx context.Context, taken []string) (delegate.Attachment, error) {
					a, err := plan(ctx, taken)
					spoil(&a)
					return a, err
				}
				return ws, nil
			}
			done, err := n.Reconcile(t.Context(), eth0, r)
			if len(done) != 1 || done[0].Err == nil || !errors.Is(err, done[0].Err) {
				t.Errorf("%v, %v", reconciled(done), err)
			}
			if e := (*Error)(nil); !errors.As(err, &e) || e.Op != OpAttach {
				t.Errorf("err = %v", err)
			}
			n.wantTrace("ADD bridge eth0", "ADD tuning dflt0")
			n.wantAttachments()
		})
	}
}

// A network that was attached while it was wanted stays without its definition.
func TestReconcileReportsWhatCannotBePlanned(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.own()
	n.reconcile(keep("ipvlan"))
	gone := types.NewError(7, "no such definition", "")
	r := keep()
	r.Wanted = func(context.Context, Record) ([]Wanted, error) {
		ws := wanted("ipvlan", "macvlan", "tuning")
		for i := range 2 {
			ws[i].Plan = func(context.Context, []string) (delegate.Attachment, error) { return delegate.Attachment{}, gone }
		}
		return ws, nil
	}
	done, err := n.Reconcile(t.Context(), eth0, r)
	if d := cmp.Diff([]string{"ATTACH macvlan failed", "ATTACH tuning net2"}, reconciled(done)); d != "" || !errors.Is(err, gone) {
		t.Errorf("%v\n%s", err, d)
	}
	n.wantAttachments("ipvlan net1", "tuning net2")
}

// A network that cannot be attached with its new options is not detached either.
func TestReconcileReplacesNothingByWhatCannotBePlanned(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.own()
	n.reconcile(keep("ipvlan@hot0?a"))
	no := types.NewError(7, "no such address", "")
	r := keep()
	r.Replace = true
	r.Wanted = func(context.Context, Record) ([]Wanted, error) {
		ws := wanted("ipvlan@hot0?b", "macvlan")
		ws[0].Plan = func(context.Context, []string) (delegate.Attachment, error) { return delegate.Attachment{}, no }
		return ws, nil
	}
	done, err := n.Reconcile(t.Context(), eth0, r)
	if d := cmp.Diff([]string{"ATTACH ipvlan failed", "ATTACH macvlan net1"}, reconciled(done)); d != "" || !errors.Is(err, no) {
		t.Errorf("%v\n%s", err, d)
	}
	n.wantAttachments("ipvlan hot0", "macvlan net1")
}

// Each attachment that Reconcile makes has its files, and loses them with it. One that
// cannot be prepared is not made, and no plugin runs.
func TestReconcilePreparesWhatItAttaches(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.own()
	dir := t.TempDir()
	r := Reconciliation{Recorded: recorded, Prepare: withFiles(Transaction{}, dir).Prepare}
	all := wanted("ipvlan", "macvlan@x")
	for i := range all {
		plan := all[i].Plan
		all[i].Plan = func(ctx context.Context, taken []string) (delegate.Attachment, error) {
			a, err := plan(ctx, taken)
			a.Files = []string{filepath.Join(dir, a.IfName)}
			return a, err
		}
	}
	r.Wanted = func(context.Context, Record) ([]Wanted, error) { return all, nil }
	n.reconcile(r)
	if got, _ := filepath.Glob(filepath.Join(dir, "*")); len(got) != 2 {
		t.Errorf("files %q", got)
	}
	all = nil
	n.reconcile(r)
	if got, _ := filepath.Glob(filepath.Join(dir, "*")); len(got) != 0 {
		t.Errorf("files %q", got)
	}
	all, r.Prepare = wanted("ipvlan"), func(context.Context, []delegate.Attachment) error { return errors.New("no space") }
	before := len(n.trace())
	if _, err := n.Reconcile(t.Context(), eth0, r); err == nil || !strings.Contains(err.Error(), "no space") {
		t.Errorf("err = %v", err)
	}
	if got := n.trace()[before:]; len(got) > 0 {
		t.Errorf("calls %q", got)
	}
	n.wantAttachments()
}

// A plugin that hangs is stopped when the time of its change is over, and the other
// networks have their turn. Without a Timeout it hangs until the context ends.
func TestReconcileStopsAPluginThatHangs(t *testing.T) {
	t.Parallel()
	for _, command := range []string{"ADD", "DEL"} {
		for _, limit := range []time.Duration{time.Minute, 0} {
			dir := newNode(t).Dir
			synctest.Test(t, func(t *testing.T) {
				n := nodeAt(t, dir)
				n.own()
				n.reconcile(keep("macvlan@hot0", "ipvlan@hot1"))
				then := []string{"tuning@hot2", "ipvlan@hot3", "bridge@hot4"}
				n.Exec.Plugins["ipvlan"] = delegatetest.HangOn(command, n.Exec.Plugins["ipvlan"])
				ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
				defer cancel()
				r := keep(then...)
				r.Timeout = limit
				start := time.Now()
				done, err := n.Reconcile(ctx, eth0, r)
				nodetest.Code(t, err, 11)
				want, took := []string{"DETACH ipvlan hot1", "DETACH macvlan hot0", "ATTACH tuning hot2", "ATTACH ipvlan hot3", "ATTACH bridge hot4"}, limit
				if limit == 0 {
					took = time.Hour
					want = want[:map[string]int{"ADD": 4, "DEL": 1}[command]]
				}
				want[map[string]int{"ADD": 3, "DEL": 0}[command]] += " failed"
				if d := cmp.Diff(want, reconciled(done)); d != "" {
					t.Errorf("%s, Timeout %s: done (-want +got):\n%s", command, limit, d)
				}
				if got := time.Since(start); got != took {
					t.Errorf("%s, Timeout %s: it took %s", command, limit, got)
				}
				n.Exec.Plugins = plugins()
				n.reconcile(keep(then...))
				n.del(eth0)
				n.wantNothing()
			})
		}
	}
}
