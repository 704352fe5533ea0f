package lifecycle

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/google/go-cmp/cmp"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/delegatetest"
	"github.com/metacni/metacni/internal/bounds"
	nodetest "github.com/metacni/metacni/internal/test/node"
	"github.com/metacni/metacni/netconf"
	"github.com/metacni/metacni/scratch"
	"github.com/metacni/metacni/status"
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
	n.mustAdd(eth0, Transaction{Plan: Plan(as...)})
	if !seen {
		t.Error("the plugin was not run")
	}
	n.wantRecords("c1/eth0 added")
}

type raw = json.RawMessage

// crash makes an ADD of n die at a call of a plugin or at "report". A goroutine that dies leaves what a killed process leaves; other tests kill
// processes.
func (n *node) crash(at string, k scratch.Key) {
	n.Helper()
	n.On(at, func(context.Context, delegatetest.Call) error { runtime.Goexit(); return nil })
	t := pair(k)
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
			nodetest.Equal(t, "files", files(t, filepath.Dir(n.Dir)), before)
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
	large, err := nodetest.Parse(`{"name":"blue","type":"bridge"}`).EditPlugins(netconf.Set("x", strings.Repeat("x", bounds.Network)))
	nodetest.OK(t, err)
	tooDeep := raw(deep(bounds.Depth + 1))
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

		"an origin that is no JSON":      {with(func(a *delegate.Attachment) { a.Origin = raw(`{"a":1} 2`) }), 7, "the origin is not JSON"},
		"an origin that is not UTF-8":    {with(func(a *delegate.Attachment) { a.Origin = raw("\"\xff\"") }), 7, "the origin is not JSON"},
		"a deep origin":                  {with(func(a *delegate.Attachment) { a.Origin = tooDeep }), 7, "the origin is nested more deeply than 1000 levels"},
		"a deeper origin":                {with(func(a *delegate.Attachment) { a.Origin = raw(deep(9_999)) }), 7, "the origin is nested"},
		"an undeclared argument":         {with(func(a *delegate.Attachment) { a.CapabilityArgs = map[string]raw{"x": tooDeep} }), 7, `capability argument "x" is nested`},
		"an argument that is no JSON":    {with(func(a *delegate.Attachment) { a.CapabilityArgs = map[string]raw{"x": raw("{")} }), 7, `capability argument "x" is not JSON`},
		"a large network":                {with(func(a *delegate.Attachment) { a.Network = large }), 7, "invalid configuration: larger than 1 MiB"},
		"a large origin":                 {with(func(a *delegate.Attachment) { a.Origin = raw(`"` + strings.Repeat("x", bounds.Record) + `"`) }), 7, "larger than 16 MiB"},
		"large arguments":                {with(func(a *delegate.Attachment) { a.Args = "A=" + strings.Repeat("x", bounds.Record) }), 7, "larger than 16 MiB"},
		"no file":                        {with(func(a *delegate.Attachment) { a.Files = []string{""} }), 7, "not an absolute path"},
		"a file that is a relative path": {with(func(a *delegate.Attachment) { a.Files = []string{"../x"} }), 7, "not an absolute path"},
		"a file whose name is not UTF-8": {with(func(a *delegate.Attachment) { a.Files = []string{"/\xff"} }), 7, "is not UTF-8"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t)
			_, err := n.Add(t.Context(), eth0, Transaction{Plan: Plan(tt.plan...)})
			nodetest.Code(t, err, tt.code)
			if err == nil || !strings.Contains(err.Error(), tt.say) || !strings.HasPrefix(err.Error(), "ADD c1 eth0: ") {
				t.Errorf("err = %.300v, want it to say %s", err, tt.say)
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
			nodetest.Code(t, n.Del(ctx, tt.k, Removal{}), tt.code)
			nodetest.Code(t, n.Check(ctx, tt.k, ""), tt.code)
			nodetest.Code(t, n.Detach(ctx, tt.k, "net9"), tt.code)
			n.wantTrace()
			n.wantNothing()
			// And when there is no directory yet.
			nodetest.Code(t, nodeAt(t, n.Dir+"2").Del(ctx, tt.k, Removal{}), tt.code)
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
	nodetest.Code(t, m.Del(ctx, eth0, Removal{}), 5)
	nodetest.Code(t, m.Check(ctx, eth0, ""), 5)
	nodetest.Code(t, m.Detach(ctx, eth0, "net0"), 5)
	nodetest.Code(t, m.GC(ctx, Collection{Network: "multi", Valid: noneValid}), 5)
	_, err = m.Container(t.Context(), "c1")
	nodetest.Code(t, err, 5)
	// Without an Invoker there are no plugins.
	m.Dir = filepath.Join(t.TempDir(), "state")
	_, err = m.Add(ctx, eth0, pair(eth0))
	nodetest.Code(t, err, 7)
	nodetest.Is(t, err, delegate.ErrPluginNotFound)
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
	n.mustAdd(eth0, planned(blueOrigin, blue, red))
	green := attachment(nodetest.Network("green", "ipvlan"), "c1", "hot0")
	n.mustAttach(eth0, planned(greenOrigin, green))
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
	nodetest.OK(t, n.Detach(t.Context(), eth0, "hot0"))
	delete(all, "hot0")
	n.wantOrigins(all)
	n.FailOn("DEL bridge", 100)
	if err := n.Del(t.Context(), eth0, Removal{}); err == nil {
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
	nodetest.OK(t, n.Check(t.Context(), eth0, ""))
	for _, valid := range [][]types.GCAttachment{validFor(eth0), noneValid} { // GC, then DEL
		nodetest.OK(t, n.GC(t.Context(), Collection{Network: "multi", Valid: valid}))
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

// A record that is whole as a file and makes no sense is damaged as well. One of a version
// that is not known is left alone by every verb. Each says so, and runs nothing.
func TestRecordThatCannotBeReadIsLeftAlone(t *testing.T) {
	t.Parallel()
	const later = "a later version"
	for name, value := range map[string]string{
		later:              "",
		"null":             `null`,
		"a number":         `7`,
		"no delegates":     `{}`,
		"null delegates":   `{"delegates":null}`,
		"null delegate":    `{"delegates":[null]}`,
		"no network":       `{"delegates":[{"ifname":"eth0"}]}`,
		"no plugins":       `{"delegates":[{"ifname":"eth0","network":{"name":"n","plugins":[]}}]}`,
		"no type":          `{"delegates":[{"ifname":"eth0","network":{"name":"n","plugins":[{}]}}]}`,
		"no network name":  `{"delegates":[{"ifname":"eth0","network":{"plugins":[{"type":"bridge"}]}}]}`,
		"path for a name":  `{"delegates":[{"ifname":"../x","network":{"name":"n","plugins":[{"type":"bridge"}]}}]}`,
		"no object result": `{"delegates":[{"ifname":"eth0","result":[],"network":{"name":"n","plugins":[{"type":"bridge"}]}}]}`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t)
			n.add(key("c2", "eth0"))
			want := scratch.ErrCorrupt
			if name == later {
				want = scratch.ErrVersion
				n.add(eth0)
				n.laterVersion(eth0)
			} else {
				n.put(eth0, scratch.Added, time.Time{}, value)
			}
			file, err := os.ReadFile(n.recordFile(eth0))
			nodetest.OK(t, err)
			calls := n.trace()
			for _, verb := range []string{"ADD", "CHECK", "ATTACH", "DETACH", "DEL"} {
				err := n.verb(t.Context(), verb)
				nodetest.Code(t, err, 5)
				if e := (*Error)(nil); !errors.Is(err, want) || !errors.As(err, &e) || e.Key != eth0 {
					t.Errorf("%s: %v", verb, err)
				}
			}
			n.wantRecords("c1/eth0 damaged", "c2/eth0 added")
			n.wantTrace(calls...)
			k := key("c1", "eth1")
			n.add(k) // others are no worse for it
			nodetest.OK(t, n.Check(t.Context(), k, ""))
			n.del(k)
			if got, err := os.ReadFile(n.recordFile(eth0)); err != nil || !bytes.Equal(got, file) {
				t.Errorf("the record is %s, %v", got, err)
			}
		})
	}
}

// laterVersion puts k's record in a version of the format
// that this program does not know.
func (n *node) laterVersion(k scratch.Key) {
	n.Helper()
	json := fmt.Sprintf(`{"version":3,"network":%q,"container":%q,"ifname":%q,"delegates":"elsewhere"}`, k.Network, k.ContainerID, k.IfName)
	sum := sha256.Sum256([]byte(json))
	file := fmt.Sprintf("%s %s\n", hex.EncodeToString(sum[:8]), json)
	nodetest.OK(n.TB, os.WriteFile(n.recordFile(k), []byte(file), 0o600))
}

// wholeRecord has something at every place of a record's value, and
// wholeChange of a change.
const (
	wholeRecord = `{"missed":1,"delegates":[{"ifname":"eth0","args":"A=1","origin":{"use":"cluster"},"capabilityArgs":{"mac":"x"},"unfinished":false,"gone":[1],"state":"",
		"netns":{"path":"/absent","dev":1,"inode":2,"unique":"x"},
		"network":{"cniVersion":"1.1.0","name":"blue","disableCheck":false,"disableGC":false,"plugins":[{"type":"bridge","capabilities":{"mac":true}},{"type":"tuning"}]},
		"result":{"cniVersion":"1.0.0","interfaces":[{"name":"eth0"}],"ips":[{"address":"10.0.0.2/24","interface":0}],"routes":[{"dst":"0.0.0.0/0"}],"dns":{"search":["x"]}}}]}`
	wholeChange = `{"at":0,"unfinished":true,"gone":[0],"result":{"cniVersion":"0.4.0","ips":[{"version":"4","address":"10.0.0.3/24"}]}}`
)

// ran are the commands of the calls after the first ones.
func (n *node) ran(after int) []string {
	var all []string
	for _, c := range n.Exec.Calls()[after:] {
		if !slices.Contains(all, c.Command) {
			all = append(all, c.Command)
		}
	}
	return all
}

// Whatever stands at any place of a record, each verb succeeds or fails without
// a panic, and runs only what is its own. A record that is damaged stays, and
// nothing runs for it. Any other can be deleted if its plugins are there.
func TestEveryTypeAtEveryPlaceOfARecord(t *testing.T) {
	t.Parallel()
	type shape struct{ value, change string }
	var all []shape
	for _, v := range nodetest.JSONVariants(t, wholeRecord) {
		all = append(all, shape{v, ""})
	}
	for _, c := range nodetest.JSONVariants(t, wholeChange) {
		all = append(all, shape{wholeRecord, c})
	}
	for _, state := range []scratch.State{scratch.Added, scratch.Deleting} {
		t.Run(string(state), func(t *testing.T) {
			t.Parallel()
			for _, tt := range all {
				n := nodeAt(t, fastDir(t))
				var changes []string
				if tt.change != "" {
					changes = append(changes, tt.change)
				}
				n.put(eth0, state, time.Time{}, tt.value, changes...)
				file, err := os.ReadFile(n.recordFile(eth0))
				nodetest.OK(t, err)
				_, err = n.store().Get(eth0)
				damaged := errors.Is(err, scratch.ErrCorrupt)
				if err != nil && !damaged || damaged && tt.change != "" {
					t.Fatalf("%s %s: %v", tt.value, tt.change, err)
				}
				_ = n.records()
				for _, verb := range []struct {
					name string
					do   func() error
					runs []string
				}{
					{"CHECK", func() error { return n.Check(t.Context(), eth0, "") }, []string{"CHECK"}},
					{"GC", func() error { return n.GC(t.Context(), Collection{Network: "multi", Valid: validFor(eth0)}) }, []string{"GC"}},
					{"DETACH", func() error { return n.Detach(t.Context(), eth0, "text") }, []string{"DEL"}},
					{"ATTACH", func() error { _, err := n.Attach(t.Context(), eth0, hotplug(eth0)); return err }, []string{"ADD", "DEL"}},
					{"DEL", func() error { return n.Del(t.Context(), eth0, Removal{}) }, []string{"DEL"}},
				} {
					before := len(n.Exec.Calls())
					err := verb.do()
					for _, command := range n.ran(before) {
						if !slices.Contains(verb.runs, command) || damaged {
							t.Errorf("%s of %s %s ran %s", verb.name, tt.value, tt.change, command)
						}
					}
					switch {
					case damaged && !errors.Is(err, scratch.ErrCorrupt):
						t.Errorf("%s of %s: %v", verb.name, tt.value, err)
					case err != nil && strings.Contains(err.Error(), "panic"):
						t.Errorf("%s of %s %s: %v", verb.name, tt.value, tt.change, err)
					case !damaged && verb.name == "DEL" && err != nil && !errors.Is(err, delegate.ErrPluginNotFound):
						t.Errorf("%s of %s %s: %v", verb.name, tt.value, tt.change, err)
					}
				}
				if now, err := os.ReadFile(n.recordFile(eth0)); damaged && (err != nil || string(now) != string(file)) {
					t.Errorf("%s became %s, %v", tt.value, now, err)
				}
			}
		})
	}
}

// withFiles gives each attachment that t plans a file in dir, named for its interface,
// which Prepare makes.
func withFiles(t Transaction, dir string) Transaction {
	plan := t.Plan
	t.Plan = func(ctx context.Context, taken []string) ([]delegate.Attachment, error) {
		as, err := plan(ctx, taken)
		for i := range as {
			as[i].Files = []string{filepath.Join(dir, as[i].IfName)}
		}
		return as, err
	}
	t.Prepare = func(_ context.Context, plan []delegate.Attachment) error {
		for _, a := range plan {
			if err := os.WriteFile(a.Files[0], []byte("{}"), 0o600); err != nil {
				return err
			}
		}
		return nil
	}
	return t
}

// The files of an attachment are gone before its record is. Of the others see
// TestGuaranteesHoldInEveryHistory.
func TestFilesGoWithTheirAttachment(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		do   func(n *node, dir string) error
		left []string
	}{
		{"Release", func(n *node, dir string) error {
			return n.Release(n.Context(), eth0, func(_ context.Context, r Record) error {
				if diff := cmp.Diff([]string{filepath.Join(dir, "eth0")}, r.Attached[0].Files); diff != "" || len(files(n.TB, dir)) != 1 {
					n.Errorf("when the other program takes over: %s, left %q", diff, files(n.TB, dir))
				}
				return nil
			})
		}, nil},
		{"a Release that fails", func(n *node, _ string) error {
			return failing(n.Release(n.Context(), eth0, func(context.Context, Record) error { return errors.New("disk full") }))
		}, []string{"eth0"}},
		{"Del of files that are gone", func(n *node, dir string) error {
			return errors.Join(os.Remove(filepath.Join(dir, "eth0")), n.Del(n.Context(), eth0, Removal{}))
		}, []string{}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			n, dir := newNode(t), t.TempDir()
			n.mustAdd(eth0, withFiles(pair(eth0), dir))
			nodetest.OK(t, tt.do(n, dir))
			nodetest.Equal(t, "left", files(t, dir), tt.left)
		})
	}
}

