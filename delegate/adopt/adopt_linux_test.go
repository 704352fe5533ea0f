package adopt_test

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/adopt"
	"github.com/metacni/metacni/delegate/delegatetest"
	"github.com/metacni/metacni/delegate/lifecycle"
	nodetest "github.com/metacni/metacni/internal/test/node"
	"github.com/metacni/metacni/netconf"
	"github.com/metacni/metacni/scratch"
	"github.com/metacni/metacni/status"
)

const (
	// cbr is the network of the runtime.
	cbr = `{"cniVersion":"1.0.0","name":"cbr","plugins":[{"type":"bridge","big":9007199254740993},{"capabilities":{"portMappings":true},"type":"portmap"}]}`

	// unseen is a namespace in a directory that is not there.
	unseen = "/no-such-directory/netns/c1"
)

// A world is a node with a runtime, other meta-plugins and ours.
type world struct {
	*nodetest.Node
	node adopt.Node
	life *lifecycle.Manager
}

func newWorld(t testing.TB) *world {
	t.Helper()
	w := &world{Node: nodetest.New(t)}
	for _, p := range []string{"bridge", "portmap", "macvlan", "ipvlan"} {
		w.Exec.Plugins[p] = delegatetest.Result(&types100.Result{
			CNIVersion: "1.0.0",
			Interfaces: []*types100.Interface{{Name: "eth0", Mac: "02:00:00:00:00:01", Sandbox: "/no-such-directory/sandbox"}},
		})
	}
	w.node = adopt.Node{
		Network: "multi", Primary: []string{"cbr"}, Own: []string{"multinet", "multus", "multus-shim"},
		CacheDir: w.Path("cni"), MultusDir: w.Path("multus"),
	}
	w.life = &lifecycle.Manager{Dir: w.Path("state"), Invoker: &delegate.Invoker{Exec: w.Exec}}
	return w
}

// old makes a file one that was written long ago.
func (w *world) old(path string) {
	w.Helper()
	nodetest.OK(w, os.Chtimes(path, time.Time{}, time.Now().Add(-time.Hour)))
}

// exists reports whether a file is there.
func (w *world) exists(name string) bool {
	_, err := os.Lstat(w.Path(name))
	return err == nil
}

// attach attaches a container as a runtime does that uses libcni with the cache
// directory dir. What attached it is forgotten by the fake.
func (w *world) attach(dir, conf string, rt libcni.RuntimeConf) {
	w.Helper()
	list, err := libcni.NetworkConfFromBytes([]byte(conf))
	nodetest.OK(w, err)
	exec := &delegatetest.Exec{Plugins: w.Exec.Plugins}
	_, err = libcni.NewCNIConfigWithCacheDir([]string{"/bin"}, w.Path(dir), exec).AddNetworkList(w.Context(), list, &rt)
	nodetest.OK(w, err)
}

// take takes over the attachments that are found, and returns the outcome of each.
func (w *world) take(found iter.Seq2[lifecycle.Adoption, error]) []string {
	var all []string
	for a, err := range found {
		adopted := false
		if err == nil {
			adopted, err = w.life.Adopt(w.Context(), a)
		}
		s := "recorded"
		if adopted {
			s = "adopted"
		} else if err != nil {
			s = "skipped"
		}
		if a.Key.ContainerID != "" {
			s += " " + a.Key.String()
			for _, attached := range a.Attached {
				s += " " + attached.Network.Name() + ":" + attached.IfName
			}
		}
		if err != nil {
			s += ": " + strings.ReplaceAll(err.Error(), w.Dir, "$DIR")
		}
		all = append(all, s)
	}
	return all
}

// states are the records: "c1/eth0 added".
func (w *world) states() []string {
	w.Helper()
	var all []string
	for r, err := range w.life.Records(w.Context()) {
		nodetest.OK(w, err)
		all = append(all, fmt.Sprintf("%s/%s %s", r.Key.ContainerID, r.Key.IfName, r.State))
	}
	return all
}

// stdin returns the value of a key in the configuration that a call received.
func stdin(t testing.TB, c delegatetest.Invocation, key string) string {
	t.Helper()
	var conf map[string]json.RawMessage
	nodetest.OK(t, json.Unmarshal(c.Stdin, &conf))
	return string(conf[key])
}

// No file makes a reader panic. An attachment that is read from a file can be recorded, or is refused.
func FuzzFiles(f *testing.F) {
	f.Add([]byte(text("cniCacheV1", "c1", cbr, `{"cniVersion":"1.0.0","ips":[{"address":"10.1.0.5/24"}]}`)))
	f.Add([]byte("[" + saved(cbr, "") + "," + saved(storage, `,"ifnameRequest":"x"`) + "]"))
	f.Add([]byte(ofFlannel))
	f.Add([]byte(`[{"Conf":[],"ConfList":5,"Bytes":null}]`))
	f.Fuzz(func(t *testing.T, data []byte) {
		w := newWorld(t)
		w.Write("cni/results/cbr-c1-eth0", string(data))
		w.Write("multus/results/cbr-c1-eth0", string(data))
		w.old(w.Write("multus/c1", string(data)))
		w.Write("flannel/c1", string(data))
		w.take(w.node.Attachments())
		_, _ = w.flannel().Attachment(at(""))
		for _, err := range w.life.Records(t.Context()) {
			nodetest.OK(t, err)
		}
	})
}

