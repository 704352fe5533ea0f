package lifecycle

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	gocmp "github.com/google/go-cmp/cmp"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/delegatetest"
	"github.com/metacni/metacni/internal/bounds"
	nodetest "github.com/metacni/metacni/internal/test/node"
	"github.com/metacni/metacni/netconf"
	"github.com/metacni/metacni/scratch"
	"github.com/metacni/metacni/status"
)

// The first plugin finds everything on disk, readable by another process. DEL and CHECK send what
// ADD sent, to the byte, whatever the configuration has become.
func TestRecordedBeforeTheFirstPlugin(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	const conf = `{"type":"bridge","n":9007199254740993,"f":1.50,"s":"<&>é","nested":{"z":[1e3,{"a":null}]},"capabilities":{"mac":true}}`
	as := []delegate.Attachment{
		{
			Network:     nodetest.Parse(`{"cniVersion":"1.1.0","name":"blue","keep":1.50,"plugins":[` + conf + `]}`),
			ContainerID: "c1", NetNS: newNetNS(t), IfName: "eth0", Args: "IgnoreUnknown=1;A=<&>", Origin: raw(`{"n":12345678901234567890,"text":"<&>"}`),
			CapabilityArgs: map[string]raw{"mac": raw(`"02:00:00:00:00:09"`), "big": raw(`{"n":1e400}`)},
		},
		attachment(nodetest.Network("red", "macvlan"), "c1", "net0"),
	}
	seen := 0
	n.On("ADD bridge", func(context.Context, delegatetest.Invocation) error {
		for r, err := range nodeAt(t, n.Dir).Records(t.Context()) {
			nodetest.OK(t, err)
			seen++
			nodetest.Equal(t, "key", r.Key, eth0)
			nodetest.Equal(t, "state", r.State, scratch.Planned)
			nodetest.Equal(t, "recorded", r.Attached, []delegate.Attached{{Attachment: as[0]}, {Attachment: as[1]}}, gocmp.Comparer(netconf.Network.Equal))
		}
		return nil
	})
	n.mustAdd(eth0, Transaction{Plan: Plan(as...)})
	nodetest.Equal(t, "records seen by the plugin", seen, 1)
	n.wantRecords("c1/eth0 added")
	nodetest.OK(t, n.Check(t.Context(), eth0, ""))
	n.del(eth0)
	sent := func(verb string) (c delegatetest.Invocation, keys map[string]raw) {
		c = n.Last(verb + " bridge")
		nodetest.OK(t, json.Unmarshal(c.Stdin, &keys))
		return c, keys
	}
	add, want := sent("ADD")
	nodetest.Equal(t, "ADD is sent", []string{string(want["n"]), string(want["f"])}, []string{"9007199254740993", "1.50"})
	for _, verb := range []string{"CHECK", "DEL"} {
		c, got := sent(verb)
		nodetest.Equal(t, verb+" has the result", got["prevResult"] != nil, true)
		delete(got, "prevResult")
		nodetest.Equal(t, verb+" is sent", got, want)
		nodetest.Equal(t, verb, []string{c.NetNS, c.IfName, c.Args, c.ContainerID}, []string{add.NetNS, add.IfName, add.Args, add.ContainerID})
	}
	n.wantNothing()
}

type raw = json.RawMessage

// crash makes an ADD of n die at a call of a plugin or at "report". A goroutine that dies leaves what a killed process leaves; other tests kill
// processes.
func (n *node) crash(at string, k scratch.Key) {
	n.Helper()
	n.On(at, func(context.Context, delegatetest.Invocation) error { runtime.Goexit(); return nil })
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
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t)
			nodetest.OK(t, spoil(n.Dir))
			before := files(t, filepath.Dir(n.Dir))
			nodetest.Code(t, n.verb(t.Context(), "ADD"), 5)
			n.WantTrace()
			nodetest.Equal(t, "files", files(t, filepath.Dir(n.Dir)), before)
		})
	}
}