// failing turns an error that a test wants into none.
func failing(err error) error {
	if err == nil {
		return errors.New("no error")
	}
	return nil
}

func TestPrepareRunsWhenThePlanIsRecordedAndBeforeItsPlugins(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	tr := pair(eth0)
	tr.Prepare = func(_ context.Context, plan []delegate.Attachment) error {
		n.wantRecords("c1/eth0 planned")
		n.wantTrace()
		if len(plan) != 2 || plan[0].IfName != "eth0" || plan[1].IfName != "net0" {
			t.Errorf("prepared %v", plan)
		}
		return types.NewError(types.ErrIOFailure, "no space", "")
	}
	_, err := n.Add(t.Context(), eth0, tr)
	nodetest.Code(t, err, types.ErrIOFailure)
	n.wantTrace()
	n.wantNothing()

	prepare, prepared := tr.Prepare, 0
	tr.Prepare = func(ctx context.Context, plan []delegate.Attachment) error {
		if prepared++; prepared == 1 {
			return prepare(ctx, plan)
		}
		return nil
	}
	tr.Next = func(context.Context, error) ([]delegate.Attachment, error) {
		return []delegate.Attachment{attachment(nodetest.Network("green", "ipvlan"), "c1", "eth0")}, nil
	}
	if _, err := n.Add(t.Context(), eth0, tr); err != nil || prepared != 2 {
		t.Fatalf("another plan: %v, prepared %d times", err, prepared)
	}
	n.wantTrace("ADD ipvlan eth0")
}

