package lifecycle

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/delegatetest"
	"github.com/metacni/metacni/netconf"
	"github.com/metacni/metacni/scratch"
)

// The first plugin finds everything on disk, readable by another process.
func TestRecordedBeforeTheFirstPlugin(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	as := []delegate.Attachment{
		{
			Network:     mustParse(`{"cniVersion":"1.1.0","name":"blue","keep":1.50,"plugins":[{"type":"bridge","n":9007199254740993,"s":"a<b>&c","capabilities":{"mac":true}}]}`),
			ContainerID: "c1", NetNS: "/run/netns/none", IfName: "eth0", Args: "IgnoreUnknown=1;A=<&>",
			CapabilityArgs: map[string]raw{"mac": raw(`"02:00:00:00:00:09"`), "big": raw(`{"n":1e400}`)},
		},
		attachment(network("red", "macvlan"), "c1", "net0"),
	}
	seen := false
	n.on("ADD bridge", func(context.Context, delegatetest.Call) error {
		seen = true
		for r, err := range nodeAt(t, n.Dir).Records(t.Context()) {
			if err != nil {
				return err
			}
			if r.State != scratch.Planned || r.Key != eth0 {
				t.Errorf("%s is %s", r.Key, r.State)
			}
			want := []delegate.Attached{{Attachment: as[0]}, {Attachment: as[1]}}
			if d := cmp.Diff(want, r.Attached, cmp.Comparer(netconf.Network.Equal)); d != "" {
				t.Errorf("recorded (-want +got):\n%s", d)
			}
			return nil
		}
		t.Error("no record")
		return nil
	})
	if _, err := n.Add(t.Context(), eth0, Transaction{Plan: Plan(as...)}); err != nil {
		t.Fatal(err)
	}
	if !seen {
		t.Error("the plugin was not run")
	}
	n.wantRecords("c1/eth0 added")
}

type raw = json.RawMessage

func TestAddOfWhatIsAddedRunsNothing(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.add(eth0)
	before := n.trace()
	planned := Transaction{Plan: func(context.Context, []string) ([]delegate.Attachment, error) {
		t.Error("planned")
		return nil, errors.New("planned")
	}}
	_, err := n.Add(t.Context(), eth0, planned)
	if !errors.Is(err, ErrAdded) {
		t.Errorf("err = %v", err)
	}
	wantCode(t, err, 7)
	n.wantTrace(before...)
	n.wantRecords("c1/eth0 added")
	n.del(eth0)
	n.wantNothing()
}

// After a restart of the machine some runtimes, such as podman, call ADD for the
// containers that they had, without a DEL. What was attached is gone with the network
// namespace: it is removed first.
func TestAddRemovesFirstWhatHasOutlivedItsNamespace(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	before, after := newNetNS(t), newNetNS(t)
	n.addIn(eth0, before)
	again := pair(eth0)
	again.Plan = inNetNS(again.Plan, after)
	if _, err := n.Add(t.Context(), eth0, again); !errors.Is(err, ErrAdded) {
		t.Errorf("while the namespace exists: %v", err)
	}
	unlink(t, before)

	calls := len(n.trace())
	n.failOn("DEL bridge eth0", 101)
	_, err := n.Add(t.Context(), eth0, again)
	wantCode(t, err, 101)
	n.wantRecords("c1/eth0 deleting")
	n.exec.Plugins = plugins()
	n.addIn(eth0, after)
	n.wantRecords("c1/eth0 added")
	if got := n.trace()[calls:]; len(got) < 3 || got[0] != "DEL macvlan net0" || !slices.Contains(got, "ADD bridge eth0") {
		t.Errorf("ran %q", got)
	}
	n.del(eth0)
	n.wantNothing()
}

// crash makes an ADD of n die at a call of a plugin, at "adjust" or at "report". A
// goroutine that dies leaves what a killed process leaves; other tests kill
// processes.
func (n *node) crash(at string, k scratch.Key) {
	n.t.Helper()
	n.on(at, func(context.Context, delegatetest.Call) error { runtime.Goexit(); return nil })
	t := pair(k)
	t.Adjust = func(context.Context, []delegate.Attached) error { return dieAt(at, "adjust") }
	t.Report = func(context.Context, []delegate.Attached) error { return dieAt(at, "report") }
	n.dies(func() error { _, err := n.Add(n.t.Context(), k, t); return err })
}

// dies wants do to end its goroutine, as a process ends, and not to return.
func (n *node) dies(do func() error) {
	n.t.Helper()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		n.t.Errorf("it did not die, but returned %v", do())
	}()
	<-ended
}

func dieAt(at, here string) error {
	if at == here {
		runtime.Goexit()
	}
	return nil
}