// A file that cannot be used is reported by its name, with the reason, and hides no other. It
// is not changed.
func TestBadFilesAreSkippedAndReported(t *testing.T) {
	t.Parallel()
	const result, of = `{"cniVersion":"1.0.0","ips":[]}`, "cni/results/cbr-c1-eth0"
	good, state := text("cniCacheV1", "c1", cbr, result), "["+saved(cbr, "")+"]"
	for _, tt := range []struct {
		name, file, text string
		want             string // in the reason; empty: it is nobody's concern
	}{
		{"empty", of, "", "empty"},
		{"torn", of, good[:len(good)/2], "incomplete"},
		{"null", of, "null", `of kind ""`},
		{"no base64", of, `{"kind":"cniCacheV1","config":"%"}`, "incomplete"},
		{"another version", of, text("cniCacheV2", "c1", cbr, result), `of kind "cniCacheV2"`},
		{"too large", of, good + strings.Repeat(" ", 1<<20), "too large"},
		{"another's name", "cni/results/cbr-c2-eth0", good, "the file name does not match"},
		{"a container that is a path", "cni/results/cbr-..-eth0", text("cniCacheV1", "..", cbr, result), ".."},
		{"no container", "cni/results/cbr--eth0", text("cniCacheV1", "", cbr, result), "containerID"},
		{"no interface", "cni/results/cbr-c1-", strings.Replace(good, `"ifName":"eth0"`, `"ifName":""`, 1), "interface"},
		{"no configuration", of, text("cniCacheV1", "c1", "", result), "JSON"},
		{"no plugins", of, text("cniCacheV1", "c1", `{"name":"cbr"}`, result), "plugins"},
		{"a configuration with a key twice", of, text("cniCacheV1", "c1", `{"name":"cbr","name":"x","type":"bridge"}`, result), "twice"},
		{"of another network inside", of, text("cniCacheV1", "c1", strings.ReplaceAll(cbr, "cbr", "x"), result), `network "x"`},
		{"a result with null in it", of, text("cniCacheV1", "c1", cbr, `{"cniVersion":"1.0.0","interfaces":[null]}`), "cannot decode result"},
		{"a result of a version to come", of, text("cniCacheV1", "c1", cbr, `{"cniVersion":"9.0.0"}`), "9.0.0"},
		{"an entry of another network of the runtime", "cni/results/x-c1-eth0", "", ""},
		{"torn state of Multus", "multus/c1", state[:len(state)-4], "incomplete"},
		{"no networks", "multus/c1", "[]", "no networks"},
		{"null in place of a network", "multus/c1", "[null]", "network 1"},
		{"no network", "multus/c1", "[" + saved(cbr, "") + "," + saved(`{"name":"x"}`, "") + "]", "network 2"},
		{"not a container", "multus/.c1.swp", state, "invalid characters"},
		{"a torn entry of Multus", "multus/results/cbr-c1-eth0", `{"kind":`, "incomplete"},
		{"an entry of Multus of another container", "multus/results/cbr-c1-eth0", text("cniCacheV1", "c3", cbr, "null"), "the file name does not match"},
		{"a directory", "multus/dir/c1", "", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.Write(tt.file, tt.text)
			w.Write("cni/results/cbr-z9-eth0", text("cniCacheV1", "z9", cbr, "null"))
			w.old(w.Write("multus/z8", state))
			var reasons, others []string
			for _, got := range w.take(w.node.Attachments()) {
				if strings.HasPrefix(got, "adopted multi/z") {
					others = append(others, got)
				} else {
					reasons = append(reasons, got)
				}
			}
			nodetest.Equal(t, "others that are taken over", len(others), 2)
			if tt.want == "" {
				nodetest.Equal(t, "reasons", reasons, nil)
			} else if len(reasons) != 1 || !strings.HasPrefix(reasons[0], "skipped: $DIR/"+tt.file+": ") || !strings.Contains(reasons[0], tt.want) {
				t.Errorf("%q, want %q", reasons, tt.want)
			}
			nodetest.Equal(t, "text", w.Read(tt.file), tt.text)
			for _, err := range w.node.Attachments() {
				if code := status.Code(err); err != nil && code != 5 && code != 6 && code != 7 {
					t.Errorf("code %d: %v", code, err)
				}
			}
		})
	}
}

// runtime returns the arguments with which a runtime attaches c1.
func runtime(netns string) libcni.RuntimeConf {
	return libcni.RuntimeConf{
		ContainerID: "c1", NetNS: netns, IfName: "eth0", Args: [][2]string{{"IgnoreUnknown", "1"}, {"K8S_POD_NAME", "p=q"}},
		CapabilityArgs: map[string]any{"portMappings": []any{map[string]any{"hostPort": 80}}},
	}
}