// A file that cannot be removed must not keep the runtime from removing the container.
func TestAFileThatCannotBeRemovedIsTriedAgain(t *testing.T) {
	t.Parallel()
	n, dir := newNode(t), t.TempDir()
	n.mustAdd(eth0, withFiles(pair(eth0), dir))
	file := filepath.Join(dir, "net0")
	nodetest.OK(t, errors.Join(os.Remove(file), os.MkdirAll(filepath.Join(file, "x"), 0o700)))
	n.del(eth0)
	n.wantRecords("c1/eth0 deleting")
	nodetest.OK(t, os.Remove(filepath.Join(file, "x")))
	n.Trace()
	n.del(eth0)
	n.wantRecords()
	n.WantTrace()
	if _, err := os.Lstat(file); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
}

// If only a file is left, but the record cannot say so, DEL fails: a later one would run
// the plugins again, and what they have freed may belong to another container.
func TestAFileThatCannotBeRemovedIsTriedAgainOnAFullDisk(t *testing.T) {
	t.Parallel()
	n, dir := newNode(t), t.TempDir()
	n.mustAdd(eth0, withFiles(pair(eth0), dir))
	file := filepath.Join(dir, "net0")
	record := filepath.Join(n.Dir, "c1@multi@eth0.json")
	// A record with another name is written anew, and something has the name for that.
	full := filepath.Join(n.Dir, ".tmp-c1@multi@eth0.json")
	nodetest.OK(t, errors.Join(os.Remove(file), os.MkdirAll(filepath.Join(file, "x"), 0o700), os.Link(record, record+".copy"), os.Mkdir(full, 0o700)))
	if err := n.Del(t.Context(), eth0, Removal{}); err == nil {
		t.Error("success")
	}
	n.wantRecords("c1/eth0 added")
	nodetest.OK(t, errors.Join(os.RemoveAll(file), os.Remove(record+".copy"), os.Remove(full)))
	n.del(eth0)
	n.wantNothing()
}

