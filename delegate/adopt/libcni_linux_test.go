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
	"github.com/metacni/metacni/scratch"
	"github.com/metacni/metacni/status"
)

const (
	// cbr is the network of the runtime.
	cbr = `{"cniVersion":"1.0.0","name":"cbr","plugins":[{"type":"bridge","big":9007199254740993},{"capabilities":{"portMappings":true},"type":"portmap"}]}`

	// away is where no network namespace is, in a directory that is there.
	away = "/proc/no-such-namespace"

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
	if _, err := libcni.NewCNIConfigWithCacheDir([]string{"/bin"}, w.Path(dir), exec).AddNetworkList(w.Context(), list, &rt); err != nil {
		w.Fatal(err)
	}
}

// take takes over what is found, and says what became of each.
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

// stdin is what a call was given under a key of its configuration.
func stdin(t testing.TB, c delegatetest.Call, key string) string {
	t.Helper()
	var conf map[string]json.RawMessage
	nodetest.OK(t, json.Unmarshal(c.Stdin, &conf))
	return string(conf[key])
}

// No file makes a reader panic, and what it makes of one can be recorded or is
// refused.
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

// runtime is what a runtime attaches c1 with.
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
	nodetest.OK(t, w.life.Del(t.Context(), eth0, lifecycle.Removal{NetNS: unseen}))
	w.WantTrace("CHECK bridge eth0", "CHECK portmap eth0", "DEL portmap eth0", "DEL bridge eth0")
	del := w.Last("DEL portmap")
	nodetest.Equal(t, "name", stdin(t, del, "name"), `"cbr"`)
	nodetest.Equal(t, "arguments", stdin(t, del, "runtimeConfig"), `{"portMappings":[{"hostPort":80}]}`)
	nodetest.Equal(t, "a number", stdin(t, w.Last("DEL bridge"), "big"), "9007199254740993")
	nodetest.Equal(t, "CNI_ARGS", del.Args, "IgnoreUnknown=1;K8S_POD_NAME=p=q")
	nodetest.Says(t, errors.New(stdin(t, del, "prevResult")), "02:00:00:00:00:01")
	// What has been deleted is not there to be taken over again.
	nodetest.Equal(t, "after DEL", w.take(w.node.Attachments()), nil)
	nodetest.Equal(t, "entries", w.Files("cni/results"), []string{"podman-c1-eth0"})
	nodetest.Equal(t, "records", w.states(), nil)
}

// A container whose namespace cannot be seen is attached, until the runtime says otherwise. Its
// DEL gets no namespace: the path may be another's by then.
func TestContainersThatCannotBeSeenAreAttached(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.attach("cni", cbr, runtime(away))
	nodetest.Equal(t, "first", w.take(w.node.Attachments()), []string{"adopted multi/c1/eth0 cbr:eth0"})
	nodetest.Equal(t, "records", w.states(), []string{"c1/eth0 added"})
	nodetest.OK(t, w.life.GC(t.Context(), lifecycle.Collection{Network: "multi", Valid: []types.GCAttachment{}}))
	w.WantTrace("DEL portmap eth0", "DEL bridge eth0")
	nodetest.Equal(t, "namespace", w.Last("DEL portmap").NetNS, "")
	nodetest.Equal(t, "records", w.states(), nil)
	nodetest.Equal(t, "entries", w.Files("cni/results"), nil)
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
	if err := w.life.Del(t.Context(), eth0, lifecycle.Removal{}); err != nil || w.exists("root/cni/results/cbr-c1-eth0") {
		t.Errorf("the entry is left: %v", err)
	}
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