// ADD undoes first what a DEL left, by failing or by dying.
func TestAddUndoesWhatADelLeftFirst(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"fails", "dies"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			n := newNode(t)
			n.add(eth0)
			sick := nodeAt(t, n.Dir)
			sick.on("DEL tuning", func(context.Context, delegatetest.Call) error {
				if how == "dies" {
					runtime.Goexit()
				}
				return errors.New("no")
			})
			del := func() error { return sick.Del(t.Context(), Removal{Key: eth0}) }
			if how == "dies" {
				sick.dies(del)
			} else if err := del(); err == nil {
				t.Error("Del succeeded")
			}
			n.wantRecords("c1/eth0 deleting")
			again := nodeAt(t, n.Dir)
			again.add(eth0)
			want := map[string]string{"fails": "DEL tuning eth0, ADD bridge", "dies": "DEL tuning eth0, DEL bridge eth0, ADD bridge"}[how]
			if got := strings.Join(again.trace(), ", "); !strings.HasPrefix(got, want) {
				t.Errorf("calls: %s", got)
			}
			again.del(eth0)
			again.wantNothing()
		})
	}
}

// When what is left cannot be undone, ADD adds nothing beside it.
func TestAddFailsBesideWhatItCannotUndo(t *testing.T) {
	t.Parallel()
	dead := newNode(t)
	dead.add(eth0)
	dead.dieOn("DEL macvlan")
	dead.dies(func() error { return dead.Del(t.Context(), Removal{Key: eth0}) })
	n := nodeAt(t, dead.Dir)
	n.failOn("DEL bridge", 123)
	_, err := n.Add(t.Context(), eth0, pair(eth0))
	wantCode(t, err, 123)
	n.wantTrace("DEL macvlan net0", "DEL tuning eth0", "DEL bridge eth0")
	n.wantRecords("c1/eth0 deleting")
}

// The disk is full, or not there: nothing runs.
func TestNothingRunsWithoutARecord(t *testing.T) {
	t.Parallel()
	for name, spoil := range map[string]func(dir string) error{
		"a file for the directory": func(dir string) error { return os.WriteFile(dir, nil, 0o600) },
		"a directory for the record": func(dir string) error {
			return os.MkdirAll(filepath.Join(dir, "c1@multi@eth0.json"), 0o700)
		},
		"a directory for the lock": func(dir string) error { return os.MkdirAll(filepath.Join(dir, "c1@lock"), 0o700) },
		"a link to nowhere for the directory": func(dir string) error {
			return os.Symlink(filepath.Join(filepath.Dir(dir), "no", "such"), dir)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t)
			if err := spoil(n.Dir); err != nil {
				t.Fatal(err)
			}
			before := files(t, filepath.Dir(n.Dir))
			_, err := n.Add(t.Context(), eth0, pair(eth0))
			if name == "a link to nowhere for the directory" && err == nil {
				n.del(eth0) // it may as well be made
				return
			}
			wantCode(t, err, 5)
			n.wantTrace()
			if d := cmp.Diff(before, files(t, filepath.Dir(n.Dir))); d != "" {
				t.Errorf("files (-before +after):\n%s", d)
			}
		})
	}
}