// The record of an ADD that has failed stays while one of its files cannot be removed:
// only the record knows that the file is there.
func TestFailedAddKeepsTheRecordOfAFileThatCannotBeRemoved(t *testing.T) {
	t.Parallel()
	for name, fails := range map[string]func(*node, *Transaction){
		"a plugin": func(n *node, _ *Transaction) { n.FailOn("ADD macvlan", 101) },
		"Prepare": func(_ *node, tr *Transaction) {
			prepare := tr.Prepare
			tr.Prepare = func(ctx context.Context, plan []delegate.Attachment) error {
				return errors.Join(prepare(ctx, plan), types.NewError(101, "no", ""))
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n, dir := newNode(t), t.TempDir()
			tr := withFiles(pair(eth0), dir)
			prepare := tr.Prepare
			tr.Prepare = func(ctx context.Context, plan []delegate.Attachment) error {
				return errors.Join(prepare(ctx, plan), os.Remove(plan[1].Files[0]), os.MkdirAll(plan[1].Files[0]+"/x", 0o700))
			}
			fails(n, &tr)
			_, err := n.Add(t.Context(), eth0, tr)
			nodetest.Code(t, err, 101)
			nodetest.Says(t, err, "net0", "not empty")
			nodetest.OK(t, os.Remove(filepath.Join(dir, "net0", "x")))
			calls := len(n.trace())
			n.del(eth0)
			n.wantNothing()
			if left := files(t, dir); len(left) > 0 || len(n.trace()) > calls {
				t.Errorf("left %q, ran %q", left, n.trace()[calls:])
			}
		})
	}
}