// What could not be read back, or handed to a DEL, is refused before it is
// written or run.
func TestImpossiblePlansRunNothing(t *testing.T) {
	t.Parallel()
	half, err := netconf.ParsePlugin([]byte(`{"name":"blue","mtu":1}`))
	nodetest.OK(t, err)
	large, err := nodetest.Parse(`{"name":"blue","type":"bridge"}`).EditPlugins(netconf.Set("x", strings.Repeat("x", bounds.Network)))
	nodetest.OK(t, err)
	tooDeep := raw(deep(bounds.Depth + 1))
	for name, tt := range map[string]struct {
		change func(*delegate.Attachment)
		code   uint
		say    string
	}{
		"other container":             {func(a *delegate.Attachment) { a.ContainerID = "c2" }, 7, `network "blue" (net0): planned for another container, c2`},
		"one name twice":              {func(a *delegate.Attachment) { a.IfName = "eth0" }, 7, `network "blue": the interface name is in use, choose another`},
		"no network":                  {func(a *delegate.Attachment) { a.Network = netconf.Network{} }, 7, "missing network name:"},
		"no type":                     {func(a *delegate.Attachment) { a.Network = netconf.Single(half) }, 7, "type"},
		"a path for a name":           {func(a *delegate.Attachment) { a.IfName = "../x" }, 4, "/"},
		"args not UTF-8":              {func(a *delegate.Attachment) { a.Args = "A=\xff" }, 7, `"A=\xff" is not UTF-8`},
		"name not UTF-8":              {func(a *delegate.Attachment) { a.IfName = "e\xff" }, 7, "is not UTF-8"},
		"plugin not there":            {func(a *delegate.Attachment) { a.Network = nodetest.Network("blue", "nowhere") }, 7, `plugin "nowhere"`},
		"an origin that is no JSON":   {func(a *delegate.Attachment) { a.Origin = raw(`{"a":1} 2`) }, 7, "the origin is not JSON"},
		"an origin that is not UTF-8": {func(a *delegate.Attachment) { a.Origin = raw("\"\xff\"") }, 7, "the origin is not JSON"},
		"a deep origin":               {func(a *delegate.Attachment) { a.Origin = tooDeep }, 7, "the origin is nested more deeply than 1000 levels"},
		"an undeclared argument":      {func(a *delegate.Attachment) { a.CapabilityArgs = map[string]raw{"x": tooDeep} }, 7, `capability argument "x" is nested`},
		"an argument that is no JSON": {func(a *delegate.Attachment) { a.CapabilityArgs = map[string]raw{"x": raw("{")} }, 7, `capability argument "x" is not JSON`},
		"a large network":             {func(a *delegate.Attachment) { a.Network = large }, 7, "invalid configuration: larger than 1 MiB"},
		"large arguments":             {func(a *delegate.Attachment) { a.Args = "A=" + strings.Repeat("x", bounds.Record) }, 7, "larger than 16 MiB"},
		"a relative path":             {func(a *delegate.Attachment) { a.Files = []string{"../x"} }, 7, "not an absolute path"},
		"a file name not UTF-8":       {func(a *delegate.Attachment) { a.Files = []string{"/\xff"} }, 7, "is not UTF-8"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t)
			a := attachment(nodetest.Network("blue", "bridge"), "c1", "net0")
			tt.change(&a) // of the second: the first does not run either
			_, err := n.Add(t.Context(), eth0, Transaction{Plan: Plan(attachment(nodetest.Network("red", "macvlan"), "c1", "eth0"), a)})
			nodetest.Code(t, err, tt.code)
			nodetest.Says(t, err, "ADD c1 eth0: ", tt.say)
			n.WantTrace()
			n.wantNothing()
		})
	}
	n := newNode(t)
	for _, plan := range []func(context.Context, []string) ([]delegate.Attachment, error){
		nil, Plan(), func(context.Context, []string) ([]delegate.Attachment, error) {
			return nil, fmt.Errorf("x: %w", ErrPlan)
		},
	} {
		_, err = n.Add(t.Context(), eth0, Transaction{Plan: plan})
		nodetest.Code(t, err, 7)
	}
	n.wantNothing()
}

// Keys that are no keys reach neither a plugin nor the disk, from any verb.
func TestBadKeysAreRefused(t *testing.T) {
	t.Parallel()
	for k, code := range map[scratch.Key]uint{
		key("../../etc", "eth0"): 4,
		key("..", "eth0"):        4,
		key("", "eth0"):          4,
		key("c1", "../e"):        4,
		key("c1", ""):            4,
		{Network: "../x", ContainerID: "c1", IfName: "eth0"}: 7,
		{ContainerID: "c1", IfName: "eth0"}:                  7,
	} {
		n, ctx := newNode(t), t.Context()
		for _, n := range []*node{nodeAt(t, n.Dir+"2"), n} { // also when there is no directory yet
			_, addErr := n.Add(ctx, k, pair(eth0))
			_, attachErr := n.Attach(ctx, k, pair(eth0))
			for _, err := range []error{addErr, attachErr, n.Del(ctx, k, DelRequest{}), n.Check(ctx, k, ""), n.Detach(ctx, k, "net9")} {
				nodetest.Code(t, err, code)
			}
			n.WantTrace()
			n.wantNothing()
		}
	}
}

// The zero Manager fails clearly, it does not succeed at doing nothing.
func TestManagerWithoutADirectoryFails(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.Manager = &Manager{}
	for _, verb := range []string{"ADD", "DEL", "CHECK", "DETACH", "GC"} {
		nodetest.Code(t, n.verb(t.Context(), verb), 5)
	}
	_, err := n.Container(t.Context(), "c1")
	nodetest.Code(t, err, 5)
	// Without an Invoker there are no plugins.
	n.Manager.Dir = n.Dir
	err = n.verb(t.Context(), "ADD")
	nodetest.Code(t, err, 7)
	nodetest.Is(t, err, delegate.ErrPluginNotFound)
}