var eth0 = scratch.Key{Network: "multi", ContainerID: "c1", IfName: "eth0"}

// A container that the runtime has attached by libcni is, once taken over, one
// that can be checked and removed, with the configuration, the arguments and the
// result of its ADD.
func TestWhatTheRuntimeAttachedIsCheckedAndRemoved(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.attach("cni", cbr, runtime(unseen))
	w.attach("cni", strings.ReplaceAll(cbr, "cbr", "podman"), runtime(unseen))
	nodetest.Equal(t, "first", w.take(w.node.Attachments()), []string{"adopted multi/c1/eth0 cbr:eth0"})
	nodetest.Equal(t, "again", w.take(w.node.Attachments()), []string{"recorded multi/c1/eth0 cbr:eth0"})
	nodetest.OK(t, w.life.Check(t.Context(), eth0, ""))
	nodetest.OK(t, w.life.Del(t.Context(), eth0, lifecycle.DelRequest{NetNS: unseen}))
	w.WantTrace("CHECK bridge eth0", "CHECK portmap eth0", "DEL portmap eth0", "DEL bridge eth0")
	del := w.Last("DEL portmap")
	nodetest.Equal(t, "name", stdin(t, del, "name"), `"cbr"`)
	nodetest.Equal(t, "arguments", stdin(t, del, "runtimeConfig"), `{"portMappings":[{"hostPort":80}]}`)
	nodetest.Equal(t, "a number", stdin(t, w.Last("DEL bridge"), "big"), "9007199254740993")
	nodetest.Equal(t, "CNI_ARGS", del.Args, "IgnoreUnknown=1;K8S_POD_NAME=p=q")
	nodetest.Contains(t, "prevResult", stdin(t, del, "prevResult"), "02:00:00:00:00:01")
	// What has been deleted is not there to be taken over again.
	nodetest.Equal(t, "after DEL", w.take(w.node.Attachments()), nil)
	nodetest.Equal(t, "entries", w.Files("cni/results"), []string{"podman-c1-eth0"})
	nodetest.Equal(t, "records", w.states(), nil)
}

// Entries of other networks, of meta-plugins and of networks whose name only
// begins alike are nobody's mistake, and not ours to take.
func TestEntriesOfOthersAreLeftAlone(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.Exec.Plugins["multinet"], w.Exec.Plugins["multus"] = w.Exec.Plugins["bridge"], w.Exec.Plugins["bridge"]
	w.node.Primary = []string{"cbr", "ours", "theirs"}
	for name, plugins := range map[string][]string{"podman": {"bridge"}, "cbr-2": {"bridge"}, "ours": {"multinet"}, "theirs": {"bridge", "multus"}} {
		w.attach("cni", asList(w, nodetest.Network(name, plugins...)), runtime(unseen))
	}
	nodetest.Equal(t, "taken", w.take(w.node.Attachments()), nil)
	for _, nowhere := range []string{"", w.Path("absent")} {
		w.node.CacheDir, w.node.MultusDir = nowhere, nowhere
		nodetest.Equal(t, "taken from nowhere", w.take(w.node.Attachments()), nil)
	}
}

func b64(s string) string { return base64.StdEncoding.EncodeToString([]byte(s)) }

// text is an entry as libcni would write it, each part as given.
func text(kind, container, config, result string) string {
	return fmt.Sprintf(`{"kind":%q,"containerId":%q,"config":%q,"ifName":"eth0","networkName":"cbr","netns":%q,"result":%s}`, kind, container, b64(config), unseen, result)
}

// What is no file is neither waited for nor followed.
func TestWhatIsNoFileIsSkipped(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	good := w.Write("elsewhere", text("cniCacheV1", "c1", cbr, "null"))
	dir := w.Path("cni/results")
	nodetest.OK(t, errors.Join(
		os.MkdirAll(filepath.Join(dir, "cbr-dir-eth0"), 0o700),
		syscall.Mkfifo(filepath.Join(dir, "cbr-fifo-eth0"), 0o600),
		os.Symlink(good, filepath.Join(dir, "cbr-c1-eth0")),
	))
	nodetest.Equal(t, "got", w.take(w.node.Attachments()), []string{
		"skipped: $DIR/cni/results/cbr-c1-eth0: not a regular file",
		"skipped: $DIR/cni/results/cbr-fifo-eth0: not a regular file",
	})
	w.Write("cni2/results", "")
	w.node.CacheDir = w.Path("cni2")
	nodetest.Equal(t, "no directory", w.take(w.node.Attachments()), []string{"skipped: $DIR/cni2/results: not a directory"})
}

// libcni before 1.2 did not record the namespace: the result tells it.
func TestNamespaceOfAnOldEntryIsThatOfItsResult(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	rt := runtime("")
	w.attach("cni", cbr, rt)
	for a, err := range w.node.Attachments() {
		if err != nil || a.Attached[0].NetNS != "/no-such-directory/sandbox" || !a.Attached[0].Added {
			t.Errorf("%+v, %v", a, err)
		}
	}
}