func TestFilesAreThoseOfTheNode(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.Root = t.TempDir()
	dir := filepath.Join(n.Root, "run", "files")
	nodetest.OK(t, errors.Join(os.MkdirAll(dir, 0o700), os.Symlink("/run", filepath.Join(n.Root, "var-run"))))
	file := filepath.Join(dir, "eth0")
	tr := pair(eth0)
	tr.Plan = func(context.Context, []string) ([]delegate.Attachment, error) {
		a := attachment(nodetest.Network("blue", "bridge"), "c1", "eth0")
		a.Files = []string{"/var-run/files/eth0"}
		return []delegate.Attachment{a}, os.WriteFile(file, nil, 0o600)
	}
	n.mustAdd(eth0, tr)
	n.del(eth0)
	if exists(file) {
		t.Error("the file is still there")
	}
}

// deep returns JSON with the given number of levels.
func deep(levels int) string { return strings.Repeat("[", levels) + strings.Repeat("]", levels) }

// withResult returns a result with the given JSON in one of its keys.
func withResult(value string) string { return `{"cniVersion":"1.1.0","x":` + value + `}` }

// The deepest input that is accepted is recorded, read back and detached.
func TestDeepestAttachmentIsDetached(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	deepest := deep(bounds.Depth)
	net, err := nodetest.Parse(`{"cniVersion":"1.1.0","name":"blue","type":"bridge","x":` + deep(bounds.Depth-1) + `}`).
		EditPlugins(netconf.In("args", netconf.In("cni", netconf.Set("x", raw(deepest[6:len(deepest)-6])))))
	nodetest.OK(t, err)
	a := attachment(net, "c1", "eth0")
	a.Origin, a.CapabilityArgs = raw(deepest), map[string]raw{"x": raw(deepest)}
	n.printing("bridge", withResult(deep(bounds.Depth-1)))
	n.mustAdd(eth0, Transaction{Plan: Plan(a)})
	n.wantRecords("c1/eth0 added")
	other := nodeAt(t, n.Dir)
	nodetest.OK(t, other.Check(t.Context(), eth0, ""))
	other.del(eth0)
	other.wantTrace("CHECK bridge eth0", "DEL bridge eth0")
	n.wantRecords()
}