// An origin is returned by Add, adopted, and kept byte for byte by whatever rewrites the record. No
// plugin sees anything of it.
func TestOriginIsRecordedAsItWasGiven(t *testing.T) {
	t.Parallel()
	const blueOrigin, greenOrigin = `{"kind":"cluster","n":12345678901234567890,"text":"secret<&>"}`, `["secret",1.0]`
	with := func(origin string, t Transaction) Transaction {
		plan := t.Plan
		t.Plan = func(ctx context.Context, taken []string) ([]delegate.Attachment, error) {
			as, err := plan(ctx, taken)
			as[0].Origin = raw(origin)
			return as, err
		}
		return t
	}
	n := newNode(t)
	want := func(want ...string) { // as another process reads them
		t.Helper()
		rs, err := nodeAt(t, n.Dir).Container(t.Context(), "c1")
		nodetest.OK(t, err)
		var got []string
		for _, a := range rs[0].Attached {
			got = append(got, string(a.Origin))
		}
		nodetest.Equal(t, "origins", got, want)
	}
	added, err := n.Add(t.Context(), eth0, with(blueOrigin, pair(eth0)))
	nodetest.OK(t, err)
	nodetest.Equal(t, "returned", string(added[0].Origin), blueOrigin)
	n.mustAttach(eth0, with(greenOrigin, hotplug(eth0)))
	for _, verb := range []string{"CHECK", "GC of none", "DETACH"} {
		nodetest.OK(t, n.verb(t.Context(), verb))
	}
	want(blueOrigin, greenOrigin)
	n.FailOn("DEL ipvlan", 101)
	nodetest.Code(t, n.Del(t.Context(), eth0, DelRequest{}), 101)
	verbs := map[string]bool{}
	for _, c := range n.Exec.Calls() {
		verbs[c.Command] = true
		if seen := fmt.Sprintf("%+v %s", c, c.Stdin); strings.Contains(seen, "secret") {
			t.Errorf("%s: %s", c, seen)
		}
	}
	nodetest.Equal(t, "commands", verbs, map[string]bool{"ADD": true, "CHECK": true, "GC": true, "DEL": true})

	n = newNode(t)
	a := in("/run/netns/c1", attachment(nodetest.Network("blue", "bridge"), "c1", "eth0"))
	a.Origin = raw(blueOrigin)
	n.adopt(Adoption{Key: eth0, Attached: []delegate.Attached{{Attachment: a}}}, true)
	want(blueOrigin)
}

// A record that is whole as a file and makes no sense is damaged as well. One of a version
// that is not known is left alone by every verb. Each says so, and runs nothing.
func TestRecordThatCannotBeReadIsLeftAlone(t *testing.T) {
	t.Parallel()
	const later = "a later version"
	for name, value := range map[string]string{
		later:              "",
		"no delegates":     `{}`,
		"no plugins":       `{"delegates":[{"ifname":"eth0","network":{"name":"n","plugins":[]}}]}`,
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
				text := `{"version":3,"network":"multi","container":"c1","ifname":"eth0","delegates":"elsewhere"}`
				sum := sha256.Sum256([]byte(text))
				nodetest.OK(t, os.WriteFile(n.recordFile(eth0), fmt.Appendf(nil, "%x %s\n", sum[:8], text), 0o600))
			} else {
				n.put(eth0, scratch.Added, time.Time{}, value)
			}
			file, err := os.ReadFile(n.recordFile(eth0))
			nodetest.OK(t, err)
			n.Trace()
			for _, verb := range []string{"ADD", "CHECK", "ATTACH", "DETACH", "DEL"} {
				err := n.verb(t.Context(), verb)
				nodetest.Code(t, err, 5)
				nodetest.Is(t, err, want)
				wantError(t, err, verb, eth0)
			}
			n.wantRecords("c1/eth0 damaged", "c2/eth0 added")
			n.WantTrace()
			k := key("c1", "eth1")
			n.add(k) // others are no worse for it
			nodetest.OK(t, n.Check(t.Context(), k, ""))
			n.del(k)
			now, err := os.ReadFile(n.recordFile(eth0))
			nodetest.OK(t, err)
			nodetest.Equal(t, "file", string(now), string(file))
		})
	}
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

// Whatever stands at any place of a record, each verb succeeds or fails without
// a panic, and runs only what is its own. A record that is damaged stays, and
// nothing runs for it. Any other can be deleted if its plugins are there.
func TestEveryTypeAtEveryPlaceOfARecord(t *testing.T) {
	t.Parallel()
	type shape struct {
		value  string
		change []string
	}
	var all []shape
	for _, v := range nodetest.JSONVariants(t, wholeRecord) {
		all = append(all, shape{v, nil})
	}
	for _, c := range nodetest.JSONVariants(t, wholeChange) {
		all = append(all, shape{wholeRecord, []string{c}})
	}
	runs := map[string]string{"CHECK": "CHECK", "GC of none": "GC", "DETACH": "DEL", "ATTACH": "ADD DEL", "DEL": "DEL"}
	for _, state := range []scratch.State{scratch.Added, scratch.Deleting} {
		t.Run(string(state), func(t *testing.T) {
			t.Parallel()
			for _, tt := range all {
				n := nodeAt(t, fastDir(t))
				n.put(eth0, state, time.Time{}, tt.value, tt.change...)
				file, err := os.ReadFile(n.recordFile(eth0))
				nodetest.OK(t, err)
				_, err = n.store().Get(eth0)
				damaged := errors.Is(err, scratch.ErrCorrupt)
				if err != nil && !damaged || damaged && tt.change != nil {
					t.Fatalf("%s: %v", tt, err)
				}
				_ = n.records()
				for _, verb := range []string{"CHECK", "GC of none", "DETACH", "ATTACH", "DEL"} {
					err := n.verb(t.Context(), verb)
					for _, call := range n.Trace() {
						if command, _, _ := strings.Cut(call, " "); !strings.Contains(runs[verb], command) || damaged {
							t.Errorf("%s of %s ran %s", verb, tt, call)
						}
					}
					switch {
					case damaged && !errors.Is(err, scratch.ErrCorrupt),
						err != nil && strings.Contains(err.Error(), "panic"),
						!damaged && verb == "DEL" && err != nil && !errors.Is(err, delegate.ErrPluginNotFound):
						t.Errorf("%s of %s: %v", verb, tt, err)
					}
				}
				if now, err := os.ReadFile(n.recordFile(eth0)); damaged && (err != nil || string(now) != string(file)) {
					t.Errorf("%s became %s, %v", tt, now, err)
				}
			}
		})
	}
}