// Paths are those of the root: the entries, the namespaces, and what is removed
// with the record.
func TestTakingOverInARoot(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.attach("root/cni", cbr, runtime("/netns/c1"))
	nodetest.OK(t, os.Mkdir(w.Path("root/netns"), 0o700))
	w.node.Root, w.node.CacheDir, w.node.MultusDir = w.Path("root"), "/cni", "/multus"
	w.life.Root = w.node.Root
	nodetest.Equal(t, "got", w.take(w.node.Attachments()), []string{"adopted multi/c1/eth0 cbr:eth0"})
	nodetest.OK(t, w.life.Del(t.Context(), eth0, lifecycle.DelRequest{}))
	nodetest.Equal(t, "the entry is left", w.exists("root/cni/results/cbr-c1-eth0"), false)
}

// One attachment is what the runtime has attached to a primary network, and nothing else.
func TestAttachmentIsThatOfAPrimaryNetwork(t *testing.T) {
	t.Parallel()
	attach := func(conf string, edit func(*libcni.RuntimeConf)) func(*world) {
		return func(w *world) {
			rt := runtime(unseen)
			edit(&rt)
			w.attach("cni", conf, rt)
		}
	}
	as := func(*libcni.RuntimeConf) {}
	for name, tt := range map[string]struct {
		primary []string
		attach  func(w *world)
		want    string // in the error; empty: it is found
	}{
		"the primary network": {[]string{"other", "cbr"}, attach(cbr, as), ""},
		"another network":     {[]string{"cb"}, attach(cbr, as), "not exist"},
		"another interface":   {[]string{"cbr"}, attach(cbr, func(rt *libcni.RuntimeConf) { rt.IfName = "eth1" }), "not exist"},
		"our own network":     {[]string{"cbr"}, attach(strings.ReplaceAll(cbr, "bridge", "multinet"), as), "not exist"},
		"a path as a name":    {[]string{"../results/cbr"}, attach(cbr, as), "not exist"},
		"no cache":            {[]string{"cbr"}, func(w *world) { attach(cbr, as)(w); w.node.CacheDir = "" }, "not exist"},
		"a file that has other names": {[]string{"cbr"}, func(w *world) {
			attach(strings.ReplaceAll(cbr, `"cbr"`, `"x"`), func(rt *libcni.RuntimeConf) { rt.ContainerID = "c1-eth0" })(w)
			w.Write("cni/results/cbr-c1-eth0", w.Read("cni/results/x-c1-eth0-eth0"))
		}, "does not match"},
		"a damaged file": {[]string{"cbr"}, func(w *world) { w.Write("cni/results/cbr-c1-eth0", "{") }, "results/cbr-c1-eth0: incomplete"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.Exec.Plugins["multinet"] = w.Exec.Plugins["bridge"]
			w.node.Primary = tt.primary
			tt.attach(w)
			a, err := w.node.Attachment("c1", "eth0")
			if tt.want == "" {
				nodetest.OK(t, err)
				nodetest.Equal(t, "key", a.Key, eth0)
				nodetest.Equal(t, "sources", a.Sources, []string{w.Path("cni/results/cbr-c1-eth0")})
			} else if err == nil || !strings.Contains(err.Error(), tt.want) || errors.Is(err, fs.ErrNotExist) != (tt.want == "not exist") {
				t.Errorf("err = %v, want %q", err, tt.want)
			}
		})
	}
}

// A path that leads to no namespace is not the container's. One that leads nowhere is kept: another
// process may see the namespace there.
func TestWhatIsNoNamespaceIsNotTheContainers(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	file := w.Write("netns/file", "")
	for path, want := range map[string]string{
		file: "", filepath.Dir(file): "", "/proc/self/ns/uts": "", file + "/x": "",
		unseen: unseen, w.Path("netns/absent"): w.Path("netns/absent"),
	} {
		w.Write("cni/results/cbr-c1-eth0", strings.ReplaceAll(text("cniCacheV1", "c1", cbr, `{"cniVersion":"1.0.0","ips":[{"address":"10.1.0.5/24"}]}`), unseen, path))
		for a, err := range w.node.Attachments() {
			nodetest.OK(t, err)
			nodetest.Equal(t, path, a.Attached[0].NetNS, want)
		}
	}
}

const (
	storage = `{"cniVersion":"1.0.0","name":"storage","type":"macvlan"}`
	fast    = `{"cniVersion":"1.0.0","name":"fast","plugins":[{"type":"ipvlan"}]}`
	ofMulti = `{"cniVersion":"1.0.0","name":"multus-cni-network","plugins":[{"type":"multus-shim"}]}`
)

// saved is one network as Multus saves it, with more keys.
func saved(conf, keys string) string {
	return fmt.Sprintf(`{"Conf":{"name":"x","type":"x","ipam":{},"dns":{}},"ConfList":{"plugins":null},"Name":"ns/x","IsFilterV4Gateway":false,"Bytes":%q%s}`,
		base64.StdEncoding.EncodeToString([]byte(conf)), keys)
}