// Several results that are too large together make the ADD fail before the next plugin
// runs.
func TestResultsAreTooLargeTogether(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.printing("bridge", withResult(`"`+strings.Repeat("x", bounds.Record/2)+`"`))
	var plan []delegate.Attachment
	for i := range 3 {
		plan = append(plan, attachment(nodetest.Network(fmt.Sprint("n", i), "bridge"), "c1", fmt.Sprint("net", i)))
	}
	_, err := n.Add(t.Context(), eth0, Transaction{Plan: Plan(plan...)})
	nodetest.Code(t, err, 7)
	n.wantTrace("ADD bridge net0", "ADD bridge net1", "DEL bridge net1", "DEL bridge net0")
	n.wantNothing()
}

// Whatever decodes as a record, and whatever changes were noted of it, can be
// encoded, decoded again, and deleted: no disk content makes the package panic,
// or a DEL that can never succeed. What no change says is gone is deleted, and
// nothing else is run.
func FuzzRecord(f *testing.F) {
	const one = `{"delegates":[{"network":{"name":"n","cniVersion":"1.1.0","plugins":[{"type":"bridge","x":1.0},{"type":"tuning"}]},"ifname":"eth0","netns":{"path":"/x","inode":7},"args":"A=1","result":{"cniVersion":"1.1.0","ips":[]}}]}`
	for _, change := range []string{
		``, `{"at":0,"gone":[1]}`, `{"at":0,"gone":[1,0]}`, `{"at":0,"gone":[0,0,1]}`, `{"at":0,"gone":[-1,7]}`, `{"at":0,"gone":[]}`, `{"at":0,"gone":null}`,
		`{"at":-1,"gone":[0]}`, `{"at":1,"gone":[0]}`, `{"gone":[1]}`, `{"at":0,"result":{"cniVersion":"0.4.0"},"unfinished":true}`, `{"at":0,"result":null}`,
		`{"at":0,"result":[]}`, `{"at":0,"result":{"cniVersion":"1.0.0","ips":[null]}}`, `{"at":"0"}`, `{"at":1e99}`, `null`, `[]`, `7`,
	} {
		f.Add([]byte(one), []byte(change), []byte(`{"at":0,"gone":[0]}`))
	}
	for _, value := range []string{
		`{"delegates":[{"network":{"name":"n","cniVersion":"0.4.0","plugins":[{"type":"bridge","capabilities":{"mac":true}}]},"ifname":"eth0","capabilityArgs":{"mac":"x"},"leaving":true}]}`,
		`{"delegates":[{"network":{"name":"n","type":"bridge"},"ifname":"eth0","gone":[5,-1,0,0]}]}`,
		`{"delegates":[]}`,
		`{"delegates":null}`,
		`{"delegates":[{"network":{"name":"n","cniVersion":"9.9.9","type":"a/b"},"ifname":"e","result":{"cniVersion":"9.9.9"}}]}`,
	} {
		f.Add([]byte(value), []byte(`{"at":0,"gone":[0]}`), []byte(``))
	}
	f.Fuzz(func(t *testing.T, data, change1, change2 []byte) {
		var r, again record
		if json.Unmarshal(data, &r) != nil {
			return
		}
		for _, c := range [][]byte{change1, change2} {
			before, err := json.Marshal(r)
			nodetest.OK(t, err)
			if r.Make(c) == nil {
				continue
			}
			if after, err := json.Marshal(r); err != nil || string(after) != string(before) {
				t.Fatalf("what was refused has made %s of %s: %v", after, before, err)
			}
		}
		out, err := json.Marshal(r)
		nodetest.OK(t, err)
		if err := json.Unmarshal(out, &again); err != nil {
			t.Fatalf("%s: %v", out, err)
		}
		nodetest.Equal(t, "state", stateOf(again), stateOf(r))
		as := again.attached("c1", asRecorded)
		n := nodeAt(t, "unused")
		for _, a := range as {
			for _, p := range a.Network.Plugins() {
				n.Exec.Plugins[p.Type()] = n.Exec.Plugins["bridge"]
			}
		}
		err = n.Invoker.DelAll(t.Context(), as)
		if err := except(err, func(err error) bool { return errors.Is(err, delegate.ErrPluginNotFound) }); err != nil { // a type may be a path
			t.Errorf("DEL: %v", err)
		}
		var want []string
		for _, a := range slices.Backward(as) {
			for i, p := range slices.Backward(a.Network.Plugins()) {
				if _, err := n.Exec.FindInPath(p.Type(), nil); err == nil && !slices.Contains(a.Gone, i) {
					want = append(want, "DEL "+p.Type()+" "+a.IfName)
				}
			}
		}
		if got := n.Exec.Trace(); err == nil && !slices.Equal(got, want) {
			t.Errorf("ran %q, want %q", got, want)
		}
	})
}