// withFiles is pair of eth0 with a file in dir for each attachment, named for its interface, which
// Prepare makes.
func withFiles(dir string) Transaction {
	t := pair(eth0)
	plan := t.Plan
	t.Plan = func(ctx context.Context, taken []string) ([]delegate.Attachment, error) {
		as, err := plan(ctx, taken)
		for i := range as {
			as[i].Files = []string{filepath.Join(dir, as[i].IfName)}
		}
		return as, err
	}
	t.Prepare = prepareFiles
	return t
}

func TestPrepareRunsWhenThePlanIsRecordedAndBeforeItsPlugins(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	tr, prepared := pair(eth0), 0
	tr.Prepare = func(_ context.Context, plan []delegate.Attachment) error {
		if prepared++; prepared > 2 {
			return nil
		}
		n.wantRecords("c1/eth0 planned")
		n.WantTrace()
		if len(plan) != 2 || plan[0].IfName != "eth0" || plan[1].IfName != "net0" {
			t.Errorf("prepared %v", plan)
		}
		return types.NewError(types.ErrIOFailure, "no space", "")
	}
	_, err := n.Add(t.Context(), eth0, tr)
	nodetest.Code(t, err, types.ErrIOFailure)
	n.WantTrace()
	n.wantNothing()
	tr.Next = func(context.Context, error) ([]delegate.Attachment, error) {
		return []delegate.Attachment{attachment(nodetest.Network("green", "ipvlan"), "c1", "eth0")}, nil
	}
	n.mustAdd(eth0, tr)
	n.WantTrace("ADD ipvlan eth0")
	nodetest.Equal(t, "prepared", prepared, 3)
}

// A file that cannot be removed must not keep the runtime from removing the container. If the
// record cannot say that only a file is left, DEL fails: a later one would run the plugins again,
// and what they have freed may belong to another container.
func TestAFileThatCannotBeRemovedIsTriedAgain(t *testing.T) {
	t.Parallel()
	for _, full := range []bool{false, true} {
		n, dir := newNode(t), t.TempDir()
		n.mustAdd(eth0, withFiles(dir))
		file := filepath.Join(dir, "net0")
		nodetest.OK(t, errors.Join(os.Remove(file), os.MkdirAll(filepath.Join(file, "x"), 0o700)))
		if full {
			room := n.fullDisk()
			if n.Del(t.Context(), eth0, DelRequest{}) == nil {
				t.Error("success on a full disk")
			}
			n.wantRecords("c1/eth0 added")
			room()
		}
		n.del(eth0)
		n.wantRecords("c1/eth0 deleting")
		unlink(t, filepath.Join(file, "x"))
		n.Trace()
		n.del(eth0)
		n.WantTrace()
		n.wantNothing()
		nodetest.Equal(t, "files", files(t, dir), nil)
	}
}

// The record of an ADD that has failed stays while one of its files cannot be removed:
// only the record knows that the file is there.
func TestFailedAddKeepsTheRecordOfAFileThatCannotBeRemoved(t *testing.T) {
	t.Parallel()
	no := types.NewError(101, "no", "")
	for _, prepareErr := range []error{nil, no} { // a plugin fails, or Prepare
		n, dir := newNode(t), t.TempDir()
		n.FailOn("ADD macvlan", 101)
		tr := withFiles(dir)
		tr.Prepare = func(ctx context.Context, plan []delegate.Attachment) error {
			return errors.Join(prepareErr, prepareFiles(ctx, plan[:1]), os.MkdirAll(plan[1].Files[0]+"/x", 0o700))
		}
		_, err := n.Add(t.Context(), eth0, tr)
		nodetest.Code(t, err, 101)
		nodetest.Says(t, err, "net0", "not empty")
		unlink(t, filepath.Join(dir, "net0", "x"))
		n.Trace()
		n.del(eth0)
		n.WantTrace()
		n.wantNothing()
		nodetest.Equal(t, "files", files(t, dir), nil)
	}
}