// multus attaches c1 to networks as Multus does: name of the interface and
// configuration.
func (w *world) multus(networks ...string) {
	w.Helper()
	for i := 0; i < len(networks); i += 2 {
		w.attach("multus", asList(w, nodetest.Parse(networks[i+1])), libcni.RuntimeConf{ContainerID: "c1", NetNS: unseen, IfName: networks[i], Args: [][2]string{{"K", networks[i]}}})
	}
}

// asList is a network as a list of plugins.
func asList(t testing.TB, n netconf.Network) string {
	t.Helper()
	list, err := n.MarshalJSON()
	nodetest.OK(t, err)
	return string(list)
}

// What Multus has attached to a container is one attachment of the runtime's,
// with all its networks in Multus's order, and removed in the opposite one. All
// that others have recorded of it goes with the record.
func TestWhatMultusAttached(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.Write("multus/c1", "["+saved(cbr, "")+","+saved(storage, "")+","+saved(fast, `,"ifnameRequest":"fast0"`)+"]")
	w.multus("eth0", cbr, "net1", storage, "fast0", fast, "late0", strings.Replace(fast, "fast", "late", 1))
	w.ofMulti("multus-cni-network", "eth0")
	w.multusOf("c2", "eth0")

	const all = " multi/c1/eth0 cbr:eth0 storage:net1 fast:fast0 late:late0"
	nodetest.Equal(t, "first", w.take(w.node.Attachments()), []string{"adopted" + all})
	nodetest.Equal(t, "again", w.take(w.node.Attachments()), []string{"recorded" + all})
	nodetest.OK(t, w.life.Check(t.Context(), eth0, ""))
	w.Trace()
	nodetest.OK(t, w.life.Del(t.Context(), eth0, lifecycle.DelRequest{}))
	w.WantTrace("DEL ipvlan late0", "DEL ipvlan fast0", "DEL macvlan net1", "DEL portmap eth0", "DEL bridge eth0")
	for _, c := range w.Exec.Calls() {
		nodetest.Equal(t, c.String(), c.Args, "K="+c.IfName)
		nodetest.Equal(t, c.String()+" has the result", stdin(t, c, "prevResult") != "", true)
	}
	nodetest.Equal(t, "files", w.Files("multus"), []string{"results", "results/cbr-c2-eth0"})
	nodetest.Equal(t, "entries of the runtime", w.Files("cni/results"), nil)
}

func (w *world) multusOf(id, ifname string) {
	w.attach("multus", cbr, libcni.RuntimeConf{ContainerID: id, NetNS: unseen, IfName: ifname})
}

// Which interface the runtime asked for is what it has recorded. Runtimes ask for eth0.
func TestInterfaceOfTheRuntime(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, state string
		attached    []string
		runtime     string // the name of the runtime's interface; empty: nothing is recorded
		want        string
	}{
		{"the runtime's", saved(cbr, ""), []string{"eth7", cbr}, "eth7", "multi/c1/eth7 cbr:eth7"},
		{"none", saved(cbr, ""), nil, "", "multi/c1/eth0 cbr:eth0"},
		{"one network twice", saved(cbr, "") + "," + saved(cbr, ""), []string{"eth7", cbr, "net1", cbr}, "eth7", "multi/c1/eth7 cbr:eth7 cbr:net1"},
		{"renamed by the pod", saved(cbr, `,"ifnameRequest":"x0"`), []string{"x0", cbr}, "eth0", "multi/c1/eth0 cbr:x0"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.old(w.Write("multus/c1", "["+tt.state+"]"))
			w.multus(tt.attached...)
			w.attach("cni", strings.Replace(cbr, "cbr", "other", 1), runtime(unseen)) // not of Multus
			if tt.runtime != "" {
				w.ofMulti("m", tt.runtime)
			}
			nodetest.Equal(t, "got", w.take(w.node.Attachments()), []string{"adopted " + tt.want})
		})
	}
}

// A container that Multus may be attaching is left to it, until that must have
// ended.
func TestMultusMayBeAtWork(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	state := w.Write("multus/c1", "["+saved(cbr, "")+","+saved(storage, "")+"]")
	want := []string{"skipped: $DIR/multus/c1: not all networks are recorded yet: the container may just be attached"}
	nodetest.Equal(t, "before", w.take(w.node.Attachments()), want)
	w.multus("eth0", cbr)
	nodetest.Equal(t, "between", w.take(w.node.Attachments()), want)
	w.old(state)
	nodetest.Equal(t, "after", w.take(w.node.Attachments()), []string{"adopted multi/c1/eth0 cbr:eth0 storage:net1"})
	for r := range w.life.Records(t.Context()) {
		if a := r.Attached[1]; a.NetNS != unseen || a.Args != "K=eth0" || a.Result != nil {
			t.Errorf("%+v", a)
		}
	}
	nodetest.OK(t, w.life.Del(t.Context(), eth0, lifecycle.DelRequest{}))
	w.WantTrace("DEL macvlan net1", "DEL portmap eth0", "DEL bridge eth0")
}