// stateOf is what a record says beside its networks, result by result.
func stateOf(r record) []any {
	var all []any
	for _, e := range r.Delegates {
		var result any
		_ = json.Unmarshal(e.Result, &result)
		all = append(all, e.IfName, fmt.Sprint(e.NetNS), e.Args, result, e.State, e.Unfinished, len(e.Gone), e.left())
	}
	return all
}

// results of the plugins for the status, in the forms that there are.
const (
	full = `{"cniVersion":"1.1.0","interfaces":[{"name":"br0"},{"name":"eth0","mac":"02:00:00:00:00:02","mtu":1400,"sandbox":"/ns"},{"name":"eth0.7","sandbox":"/ns"}],
		"ips":[{"address":"10.0.0.2/24","gateway":"10.0.0.1","interface":1},{"address":"10.7.0.2/24","gateway":"10.7.0.1","interface":2}],"routes":[{"dst":"0.0.0.0/0","gw":"10.0.0.1"}]}`
	hostOnly = `{"cniVersion":"1.0.0","interfaces":[{"name":"veth1"}],"dns":{"domain":"a"}}`
	old      = `{"cniVersion":"0.2.0","ip4":{"ip":"10.2.0.2/24","gateway":"10.2.0.1"}}`
)

// recorded is the status as another process has it from the record.
func (n *node) recorded(name func(delegate.Attached) string) []status.Network {
	n.Helper()
	rs, err := nodeAt(n.TB, n.Dir).Container(n.Context(), "c1")
	if err != nil || len(rs) != 1 {
		n.Fatalf("%d records, %v", len(rs), err)
	}
	first := rs[0].Networks(name)
	nodetest.Equal(n, "asked again", rs[0].Networks(name), first)
	return first
}

func (n *node) wantStatus(name func(delegate.Attached) string, want ...status.Network) {
	n.Helper()
	nodetest.Equal(n.TB, "status", n.recorded(name), want)
}

// Every attachment has an entry, whatever its plugin has printed, in the order of
// attachment. One interface is the default: of the network that the runtime asked for.
func TestStatusHasEveryAttachment(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.printing("bridge", full)
	n.printing("macvlan", hostOnly)
	n.printing("ipvlan", old)
	n.printing("tuning", `{"cniVersion":"1.1.0"}`)
	plan := Plan(
		attachment(nodetest.Network("blue", "bridge"), "c1", "eth0"),
		attachment(nodetest.Network("red", "macvlan"), "c1", "net1"),
		attachment(nodetest.Parse(`{"cniVersion":"0.2.0","name":"old","type":"ipvlan"}`), "c1", "net2"),
		attachment(nodetest.Network("green", "tuning"), "c1", "net3"),
	)
	want := []status.Network{
		{Name: "blue", Interface: "eth0", MAC: "02:00:00:00:00:02", MTU: 1400, IPs: []string{"10.0.0.2"}, Gateway: []string{"10.0.0.1"}, Default: true},
		{Name: "blue", Interface: "eth0.7", IPs: []string{"10.7.0.2"}},
		{Name: "red"},
		{Name: "old", Interface: "net2", IPs: []string{"10.2.0.2"}},
		{Name: "green"},
	}
	want[2].DNS.Domain = "a"
	reported := false
	_, err := n.Add(t.Context(), eth0, Transaction{Plan: plan, Report: func(_ context.Context, added []delegate.Attached) error {
		reported = true
		n.wantStatus(nil, want...)
		composed := Record{Key: eth0, State: scratch.Added, Attached: added}
		nodetest.Equal(t, "of what was added", composed.Networks(nil), want)
		return nil
	}})
	if err != nil || !reported {
		t.Fatal(err)
	}
	n.wantStatus(nil, want...)
	named := slices.Clone(want)
	for i := range named {
		named[i].Name = "ns/" + named[i].Name
	}
	n.wantStatus(func(a delegate.Attached) string { return "ns/" + a.Network.Name() }, named...)
}