func TestFilesAreThoseOfTheNode(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.Root = t.TempDir()
	file := filepath.Join(n.Root, "run", "eth0")
	nodetest.OK(t, errors.Join(os.MkdirAll(filepath.Dir(file), 0o700), os.Symlink("/run", filepath.Join(n.Root, "var-run"))))
	write(t, file)
	a := attachment(nodetest.Network("blue", "bridge"), "c1", "eth0")
	a.Files = []string{"/var-run/eth0"}
	for range 2 { // the second time there is no file
		n.mustAdd(eth0, Transaction{Plan: Plan(a)})
		n.del(eth0)
		nodetest.Equal(t, "the file is there", exists(file), false)
	}
	n.wantNothing()
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
	other := nodeAt(t, n.Dir)
	nodetest.OK(t, other.Check(t.Context(), eth0, ""))
	other.del(eth0)
	other.WantTrace("CHECK bridge eth0", "DEL bridge eth0")
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
	n.WantTrace("ADD bridge net0", "ADD bridge net1", "DEL bridge net1", "DEL bridge net0")
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

// wantStatus wants the record of eth0 to have this status, as another process reads it.
func (n *node) wantStatus(name func(delegate.Attached) string, want ...status.Network) {
	n.Helper()
	rs, err := nodeAt(n.TB, n.Dir).Container(n.Context(), "c1")
	nodetest.OK(n, err)
	for range 2 { // the second time from memory
		nodetest.Equal(n.TB, "status", rs[0].Networks(name), want)
	}
}

// Every attachment has an entry, whatever its plugin has printed, in the order of
// attachment. One interface is the default: of the network that the runtime asked for.
func TestStatusHasEveryAttachment(t *testing.T) {
	t.Parallel()
	const full = `{"cniVersion":"1.1.0","interfaces":[{"name":"br0"},{"name":"eth0","mac":"02:00:00:00:00:02","mtu":1400,"sandbox":"/ns"},{"name":"eth0.7","sandbox":"/ns"}],
		"ips":[{"address":"10.0.0.2/24","gateway":"10.0.0.1","interface":1},{"address":"10.7.0.2/24","gateway":"10.7.0.1","interface":2}],"routes":[{"dst":"0.0.0.0/0","gw":"10.0.0.1"}]}`
	n := newNode(t)
	n.printing("bridge", full)
	n.printing("macvlan", `{"cniVersion":"1.0.0","interfaces":[{"name":"veth1"}],"dns":{"domain":"a"}}`)
	n.printing("ipvlan", `{"cniVersion":"0.2.0","ip4":{"ip":"10.2.0.2/24","gateway":"10.2.0.1"}}`)
	n.printing("tuning", `{"cniVersion":"1.1.0"}`)
	as := []delegate.Attachment{
		attachment(nodetest.Network("blue", "bridge"), "c1", "eth0"),
		attachment(nodetest.Network("red", "macvlan"), "c1", "net1"),
		attachment(nodetest.Parse(`{"cniVersion":"0.2.0","name":"old","type":"ipvlan"}`), "c1", "net2"),
		attachment(nodetest.Network("green", "tuning"), "c1", "net3"),
	}
	want := []status.Network{
		{Name: "blue", Interface: "eth0", MAC: "02:00:00:00:00:02", MTU: 1400, IPs: []string{"10.0.0.2"}, Gateway: []string{"10.0.0.1"}, Default: true},
		{Name: "blue", Interface: "eth0.7", IPs: []string{"10.7.0.2"}},
		{Name: "red"},
		{Name: "old", Interface: "net2", IPs: []string{"10.2.0.2"}},
		{Name: "green"},
	}
	want[2].DNS.Domain = "a"
	n.mustAdd(eth0, Transaction{Plan: Plan(as...), Report: func(_ context.Context, added []delegate.Attached) error {
		n.wantStatus(nil, want...)
		nodetest.Equal(t, "of what was added", AddRecord{Key: eth0, State: scratch.Added, Attached: added}.Networks(nil), want)
		return nil
	}})
	n.wantStatus(nil, want...)
	for i := range want {
		want[i].Name = "ns/" + want[i].Name
	}
	n.wantStatus(func(a delegate.Attached) string { return "ns/" + a.Network.Name() }, want...)

	// Package examples/nri records attachments beside the interface of the runtime: none is the default.
	n.del(eth0)
	n.mustAdd(eth0, Transaction{Plan: Plan(as[1:2]...)})
	want[2].Name, want[2].Default = "red", false
	n.wantStatus(nil, want[2])
	nodetest.Equal(t, "of nothing", AddRecord{}.Networks(nil), nil)

	// What was adopted may have no result, and a result may be of no known version.
	r := AddRecord{Key: eth0, State: scratch.Added, Attached: []delegate.Attached{{Attachment: as[0]}, {Attachment: as[1], Result: raw(`{"cniVersion":"9.9.9","ips":7}`)}}}
	nodetest.Equal(t, "without results", r.Networks(nil), []status.Network{{Name: "blue", Interface: "eth0", Default: true}, {Name: "red", Interface: "net1"}})
}

// The status is of what the container can use: nothing while it is being attached or
// detached, and no network that is half attached.
func TestStatusLeavesOutWhatIsNotWhole(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.On("ADD macvlan", func(context.Context, delegatetest.Invocation) error { n.wantStatus(nil); return nil })
	n.add(eth0)
	both := []status.Network{{Name: "blue", Default: true}, {Name: "red"}} // whose plugins have made no interface
	n.On("ADD ipvlan", func(context.Context, delegatetest.Invocation) error { n.wantStatus(nil, both...); return nil })
	n.wantStatus(nil, both...)
	n.attach()
	n.wantStatus(nil, append(both, status.Network{Name: "green"})...)
	n.halfDelete(eth0)
	n.wantStatus(nil)
}

// STATUS asks each network, and stops at the first that is not ready. Before, it tries what an ADD
// does first: it is an error if nothing can be written in the directory of the records, and no file
// is left or touched.
func TestStatusTriesToWrite(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	both := []netconf.Network{nodetest.Network("blue", "bridge"), nodetest.Network("red", "macvlan")}
	nodetest.OK(t, n.Status(t.Context(), both))
	n.wantNothing()
	n.WantTrace("STATUS bridge", "STATUS macvlan")
	n.FailOn("STATUS bridge", 50)
	nodetest.Code(t, n.Status(t.Context(), both), 50)
	n.WantTrace("STATUS bridge")
	n.add(eth0)
	before := n.files()
	try := filepath.Join(n.Dir, ".tmp-try")
	write(t, try) // of one that was killed
	nodetest.OK(t, n.Status(t.Context(), nil))
	nodetest.Equal(t, "files", n.files(), before)
	nodetest.OK(t, os.Mkdir(try, 0o700))
	n.Trace()
	nodetest.Fails(t, n.Status(t.Context(), both), types.ErrIOFailure, n.Dir)
	n.WantTrace()
	n.Manager.Dir = n.recordFile(eth0) // a file
	nodetest.Fails(t, n.Status(t.Context(), nil), types.ErrIOFailure, n.Manager.Dir)
}

// situations returns the records in a file of testdata/formats, by their names. Each is the text
// that a release has written when it was killed there, or when plugins failed.
func situations(t *testing.T, file string) map[string]string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", "formats", file))
	nodetest.OK(t, err)
	all := make(map[string]string)
	for part := range strings.SplitSeq(strings.TrimPrefix(string(text), "-- "), "\n-- ") {
		name, lines, _ := strings.Cut(part, " --\n")
		all[name] = lines
	}
	return all
}