// An entry of Multus's that cannot be understood keeps its container from being
// taken over without it.
func TestUnusableEntryOfMultus(t *testing.T) {
	t.Parallel()
	for network, ifname := range map[string]string{"cbr": "eth0", "late": "late0"} {
		w := newWorld(t)
		w.Write("multus/c1", "["+saved(cbr, "")+"]")
		w.multusOf("c1", "eth0")
		file := "multus/results/" + network + "-c1-" + ifname
		w.Write(file, strings.NewReplacer(`"networkName":"cbr"`, `"networkName":"`+network+`"`, `"eth0"`, `"`+ifname+`"`).Replace(text("cniCacheV1", "c1", "{", "null")))
		got := w.take(w.node.Attachments())
		if len(got) != 1 || !strings.HasPrefix(got[0], "skipped: $DIR/"+file+": ") {
			t.Errorf("%q", got)
		}
	}
}

// A meta-plugin that has taken Multus's place may keep its records in the same
// directory. They are none of Multus's.
func TestRecordsBesideTheStateOfMultus(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.life.Dir = w.node.MultusDir
	w.Write("multus/c1", "["+saved(cbr, "")+"]")
	w.multus("eth0", cbr)
	w.Write("multus/.tmp-1", "x")
	for _, want := range []string{"adopted", "recorded"} {
		nodetest.Equal(t, "got", w.take(w.node.Attachments()), []string{want + " multi/c1/eth0 cbr:eth0"})
	}
	nodetest.OK(t, w.life.Del(t.Context(), eth0, lifecycle.DelRequest{}))
	nodetest.Equal(t, "the state is left", w.exists("multus/c1"), false)
	nodetest.Equal(t, "after DEL", w.take(w.node.Attachments()), nil)
}

// attachOurs attaches c1 to networks as our plugin does.
func (w *world) attachOurs(networks ...string) {
	w.Helper()
	var plan []delegate.Attachment
	for i, ifname := range []string{"eth0", "net1"}[:len(networks)] {
		plan = append(plan, delegate.Attachment{
			Network: nodetest.Parse(networks[i]), ContainerID: "c1", NetNS: unseen, IfName: ifname, Args: "IgnoreUnknown=1;K8S_POD_NAME=p=q;flag",
			CapabilityArgs: map[string]json.RawMessage{"portMappings": []byte(`[{"hostPort":80}]`)},
		})
	}
	_, err := w.life.Add(w.Context(), eth0, lifecycle.Transaction{Plan: lifecycle.Plan(plan...)})
	nodetest.OK(w, err)
	w.Trace()
}

// What is given back is removed by the runtime as if it had attached it: libcni
// finds the configuration, the arguments and the result.
func TestWhatIsGivenBackIsTheRuntimes(t *testing.T) {
	t.Parallel()
	for _, conf := range []string{cbr, `{"cniVersion":"0.4.0","name":"cbr","type":"bridge"}`} {
		w := newWorld(t)
		w.attachOurs(conf, storage)
		dirs := []string{w.Path("cni"), w.Path("cni2")}
		nodetest.OK(t, w.life.Release(t.Context(), eth0, adopt.GiveBack("", dirs...)))
		w.WantTrace("DEL macvlan net1")
		nodetest.Equal(t, "records", w.states(), nil)
		list, err := libcni.NetworkConfFromBytes([]byte(asList(t, nodetest.Parse(conf))))
		nodetest.OK(t, err)
		for _, dir := range dirs {
			exec := &delegatetest.Exec{Plugins: w.Exec.Plugins}
			cni := libcni.NewCNIConfigWithCacheDir([]string{"/bin"}, dir, exec)
			attachments, err := cni.GetCachedAttachments("c1")
			nodetest.OK(t, err)
			nodetest.Equal(t, "cached", attachments, []*libcni.NetworkAttachment{{
				ContainerID: "c1", Network: "cbr", IfName: "eth0", NetNS: unseen, Config: attachments[0].Config,
				CniArgs:        [][2]string{{"IgnoreUnknown", "1"}, {"K8S_POD_NAME", "p=q"}, {"flag", ""}},
				CapabilityArgs: map[string]any{"portMappings": []any{map[string]any{"hostPort": 80.0}}},
			}})
			cached, err := libcni.NetworkConfFromBytes(attachments[0].Config)
			if err != nil || cached.Name != "cbr" || len(cached.Plugins) != len(list.Plugins) || cached.CNIVersion != list.CNIVersion {
				t.Errorf("configuration %s, %v", attachments[0].Config, err)
			}
			rt := &libcni.RuntimeConf{ContainerID: "c1", NetNS: unseen, IfName: "eth0"}
			result, err := cni.GetNetworkListCachedResult(list, rt)
			if err != nil || result == nil {
				t.Errorf("result %v, %v", result, err)
			}
			info, err := os.Stat(dir + "/results/cbr-c1-eth0")
			nodetest.OK(t, err)
			nodetest.Equal(t, "mode", info.Mode(), 0o600)
			nodetest.OK(t, cni.DelNetworkList(t.Context(), list, rt))
			if c := exec.Calls()[0]; c.Command != "DEL" || !strings.Contains(stdin(t, c, "prevResult"), "02:00:00:00:00:01") {
				t.Errorf("%s: %s", c, c.Stdin)
			}
		}
	}
}

