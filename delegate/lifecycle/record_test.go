package lifecycle

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/google/go-cmp/cmp"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/delegatetest"
	"github.com/metacni/metacni/internal/nodetest"
	"github.com/metacni/metacni/netconf"
	"github.com/metacni/metacni/scratch"
)

// The first plugin finds everything on disk, readable by another process.
func TestRecordedBeforeTheFirstPlugin(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	as := []delegate.Attachment{
		{
			Network:     nodetest.Parse(`{"cniVersion":"1.1.0","name":"blue","keep":1.50,"plugins":[{"type":"bridge","n":9007199254740993,"s":"a<b>&c","capabilities":{"mac":true}}]}`),
			ContainerID: "c1", NetNS: "/run/netns/none", IfName: "eth0", Args: "IgnoreUnknown=1;A=<&>",
			CapabilityArgs: map[string]raw{"mac": raw(`"02:00:00:00:00:09"`), "big": raw(`{"n":1e400}`)},
		},
		attachment(nodetest.Network("red", "macvlan"), "c1", "net0"),
	}
	seen := false
	n.On("ADD bridge", func(context.Context, delegatetest.Call) error {
		seen = true
		for r, err := range nodeAt(t, n.Dir).Records(t.Context()) {
			if err != nil {
				return err
			}
			if r.State != scratch.Planned || r.Key != eth0 {
				t.Errorf("%s is %s", r.Key, r.State)
			}
			want := []delegate.Attached{{Attachment: as[0]}, {Attachment: as[1]}}
			nodetest.Equal(t, "recorded", r.Attached, want, cmp.Comparer(netconf.Network.Equal))
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

// crash makes an ADD of n die at a call of a plugin, at "adjust" or at "report". A
// goroutine that dies leaves what a killed process leaves; other tests kill
// processes.
func (n *node) crash(at string, k scratch.Key) {
	n.Helper()
	n.On(at, func(context.Context, delegatetest.Call) error { runtime.Goexit(); return nil })
	t := pair(k)
	t.Adjust = func(context.Context, []delegate.Attached) error { return dieAt(at, "adjust") }
	t.Report = func(context.Context, []delegate.Attached) error { return dieAt(at, "report") }
	n.dies(func() error { _, err := n.Add(n.Context(), k, t); return err })
}

// dies wants do to end its goroutine, as a process ends, and not to return.
func (n *node) dies(do func() error) {
	n.Helper()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		n.Errorf("it did not die, but returned %v", do())
	}()
	<-ended
}

func dieAt(at, here string) error {
	if at == here {
		runtime.Goexit()
	}
	return nil
}

// The disk is full, or not there: nothing runs.
func TestNothingRunsWithoutARecord(t *testing.T) {
	t.Parallel()
	for name, spoil := range map[string]func(dir string) error{
		"a file for the directory": func(dir string) error { return os.WriteFile(dir, nil, 0o600) },
		"a directory for the record": func(dir string) error {
			return errors.Join(
				os.MkdirAll(filepath.Join(dir, "c1@multi@eth0.json"), 0o700),
				os.WriteFile(filepath.Join(dir, "c1@lock"), nil, 0o600), // stays with the damaged record
			)
		},
		"a directory for the lock": func(dir string) error { return os.MkdirAll(filepath.Join(dir, "c1@lock"), 0o700) },
		"a link to nowhere for the directory": func(dir string) error {
			return os.Symlink(filepath.Join(filepath.Dir(dir), "no", "such"), dir)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t)
			nodetest.OK(t, spoil(n.Dir))
			before := files(t, filepath.Dir(n.Dir))
			_, err := n.Add(t.Context(), eth0, pair(eth0))
			if name == "a link to nowhere for the directory" && err == nil {
				n.del(eth0) // it may as well be made
				return
			}
			nodetest.Code(t, err, 5)
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
	blue := nodetest.Network("blue", "bridge")
	half, err := netconf.ParsePlugin([]byte(`{"name":"blue","mtu":1}`))
	nodetest.OK(t, err)
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
		"one name twice":    {append(with(func(*delegate.Attachment) {}), attachment(nodetest.Network("red", "macvlan"), "c1", "eth0")), 7, `network "red": the interface name is in use, choose another`},
		"no network":        {with(func(a *delegate.Attachment) { a.Network = netconf.Network{} }), 7, "missing network name:"},
		"no network name":   {with(func(a *delegate.Attachment) { a.Network = nodetest.Parse(`{"type":"bridge"}`) }), 7, "missing network name:"},
		"no type":           {with(func(a *delegate.Attachment) { a.Network = netconf.Single(half) }), 7, "type"},
		"16 bytes":          {with(func(a *delegate.Attachment) { a.IfName = strings.Repeat("x", 16) }), 4, "too long"},
		"a path for a name": {with(func(a *delegate.Attachment) { a.IfName = "../x" }), 4, "/"},
		"no interface name": {with(func(a *delegate.Attachment) { a.IfName = "" }), 4, "empty"},
		"args not UTF-8":    {with(func(a *delegate.Attachment) { a.Args = "A=\xff" }), 7, `"A=\xff" is not UTF-8`},
		"name not UTF-8":    {with(func(a *delegate.Attachment) { a.IfName = "e\xff" }), 7, "is not UTF-8"},
		"capability no JSON": {with(func(a *delegate.Attachment) {
			a.Network = nodetest.Parse(`{"name":"blue","type":"bridge","capabilities":{"mac":true}}`)
			a.CapabilityArgs = map[string]raw{"mac": raw("{")}
		}), 6, "mac"},
		"plugin not there": {[]delegate.Attachment{attachment(nodetest.Network("blue", "bridge"), "c1", "eth0"), attachment(nodetest.Network("red", "nowhere"), "c1", "net0")}, 7, `plugin "nowhere"`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t)
			_, err := n.Add(t.Context(), eth0, Transaction{Plan: Plan(tt.plan...)})
			nodetest.Code(t, err, tt.code)
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
		nodetest.Code(t, err, 7)
		_, err = n.Add(t.Context(), eth0, Transaction{Plan: func(context.Context, []string) ([]delegate.Attachment, error) {
			return nil, fmt.Errorf("x: %w", ErrPlan)
		}})
		nodetest.Code(t, err, 7)
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
			nodetest.Code(t, err, tt.code)
			_, err = n.Attach(ctx, tt.k, pair(eth0))
			nodetest.Code(t, err, tt.code)
			nodetest.Code(t, n.Del(ctx, Removal{Key: tt.k}), tt.code)
			nodetest.Code(t, n.Check(ctx, tt.k), tt.code)
			nodetest.Code(t, n.Detach(ctx, tt.k, "net9"), tt.code)
			n.wantTrace()
			n.wantNothing()
			// And when there is no directory yet.
			nodetest.Code(t, nodeAt(t, n.Dir+"2").Del(ctx, Removal{Key: tt.k}), tt.code)
		})
	}
}

// The zero Manager fails clearly, it does not succeed at doing nothing.
func TestManagerWithoutADirectoryFails(t *testing.T) {
	t.Parallel()
	var m Manager
	ctx := t.Context()
	_, err := m.Add(ctx, eth0, pair(eth0))
	nodetest.Code(t, err, 5)
	nodetest.Code(t, m.Del(ctx, Removal{Key: eth0}), 5)
	nodetest.Code(t, m.Check(ctx, eth0), 5)
	nodetest.Code(t, m.Detach(ctx, eth0, "net0"), 5)
	nodetest.Code(t, m.GC(ctx, Collection{Network: "multi", Valid: noneValid}), 5)
	_, err = m.Container(t.Context(), "c1")
	nodetest.Code(t, err, 5)
	// Without an Invoker there are no plugins.
	m.Dir = filepath.Join(t.TempDir(), "state")
	_, err = m.Add(ctx, eth0, pair(eth0))
	nodetest.Code(t, err, 7)
	if !errors.Is(err, delegate.ErrPluginNotFound) {
		t.Errorf("err = %v", err)
	}
}

// origins are of "blue", "red" and "green"; red has none.
const (
	blueOrigin  = `{"kind":"cluster","n":12345678901234567890,"text":"secret<&>"}`
	greenOrigin = `["secret",1.0]`
)

func planned(origin string, as ...delegate.Attachment) Transaction {
	as[0].Origin = raw(origin)
	return Transaction{Plan: Plan(as...)}
}

func withOrigins(n *node) {
	n.Helper()
	blue, red := attachment(nodetest.Network("blue", "bridge", "tuning"), "c1", "eth0"), attachment(nodetest.Network("red", "macvlan"), "c1", "net0")
	if _, err := n.Add(n.Context(), eth0, planned(blueOrigin, blue, red)); err != nil {
		n.Fatal(err)
	}
	green := attachment(nodetest.Network("green", "ipvlan"), "c1", "hot0")
	if _, err := n.Attach(n.Context(), eth0, planned(greenOrigin, green)); err != nil {
		n.Fatal(err)
	}
}

// origins are the recorded ones, by interface, as another process reads them.
func (n *node) origins() map[string]string {
	n.Helper()
	found := make(map[string]string)
	for r, err := range nodeAt(n.TB, n.Dir).Records(n.Context()) {
		nodetest.OK(n.TB, err)
		for _, a := range r.Attached {
			if found[a.IfName] = string(a.Origin); a.Origin == nil {
				found[a.IfName] = "none"
			}
		}
	}
	return found
}

func (n *node) wantOrigins(want map[string]string) {
	n.Helper()
	nodetest.Equal(n.TB, "origins", n.origins(), want)
}

// Whatever rewrites a record keeps the origins of the attachments that stay, byte
// for byte.
func TestOriginIsRecordedAsItWasGiven(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.On("ADD bridge", func(context.Context, delegatetest.Call) error {
		n.wantOrigins(map[string]string{"eth0": blueOrigin, "net0": "none"}) // before the first plugin
		return nil
	})
	withOrigins(n)
	all := map[string]string{"eth0": blueOrigin, "net0": "none", "hot0": greenOrigin}
	n.wantOrigins(all)
	n.On("DEL ipvlan", func(context.Context, delegatetest.Call) error { return errors.New("no") })
	if err := n.Detach(t.Context(), eth0, "hot0"); err == nil {
		t.Error("Detach succeeded")
	}
	n.wantOrigins(all)
	n = nodeAt(t, n.Dir) // where DEL ipvlan succeeds
	if err := n.Detach(t.Context(), eth0, "hot0"); err != nil {
		t.Error(err)
	}
	delete(all, "hot0")
	n.wantOrigins(all)
	n.FailOn("DEL bridge", 100)
	if err := n.Del(t.Context(), Removal{Key: eth0}); err == nil {
		t.Error("Del succeeded")
	}
	n.wantOrigins(all)
}

func TestOriginIsReturnedByAddAndAdopted(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	a := attachment(nodetest.Network("blue", "bridge"), "c1", "eth0")
	added, err := n.Add(t.Context(), eth0, planned(blueOrigin, a))
	if err != nil || string(added[0].Origin) != blueOrigin {
		t.Errorf("Add: %s, %v", added[0].Origin, err)
	}
	n = newNode(t)
	a.Origin, a.NetNS = raw(blueOrigin), "/run/netns/c1"
	if adopted, err := n.Adopt(t.Context(), Adoption{Key: eth0, Attached: []delegate.Attached{{Attachment: a}}}); err != nil || !adopted {
		t.Fatalf("Adopt: %v, %v", adopted, err)
	}
	n.wantOrigins(map[string]string{"eth0": blueOrigin})
}

// Nothing of an origin is in the configuration, the arguments or the environment
// of a plugin, for any command.
func TestPluginsNeverSeeTheOrigin(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	withOrigins(n)
	if err := n.Check(t.Context(), eth0); err != nil {
		t.Error(err)
	}
	for _, valid := range [][]types.GCAttachment{validFor(eth0), noneValid} { // GC, then DEL
		if err := n.GC(t.Context(), Collection{Network: "multi", Valid: valid}); err != nil {
			t.Error(err)
		}
	}
	verbs := map[string]bool{}
	for _, c := range n.Exec.Calls() {
		verbs[c.Command] = true
		seen := fmt.Sprintf("%+v %s", c, c.Stdin)
		if strings.Contains(seen, "secret") {
			t.Errorf("%s: %s", c, seen)
		}
	}
	for _, verb := range []string{"ADD", "CHECK", "DEL", "GC"} {
		if !verbs[verb] {
			t.Errorf("no %s was run", verb)
		}
	}
}

// An origin that could not be read back fails the ADD before a plugin runs.
func TestOriginThatIsNoJSONRunsNothing(t *testing.T) {
	t.Parallel()
	for _, origin := range []string{"{", "secret", `{"a":1} 2`, "\"\xff\""} {
		n := newNode(t)
		_, err := n.Add(t.Context(), eth0, planned(origin, attachment(nodetest.Network("blue", "bridge"), "c1", "eth0")))
		nodetest.Code(t, err, 7)
		if err != nil && (strings.Contains(err.Error(), "secret") || !strings.Contains(err.Error(), "origin")) {
			t.Errorf("%s: %v", origin, err)
		}
		n.wantTrace()
		n.wantNothing()
	}
}