// Records of every release that wrote version 2 are read, and mean what they meant:
//
//   - half.txt: an entry that is half done has "half" (commit 30411940, 2026-11-22). It may be being
//     attached, or undone, or detached; whether it was ever attached is not recorded.
//   - new.txt: "half", and "new" if the entry never was attached (until 2026-11-25).
//   - state.txt: the entry has a "state" (since then).
//
// Without "new", an entry that no plugin or not the last one has completed was never attached,
// unless it was adopted. One that all plugins have completed is taken for attached, as that
// release itself took it: its DEL must succeed.
func TestRecordsOfEarlierReleasesAreRead(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]struct{ state, half, del string }{
		"adding":                {"planned: eth0 planned, net0 planned", "", "DEL macvlan net0, DEL tuning eth0, DEL bridge eth0"},
		"add failed":            {"leftover: eth0 leftover, net0 leftover", "deleting: eth0 deleting, net0 deleting", "DEL bridge eth0"},
		"added":                 {"added: eth0 added, net0 added", "", "DEL macvlan net0, DEL tuning eth0, DEL bridge eth0"},
		"deleting":              {"deleting: eth0 deleting, net0 deleting", "", "DEL bridge eth0"},
		"attaching":             {"partial: eth0 added, net0 added, hot0 planned", "", "DEL tuning hot0, DEL ipvlan hot0, DEL macvlan net0, DEL tuning eth0, DEL bridge eth0"},
		"attaching, unfinished": {"partial: eth0 added, net0 added, hot0 planned", "", "DEL tuning hot0, DEL ipvlan hot0, DEL macvlan net0, DEL tuning eth0, DEL bridge eth0"},
		"attaching failed":      {"partial: eth0 added, net0 added, hot0 leftover", "", "DEL ipvlan hot0, DEL macvlan net0, DEL tuning eth0, DEL bridge eth0"},
		"attached, refused":     {"partial: eth0 added, net0 added, hot0 leftover", "partial: eth0 added, net0 added, hot0 deleting", "DEL ipvlan hot0, DEL macvlan net0, DEL tuning eth0, DEL bridge eth0"},
		"detaching":             {"partial: eth0 added, net0 added, hot0 deleting", "", "DEL ipvlan hot0, DEL macvlan net0, DEL tuning eth0, DEL bridge eth0"},
		"del failed":            {"deleting: eth0 deleting, net0 deleting, hot0 deleting", "", "DEL ipvlan hot0, DEL bridge eth0"},
		"adopted":               {"added: eth0 added, net0 added", "", "DEL macvlan net0, DEL bridge eth0"},
		"adopted, detaching":    {"partial: eth0 added, net0 deleting", "", "DEL macvlan net0, DEL bridge eth0"},
	} {
		for _, form := range []string{"half", "new", "state"} {
			t.Run(name+"/"+form, func(t *testing.T) {
				t.Parallel()
				n := newNode(t)
				nodetest.OK(t, os.MkdirAll(n.Dir, 0o700))
				nodetest.OK(t, os.WriteFile(n.recordFile(eth0), []byte(situations(t, form+".txt")[name]), 0o600))
				r, err := n.store().Get(eth0)
				nodetest.OK(t, err)
				wanted := want.state
				if form == "half" {
					wanted = cmp.Or(want.half, want.state)
				}
				nodetest.Equal(t, "read", meaning(r), wanted)
				read := n.record(r)
				for i, e := range r.Value.Delegates {
					nodetest.Equal(t, e.IfName+" is whole", read.Whole(i), r.State.Attached() && e.state(r.State) == scratch.Added)
				}

				n.del(eth0)
				n.WantTrace(strings.Split(want.del, ", ")...)
				n.wantNothing()
			})
		}
	}
}