// An attachment may have the name of the meta-plugin's own network: its entry is not
// taken for the one that nobody deletes any more.
func TestGivingBackANetworkWithOurName(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ multus, cache, in string }{
		{"", "cni", "cni"}, {"multus", "cni", "multus"}, {"multus", "multus", "multus"}, {"multus", "multus/.", "multus"}, // Multus and the runtime may have the same
	} {
		w := newWorld(t)
		w.attachOurs(`{"cniVersion":"1.0.0","name":"` + eth0.Network + `","type":"bridge"}`)
		multus := ""
		if tt.multus != "" {
			multus = w.node.MultusDir
		}
		nodetest.OK(t, w.life.Release(t.Context(), eth0, adopt.GiveBack(multus, w.Dir+"/"+tt.cache)))
		nodetest.Equal(t, fmt.Sprint(tt, " has the entry"), w.exists(tt.in+"/results/"+eth0.Network+"-c1-eth0"), true)
	}
}

// What cannot be written stays recorded, and in the runtime's cache.
func TestGivingBackThatFails(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.attachOurs(cbr)
	nodetest.OK(t, os.MkdirAll(w.Path("cni/results/cbr-c1-eth0/x"), 0o700)) // in the way
	ours := "cni/results/" + eth0.Network + "-c1-eth0"
	w.Write(ours, "{}")
	for _, dir := range []string{w.Path(ours), w.Path("cni")} {
		if err := w.life.Release(t.Context(), eth0, adopt.GiveBack("", dir)); err == nil {
			t.Errorf("no error of %s", dir)
		}
	}
	nodetest.Equal(t, "the runtime has its entry", w.exists(ours), true)
	nodetest.Equal(t, "records", w.states(), []string{"c1/eth0 added"})
	if err := adopt.GiveBack("", w.Path("cni"))(t.Context(), lifecycle.AddRecord{Key: eth0}); err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Errorf("of nothing: %v", err)
	}
}

// Multus gets its state of the container as well, with what is left: what it
// would do with it is what we do.
func TestGivingBackToMultus(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.attachOurs(cbr, storage)
	w.Write("cni/results/"+eth0.Network+"-c1-eth0", "{}") // the runtime's
	nodetest.OK(t, w.life.Release(t.Context(), eth0, adopt.GiveBack(w.node.MultusDir, w.Path("cni"), w.Path("absent"))))
	nodetest.Equal(t, "entries of the runtime", w.Files("cni/results"), nil)
	w.WantTrace("DEL macvlan net1")
	nodetest.Equal(t, "got", w.take(w.node.Attachments()), []string{"adopted multi/c1/eth0 cbr:eth0"})
	var state []struct {
		Name     string
		ConfList struct {
			Name    string                  `json:"name"`
			Plugins []struct{ Type string } `json:"plugins"`
		}
		Bytes []byte
	}
	nodetest.OK(t, json.Unmarshal([]byte(w.Read("multus/c1")), &state))
	if len(state) != 1 || state[0].Name != "cbr" || len(state[0].ConfList.Plugins) != 2 || !strings.Contains(string(state[0].Bytes), "9007199254740993") {
		t.Errorf("%+v", state)
	}
}

// ofMulti writes the runtime's entry of a network of Multus for c1.
func (w *world) ofMulti(network, ifname string) {
	w.Helper()
	entry := text("cniCacheV1", "c1", strings.ReplaceAll(ofMulti, "multus-cni-network", network), "null")
	w.Write("cni/results/"+network+"-c1-"+ifname, strings.NewReplacer(`"eth0"`, `"`+ifname+`"`, `"networkName":"cbr"`, `"networkName":"`+network+`"`).Replace(entry))
}

// ofFlannel is the configuration that flannel's plugin records.
const ofFlannel = `{"cniVersion":"1.0.0","hairpinMode":true,"ipMasq":false,"ipam":{"type":"host-local"},"isGateway":true,"mtu":1450,"name":"cbr0","type":"bridge"}`

func (w *world) flannel() adopt.Flannel {
	return adopt.Flannel{Dir: w.Path("flannel"), Network: "cbr0"}
}

// at returns the attachment of c1 that a call describes.
func at(result string) delegate.Attached {
	a := delegate.Attached{Attachment: delegate.Attachment{ContainerID: "c1", NetNS: unseen, IfName: "eth0", Args: "A=B"}}
	if result != "" {
		a.Result = json.RawMessage(result)
	}
	return a
}