// What could not be read back, or handed to a DEL, is refused before it is
// written or run.
func TestImpossiblePlansRunNothing(t *testing.T) {
	t.Parallel()
	blue := network("blue", "bridge")
	half, err := netconf.ParsePlugin([]byte(`{"name":"blue","mtu":1}`))
	if err != nil {
		t.Fatal(err)
	}
	with := func(change func(*delegate.Attachment)) []delegate.Attachment {
		a := attachment(blue, "c1", "eth0")
		change(&a)
		return []delegate.Attachment{a}
	}
	for name, tt := range map[string]struct {
		plan []delegate.Attachment
		code uint
		say  string
	}{
		"empty":             {nil, 7, "the plan has no networks"},
		"other container":   {with(func(a *delegate.Attachment) { a.ContainerID = "c2" }), 7, `network "blue": planned for another container, c2`},
		"one name twice":    {append(with(func(*delegate.Attachment) {}), attachment(network("red", "macvlan"), "c1", "eth0")), 7, `network "red": the interface name is in use, choose another`},
		"no network":        {with(func(a *delegate.Attachment) { a.Network = netconf.Network{} }), 7, "missing network name:"},
		"no network name":   {with(func(a *delegate.Attachment) { a.Network = mustParse(`{"type":"bridge"}`) }), 7, "missing network name:"},
		"no type":           {with(func(a *delegate.Attachment) { a.Network = netconf.Single(half) }), 7, "type"},
		"16 bytes":          {with(func(a *delegate.Attachment) { a.IfName = strings.Repeat("x", 16) }), 4, "too long"},
		"a path for a name": {with(func(a *delegate.Attachment) { a.IfName = "../x" }), 4, "/"},
		"no interface name": {with(func(a *delegate.Attachment) { a.IfName = "" }), 4, "empty"},
		"args not UTF-8":    {with(func(a *delegate.Attachment) { a.Args = "A=\xff" }), 7, `"A=\xff" is not UTF-8`},
		"name not UTF-8":    {with(func(a *delegate.Attachment) { a.IfName = "e\xff" }), 7, "is not UTF-8"},
		"capability no JSON": {with(func(a *delegate.Attachment) {
			a.Network = mustParse(`{"name":"blue","type":"bridge","capabilities":{"mac":true}}`)
			a.CapabilityArgs = map[string]raw{"mac": raw("{")}
		}), 6, "mac"},
		"plugin not there": {[]delegate.Attachment{attachment(network("blue", "bridge"), "c1", "eth0"), attachment(network("red", "nowhere"), "c1", "net0")}, 7, `plugin "nowhere"`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t)
			_, err := n.Add(t.Context(), eth0, Transaction{Plan: Plan(tt.plan...)})
			wantCode(t, err, tt.code)
			if err == nil || !strings.Contains(err.Error(), tt.say) || !strings.HasPrefix(err.Error(), "ADD c1 eth0: ") {
				t.Errorf("err = %v, want it to say %s", err, tt.say)
			}
			n.wantTrace()
			n.wantNothing()
		})
	}
	t.Run("none", func(t *testing.T) {
		t.Parallel()
		n := newNode(t)
		_, err := n.Add(t.Context(), eth0, Transaction{})
		wantCode(t, err, 7)
		_, err = n.Add(t.Context(), eth0, Transaction{Plan: func(context.Context, []string) ([]delegate.Attachment, error) {
			return nil, fmt.Errorf("x: %w", ErrPlan)
		}})
		wantCode(t, err, 7)
		n.wantNothing()
	})
}

// Keys that are no keys reach neither a plugin nor the disk, from any verb.
func TestBadKeysAreRefused(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		k    scratch.Key
		code uint
	}{
		"path for a container":  {scratch.Key{Network: "multi", ContainerID: "../../etc", IfName: "eth0"}, 4},
		"dots for a container":  {scratch.Key{Network: "multi", ContainerID: "..", IfName: "eth0"}, 4},
		"no container":          {scratch.Key{Network: "multi", IfName: "eth0"}, 4},
		"path for a network":    {scratch.Key{Network: "../x", ContainerID: "c1", IfName: "eth0"}, 7},
		"no network":            {scratch.Key{ContainerID: "c1", IfName: "eth0"}, 7},
		"path for an interface": {scratch.Key{Network: "multi", ContainerID: "c1", IfName: "../e"}, 4},
		"no interface":          {scratch.Key{Network: "multi", ContainerID: "c1"}, 4},
		"16 bytes":              {scratch.Key{Network: "multi", ContainerID: "c1", IfName: strings.Repeat("x", 16)}, 4},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t)
			ctx := t.Context()
			_, err := n.Add(ctx, tt.k, pair(eth0))
			wantCode(t, err, tt.code)
			_, err = n.Attach(ctx, tt.k, pair(eth0))
			wantCode(t, err, tt.code)
			wantCode(t, n.Del(ctx, Removal{Key: tt.k}), tt.code)
			wantCode(t, n.Check(ctx, tt.k), tt.code)
			wantCode(t, n.Detach(ctx, tt.k, "net9"), tt.code)
			n.wantTrace()
			n.wantNothing()
			// And when there is no directory yet.
			wantCode(t, nodeAt(t, n.Dir+"2").Del(ctx, Removal{Key: tt.k}), tt.code)
		})
	}
}

// The zero Manager fails clearly, it does not succeed at doing nothing.
func TestManagerWithoutADirectoryFails(t *testing.T) {
	t.Parallel()
	var m Manager
	ctx := t.Context()
	_, err := m.Add(ctx, eth0, pair(eth0))
	wantCode(t, err, 5)
	wantCode(t, m.Del(ctx, Removal{Key: eth0}), 5)
	wantCode(t, m.Check(ctx, eth0), 5)
	wantCode(t, m.Detach(ctx, eth0, "net0"), 5)
	wantCode(t, m.GC(ctx, Collection{Network: "multi", Valid: noneValid}), 5)
	_, err = m.Container(t.Context(), "c1")
	wantCode(t, err, 5)
	// Without an Invoker there are no plugins.
	m.Dir = filepath.Join(t.TempDir(), "state")
	_, err = m.Add(ctx, eth0, pair(eth0))
	wantCode(t, err, 7)
	if !errors.Is(err, delegate.ErrPluginNotFound) {
		t.Errorf("err = %v", err)
	}
}