// meaning returns the state of r, and of each of its attachments.
func meaning(r scratch.Record[record]) string {
	var all []string
	for _, e := range r.Value.Delegates {
		all = append(all, e.IfName+" "+string(e.state(r.State)))
	}
	return string(r.State) + ": " + strings.Join(all, ", ")
}

// A state that this release does not know says nothing that it could act on: the record is
// damaged, and no other is.
func TestUnknownStateHarmsItsOwnRecord(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.add(key("c2", "eth0"))
	for name, text := range situations(t, "state.txt") {
		lines := strings.Split(strings.TrimSpace(text), "\n")
		whole := lines[len(lines)-1]
		later := strings.Replace(whole, `"state":"deleting"}`, `"state":"resting"}`, 1)
		if name != "detaching" && name != "adopted, detaching" {
			continue
		}
		sum := sha256.Sum256([]byte(later[17:]))
		nodetest.OK(t, os.WriteFile(n.recordFile(eth0), []byte(hex.EncodeToString(sum[:8])+later[16:]+"\n"), 0o600))
		n.wantRecords("c1/eth0 damaged", "c2/eth0 added")
		nodetest.Fails(t, n.Del(t.Context(), eth0, DelRequest{}), 5, `unknown state "resting"`)
		n.wantRecords("c1/eth0 damaged", "c2/eth0 added")
		nodetest.OK(t, n.forget(eth0))
	}
	n.del(key("c2", "eth0"))
	n.wantNothing()
}

// took are how long the plugins of a slow node take.
func took() map[string]time.Duration {
	return map[string]time.Duration{"bridge": 30 * time.Millisecond, "tuning": 5 * time.Millisecond, "macvlan": 2 * time.Second, "ipvlan": time.Millisecond}
}

// slowNode is a node whose plugins take their time, and what its Timed is told. Everything
// else takes none in a bubble of synctest.
func slowNode(t *testing.T) (*node, *nodetest.Notes[Timing]) {
	t.Helper()
	n := newNode(t)
	for typ, d := range took() {
		n.On("ADD "+typ, func(context.Context, delegatetest.Invocation) error { time.Sleep(d); return nil })
		n.On("DEL "+typ, func(context.Context, delegatetest.Invocation) error { time.Sleep(d); return nil })
	}
	told := new(nodetest.Notes[Timing])
	n.Timed = told.Note
	return n, told
}

// pluginTime is the time of a plugin of slowNode.
func pluginTime(command delegate.Command, plugin, network, ifname string) PluginTime {
	return PluginTime{command, plugin, network, ifname, took()[plugin]}
}

// pairTimes are the plugins of pair.
func pairTimes() []PluginTime {
	return []PluginTime{
		pluginTime("ADD", "bridge", "blue", "eth0"), pluginTime("ADD", "tuning", "blue", "eth0"), pluginTime("ADD", "macvlan", "red", "net0"),
	}
}

func TestTimingIsRecordedAndTold(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n, told := slowNode(t)
		// timing wants this in the record, and to have been told this.
		timing := func(what string, recorded Timing, tell ...Timing) {
			t.Helper()
			rs, err := n.Container(t.Context(), "c1")
			nodetest.OK(t, err)
			nodetest.Equal(t, what, rs[0].Timing(), recorded)
			nodetest.Equal(t, what+" told", told.Taken(), tell)
		}
		l, err := n.store().Lock(t.Context(), "c1")
		nodetest.OK(t, err)
		time.AfterFunc(time.Second, func() { _ = l.Unlock() })
		start := time.Now()
		n.add(eth0)
		whole := time.Since(start)
		added := Timing{Whole: whole, Lock: whole - 2035*time.Millisecond, Plugins: pairTimes()}
		timing("ADD", added, added)
		if added.Lock < time.Second {
			t.Errorf("the lock took %s", added.Lock)
		}
		nodetest.Is(t, n.verb(t.Context(), "ADD"), ErrAdded)
		timing("refused ADD", added, Timing{})
		n.attach()
		attached := Timing{Whole: time.Millisecond, Plugins: []PluginTime{pluginTime("ADD", "ipvlan", "green", "hot0")}}
		timing("Attach", attached, attached)
		nodetest.OK(t, n.Detach(t.Context(), eth0, "hot0"))
		timing("Detach", attached)

		// A GC that runs plugins holds up what records something.
		dir, err := n.lockDir(t.Context(), true)
		nodetest.OK(t, err)
		time.AfterFunc(time.Second, func() { unlockDir(dir) })
		n.attach()
		if got := told.Taken()[0]; got.Record < time.Second || got.Whole != got.Record+time.Millisecond {
			t.Errorf("told %v", got)
		}
	})
}