// What flannel's plugin has attached is removed with the configuration that it
// recorded and the result that the runtime brings.
func TestWhatFlannelAttached(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.Write("flannel/c1", ofFlannel)
	a, err := w.flannel().Attachment(at(`{"cniVersion":"1.0.0","ips":[{"address":"10.1.0.5/24"}]}`))
	nodetest.OK(t, err)
	adopted, err := w.life.Adopt(t.Context(), a)
	nodetest.OK(t, err)
	nodetest.Equal(t, "adopted", adopted, true)
	nodetest.OK(t, w.life.Check(t.Context(), a.Key, ""))
	nodetest.OK(t, w.life.Del(t.Context(), a.Key, lifecycle.DelRequest{}))
	w.WantTrace("CHECK bridge eth0", "DEL bridge eth0")
	if c := w.Last("DEL"); !strings.Contains(stdin(t, c, "prevResult"), "10.1.0.5") || stdin(t, c, "mtu") != "1450" || c.Args != "A=B" {
		t.Errorf("%s %q", c.Stdin, c.Args)
	}
	nodetest.Equal(t, "the file is left", w.exists("flannel/c1"), false)
	_, err = w.flannel().Attachment(at(""))
	nodetest.Is(t, err, fs.ErrNotExist)
}

// Without a file there is nothing to take over; with one that cannot be used
// that is an error.
func TestStateOfFlannelThatCannotBeUsed(t *testing.T) {
	t.Parallel()
	writes := func(text string) func(string) error {
		return func(path string) error { return os.WriteFile(path, []byte(text), 0o600) }
	}
	for name, tt := range map[string]struct {
		make func(path string) error
		want string // empty: there is nothing
	}{
		"none":                               {func(string) error { return nil }, ""},
		"a directory, as records had before": {func(path string) error { return os.Mkdir(path, 0o700) }, ""},
		"of another network":                 {writes(strings.Replace(ofFlannel, "cbr0", "other", 1)), ""},
		"a FIFO":                             {func(path string) error { return syscall.Mkfifo(path, 0o600) }, "not a regular file"},
		"a link":                             {func(path string) error { return os.Symlink("/etc/passwd", path) }, "not a regular file"},
		"empty":                              {writes(""), "empty"},
		"torn":                               {writes(ofFlannel[:20]), "JSON"},
		"no plugin":                          {writes(`{"name":"cbr0"}`), "plugins"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.Write("flannel/c2", ofFlannel)
			path := w.Path("flannel/c1")
			nodetest.OK(t, tt.make(path))
			a, err := w.flannel().Attachment(at(""))
			nodetest.Equal(t, "attached", len(a.Attached), 0)
			nodetest.Equal(t, "there is nothing", errors.Is(err, fs.ErrNotExist), tt.want == "")
			if tt.want != "" {
				nodetest.Says(t, err, path+": ", tt.want)
			}
		})
	}
	a := at("")
	a.ContainerID = "../c1"
	if _, err := newWorld(t).flannel().Attachment(a); err == nil || errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a path: %v", err)
	}
}

// What the runtime does not call valid is stale, unless it may be being attached.
// Other programs' files, and records of ours, are left alone.
func TestWhatFlannelLeft(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for name, text := range map[string]string{
		"alive": ofFlannel, "gone": ofFlannel, "torn": "{", "c1@cbr0@eth0.json": ofFlannel, "others": strings.Replace(ofFlannel, "cbr0", "other", 1),
	} {
		w.old(w.Write("flannel/"+name, text))
	}
	w.Write("flannel/young", ofFlannel)
	w.Write("flannel/half", "")
	got := w.take(w.flannel().Stale([]types.GCAttachment{{ContainerID: "alive", IfName: "eth1"}}))
	if len(got) != 2 || got[0] != "adopted cbr0/gone/eth0 cbr0:eth0" || !strings.HasPrefix(got[1], "skipped: $DIR/flannel/torn: ") {
		t.Errorf("%q", got)
	}
	nodetest.Equal(t, "records", w.states(), []string{"gone/eth0 added"})
	nodetest.Equal(t, "without a directory", newWorld(t).take(newWorld(t).flannel().Stale(nil)), nil)
}

// A configuration that a loss of power has emptied is replaced by the present one, where there is one. A
// result that cannot be read is left out.
func TestStateOfFlannelThatIsLost(t *testing.T) {
	t.Parallel()
	for left, result := range map[string]string{"": "null", ofFlannel[:30]: "[]"} {
		w := newWorld(t)
		f := w.flannel()
		f.Current = nodetest.Parse(ofFlannel)
		w.old(w.Write("flannel/c1", left))
		a, err := f.Attachment(at(result))
		if err != nil || a.Attached[0].Result != nil || !a.Attached[0].Network.Equal(f.Current) {
			t.Errorf("%+v, %v", a, err)
		}
		nodetest.Equal(t, "got", w.take(f.Stale(nil)), []string{"adopted cbr0/c1/eth0 cbr0:eth0"})
	}
}