// The status is of what the container can use: nothing while it is being attached or
// detached, and no network that is half attached.
func TestStatusLeavesOutWhatIsNotWhole(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.On("ADD macvlan", func(context.Context, delegatetest.Call) error {
		n.wantStatus(nil)
		return nil
	})
	n.add(eth0)
	both := []status.Network{{Name: "blue", Default: true}, {Name: "red"}} // whose plugins have made no interface
	n.wantStatus(nil, both...)
	n.On("ADD ipvlan", func(context.Context, delegatetest.Call) error {
		n.wantStatus(nil, both...)
		return nil
	})
	n.attach()
	n.wantStatus(nil, slices.Concat(both, []status.Network{{Name: "green"}})...)
	nodetest.OK(t, n.Detach(t.Context(), eth0, "hot0"))
	n.wantStatus(nil, both...)
	n.FailOn("DEL bridge", 100)
	if err := n.Del(t.Context(), eth0, Removal{}); err == nil {
		t.Error("Del succeeded")
	}
	n.wantStatus(nil)
}

// What was adopted may have no result, and a result may be of no known version.
func TestStatusOfResultsThatCannotBeRead(t *testing.T) {
	t.Parallel()
	blue, red := attachment(nodetest.Network("blue", "bridge"), "c1", "eth0"), attachment(nodetest.Network("red", "macvlan"), "c1", "net1")
	r := Record{Key: eth0, State: scratch.Added, Attached: []delegate.Attached{{Attachment: blue}, {Attachment: red, Result: raw(`{"cniVersion":"9.9.9","ips":7}`)}}}
	want := []status.Network{{Name: "blue", Interface: "eth0", Default: true}, {Name: "red", Interface: "net1"}}
	nodetest.Equal(t, "", r.Networks(nil), want)
}

// Package examples/nri records attachments beside the interface of the runtime.
func TestStatusWithoutAPrimaryHasNoDefault(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.printing("macvlan", strings.ReplaceAll(full, "eth0", "net1"))
	n.mustAdd(eth0, Transaction{Plan: Plan(attachment(nodetest.Network("red", "macvlan"), "c1", "net1"))})
	for _, s := range n.recorded(nil) {
		if s.Default {
			t.Errorf("%+v", s)
		}
	}
	if got := (Record{}).Networks(nil); got != nil {
		t.Errorf("of nothing: %+v", got)
	}
}

// STATUS tries what an ADD does first: it is an error if nothing can be written in the
// directory of the records, and no file is left or touched.
func TestStatusTriesToWrite(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	for range 2 {
		nodetest.OK(t, n.Status(t.Context(), nil))
	}
	nodetest.Equal(t, "left", files(t, n.Dir), nil)
	n.add(eth0)
	before := n.files()
	nodetest.OK(t, os.WriteFile(filepath.Join(n.Dir, ".tmp-try"), []byte("of one that was killed"), 0o600))
	nodetest.OK(t, n.Status(t.Context(), []netconf.Network{nodetest.Network("blue", "bridge")}))
	nodetest.Equal(t, "files", n.files(), before)
	nodetest.OK(t, os.Mkdir(filepath.Join(n.Dir, ".tmp-try"), 0o700))
	n.Trace()
	err := n.Status(t.Context(), []netconf.Network{nodetest.Network("blue", "bridge")})
	nodetest.Code(t, err, types.ErrIOFailure)
	nodetest.Says(t, err, n.Dir)
	n.WantTrace()

	file := filepath.Join(t.TempDir(), "file")
	nodetest.OK(t, os.WriteFile(file, nil, 0o600))
	err = (&Manager{machine: &fileMachine{}, Dir: file}).Status(t.Context(), nil)
	nodetest.Code(t, err, types.ErrIOFailure)
	nodetest.Says(t, err, file)
}