// An ADD that fails tells where its time went, undo and failed plugins included.
func TestTimingOfAnADDThatFails(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n, told := slowNode(t)
		n.On("ADD macvlan", func(context.Context, delegatetest.Invocation) error {
			time.Sleep(time.Second)
			return types.NewError(101, "no", "")
		})
		nodetest.Code(t, n.verb(t.Context(), "ADD"), 101)
		failed := pluginTime("ADD", "macvlan", "red", "net0")
		failed.Took = time.Second
		nodetest.Equal(t, "told", told.Taken(), []Timing{{Whole: 3070 * time.Millisecond, Plugins: append(pairTimes()[:2:2], failed,
			pluginTime("DEL", "macvlan", "red", "net0"), pluginTime("DEL", "tuning", "blue", "eth0"), pluginTime("DEL", "bridge", "blue", "eth0"))}})
		n.wantNothing()
	})
}

// Plugins that run at once are measured one by one, in the order in which they ended.
func TestTimingOfParallelPlugins(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n, told := slowNode(t)
		n.Invoker.Parallel = 8
		n.mustAdd(eth0, Transaction{Plan: Plan(
			attachment(nodetest.Network("first", "ipvlan"), "c1", "eth0"),
			attachment(nodetest.Network("slow", "macvlan"), "c1", "net1"),
			attachment(nodetest.Network("quick", "tuning"), "c1", "net2"),
		)})
		nodetest.Equal(t, "told", told.Taken(), []Timing{{Whole: 2001 * time.Millisecond, Plugins: []PluginTime{
			pluginTime("ADD", "ipvlan", "first", "eth0"), pluginTime("ADD", "tuning", "quick", "net2"), pluginTime("ADD", "macvlan", "slow", "net1"),
		}}})
	})
}

// However many plans are tried, a Timing stays small.
func TestTimingKeepsSoManyPlugins(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	ctx, finish := n.begin(t.Context(), eth0)
	defer finish()
	for range maxPlugins + 1 {
		_, ended := n.timed(ctx).Observer(ctx, delegate.Event{})
		ended(nil)
	}
	nodetest.Equal(t, "plugins", len(n.clock(ctx).now().Plugins), maxPlugins)
}

// What was adopted has no times, until something is attached to it.
func TestTimingOfWhatWasAdopted(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.adopt(n.foreign(eth0, newNetNS(t)), true)
	file, err := os.ReadFile(n.recordFile(eth0))
	nodetest.OK(t, err)
	nodetest.Equal(t, "times are recorded", strings.Contains(string(file), "timing"), false)
	n.reconcile(keep("ipvlan"))
	rs, err := n.Container(t.Context(), "c1")
	nodetest.OK(t, err)
	nodetest.Equal(t, "plugins", len(rs[0].Timing().Plugins), 1)
}

// An inner Manager, which a plugin calls with its context, is measured as one invocation.
func TestTimingOfAManagerInAManager(t *testing.T) {
	t.Parallel()
	outer, inner := newNode(t), newNode(t)
	var told Timing
	outer.Timed = func(t Timing) { told = t }
	inner.add(key("c1", "eth1"))
	outer.On("ADD bridge", func(ctx context.Context, _ delegatetest.Invocation) error {
		return inner.Del(ctx, key("c1", "eth1"), DelRequest{})
	})
	outer.add(eth0)
	nodetest.Equal(t, "plugins", len(told.Plugins), 3)
}

// The text of a log has no configuration.
func TestTimingInALog(t *testing.T) {
	t.Parallel()
	got := Timing{Whole: time.Minute, Lock: time.Second, Record: 2 * time.Millisecond, Plugins: pairTimes()[1:]}.LogValue().String()
	nodetest.Equal(t, "log", got, "[lock=1s record=2ms plugins=ADD tuning blue eth0 5ms, ADD macvlan red net0 2s]")
}

// Times that are not as they should be harm nothing else of a record.
func TestTimingThatIsWrongIsNotKnown(t *testing.T) {
	t.Parallel()
	for _, wrong := range []string{`"long"`, `null`, `{"whole":"1s"}`, `{"lock":1e99}`} {
		n := newNode(t)
		n.put(eth0, scratch.Added, time.Time{}, `{"timing":`+wrong+`,`+strings.TrimPrefix(wholeRecord, "{"))
		rs, err := n.Container(t.Context(), "c1")
		nodetest.OK(t, err)
		nodetest.Equal(t, wrong, rs[0].Timing(), Timing{})
		n.del(eth0)
		n.wantNothing()
	}
}
