package adopt_test

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/vishvananda/netlink"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/adopt"
	"github.com/metacni/metacni/delegate/delegatetest"
	"github.com/metacni/metacni/delegate/lifecycle"
	"github.com/metacni/metacni/internal/realhost"
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
	const result = `{"cniVersion":"1.0.0","ips":[]}`
	good, state := text("cniCacheV1", "c1", cbr, result), "["+saved(cbr, "")+"]"
	for _, tt := range []struct {
		name, file, text string
		want             string // in the reason; empty: it is nobody's concern
	}{
		{"empty", "cni/results/cbr-c1-eth0", "", "empty"},
		{"torn", "cni/results/cbr-c1-eth0", good[:len(good)/2], "incomplete"},
		{"not JSON", "cni/results/cbr-c1-eth0", "\x00\x01", "incomplete"},
		{"a list", "cni/results/cbr-c1-eth0", "[]", "incomplete"},
		{"null", "cni/results/cbr-c1-eth0", "null", `of kind ""`},
		{"another type", "cni/results/cbr-c1-eth0", `{"kind":5}`, "incomplete"},
		{"no base64", "cni/results/cbr-c1-eth0", `{"kind":"cniCacheV1","config":"%"}`, "incomplete"},
		{"a result alone, as before libcni 0.8", "cni/results/cbr-c1-eth0", result, `of kind ""`},
		{"another version", "cni/results/cbr-c1-eth0", text("cniCacheV2", "c1", cbr, result), `of kind "cniCacheV2"`},
		{"too large", "cni/results/cbr-c1-eth0", good + strings.Repeat(" ", 1<<20), "too large"},
		{"another's name", "cni/results/cbr-c2-eth0", good, "the file name does not match"},
		{"a container that is none", "cni/results/cbr--c1-eth0", text("cniCacheV1", "-c1", cbr, result), "-c1"},
		{"a container that is a path", "cni/results/cbr-..-eth0", text("cniCacheV1", "..", cbr, result), ".."},
		{"no container", "cni/results/cbr--eth0", text("cniCacheV1", "", cbr, result), "containerID"},
		{"no interface", "cni/results/cbr-c1-", fmt.Sprintf(`{"kind":"cniCacheV1","containerId":"c1","config":%q,"networkName":"cbr"}`, b64(cbr)), "interface"},
		{"no configuration", "cni/results/cbr-c1-eth0", text("cniCacheV1", "c1", "", result), "JSON"},
		{"no plugins", "cni/results/cbr-c1-eth0", text("cniCacheV1", "c1", `{"name":"cbr"}`, result), "plugins"},
		{"a configuration with a key twice", "cni/results/cbr-c1-eth0", text("cniCacheV1", "c1", `{"name":"cbr","name":"x","type":"bridge"}`, result), "twice"},
		{"of another network inside", "cni/results/cbr-c1-eth0", text("cniCacheV1", "c1", strings.ReplaceAll(cbr, "cbr", "x"), result), `network "x"`},
		{"a result that is none", "cni/results/cbr-c1-eth0", text("cniCacheV1", "c1", cbr, `"x"`), "result"},
		{"a result with null in it", "cni/results/cbr-c1-eth0", text("cniCacheV1", "c1", cbr, `{"cniVersion":"1.0.0","interfaces":[null]}`), "cannot decode result"},
		{"a result of a version to come", "cni/results/cbr-c1-eth0", text("cniCacheV1", "c1", cbr, `{"cniVersion":"9.0.0"}`), "9.0.0"},
		{"an entry of another network of the runtime", "cni/results/x-c1-eth0", "", ""},
		{"torn state of Multus", "multus/c1", state[:len(state)-4], "incomplete"},
		{"state of flannel", "multus/c1", cbr, "incomplete"},
		{"no networks", "multus/c1", "[]", "no networks"},
		{"null in place of networks", "multus/c1", "null", "no networks"},
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
			var want []string
			if tt.want != "" {
				want = []string{"skipped: $DIR/" + tt.file + ": "}
			}
			var reasons []string
			good := 0
			for _, got := range w.take(w.node.Attachments()) {
				if strings.HasPrefix(got, "adopted multi/z") {
					good++
					continue
				}
				if !strings.Contains(got, tt.want) {
					t.Errorf("%q, want %q", got, tt.want)
				}
				reasons = append(reasons, got[:min(len(got), len("skipped: $DIR/"+tt.file+": "))])
			}
			nodetest.Equal(t, "reasons", reasons, want)
			if good != 2 {
				t.Errorf("%d others are taken over", good)
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
	nodetest.Equal(t, "calls", w.Exec.Trace(), []string{"CHECK bridge eth0", "CHECK portmap eth0", "DEL portmap eth0", "DEL bridge eth0"})
	del := w.Exec.Calls()[2]
	for key, want := range map[string]string{
		"name": `"cbr"`, "runtimeConfig": `{"portMappings":[{"hostPort":80}]}`,
	} {
		if got := stdin(t, del, key); got != want {
			t.Errorf("%s is %s, want %s", key, got, want)
		}
	}
	if got := stdin(t, w.Exec.Calls()[3], "big"); got != "9007199254740993" {
		t.Errorf("a number has become %s", got)
	}
	if !strings.Contains(stdin(t, del, "prevResult"), "02:00:00:00:00:01") || !strings.Contains(strings.Join(del.Env, " "), "CNI_ARGS=IgnoreUnknown=1;K8S_POD_NAME=p=q") {
		t.Errorf("prevResult %s, environment %q", stdin(t, del, "prevResult"), del.Env)
	}
	// What has been deleted is not there to be taken over again.
	if got := w.take(w.node.Attachments()); got != nil || w.exists("cni/results/cbr-c1-eth0") || !w.exists("cni/results/podman-c1-eth0") {
		t.Errorf("after DEL: %q", got)
	}
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
	nodetest.Equal(t, "calls", w.Exec.Trace(), []string{"DEL portmap eth0", "DEL bridge eth0"})
	if env := strings.Join(w.Exec.Calls()[0].Env, " "); strings.Contains(env, away) {
		t.Errorf("environment %q", env)
	}
	if len(w.states()) > 0 || w.exists("cni/results/cbr-c1-eth0") {
		t.Errorf("left: %q", w.states())
	}
}

// Entries of other networks, of meta-plugins and of networks whose name only
// begins alike are nobody's mistake, and not ours to take.
func TestEntriesOfOthersAreLeftAlone(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.Exec.Plugins["multinet"], w.Exec.Plugins["multus"] = w.Exec.Plugins["bridge"], w.Exec.Plugins["bridge"]
	w.node.Primary = []string{"cbr", "ours", "theirs"}
	for _, conf := range []string{
		`{"cniVersion":"1.0.0","name":"podman","plugins":[{"type":"bridge"}]}`,
		`{"cniVersion":"1.0.0","name":"cbr-2","plugins":[{"type":"bridge"}]}`,
		`{"cniVersion":"1.0.0","name":"ours","plugins":[{"type":"multinet"}]}`,
		`{"cniVersion":"1.0.0","name":"theirs","plugins":[{"type":"bridge"},{"type":"multus"}]}`,
	} {
		w.attach("cni", conf, runtime(unseen))
	}
	if got := w.take(w.node.Attachments()); got != nil {
		t.Errorf("taken: %q", got)
	}
	w.node.CacheDir, w.node.MultusDir = "", ""
	if got := w.take(w.node.Attachments()); got != nil {
		t.Errorf("from nowhere: %q", got)
	}
	w.node.CacheDir, w.node.MultusDir = w.Path("absent"), w.Path("absent")
	if got := w.take(w.node.Attachments()); got != nil {
		t.Errorf("from what is not there: %q", got)
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
	if err := errors.Join(
		os.MkdirAll(filepath.Join(dir, "cbr-dir-eth0"), 0o700),
		syscall.Mkfifo(filepath.Join(dir, "cbr-fifo-eth0"), 0o600),
		os.Symlink(good, filepath.Join(dir, "cbr-c1-eth0")),
	); err != nil {
		t.Fatal(err)
	}
	want := []string{
		"skipped: $DIR/cni/results/cbr-c1-eth0: not a regular file",
		"skipped: $DIR/cni/results/cbr-fifo-eth0: not a regular file",
	}
	nodetest.Equal(t, "got", w.take(w.node.Attachments()), want)
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
	edited := func(edit func(*libcni.RuntimeConf)) libcni.RuntimeConf {
		rt := runtime(unseen)
		edit(&rt)
		return rt
	}
	for _, tt := range []struct {
		name    string
		primary []string
		attach  func(w *world)
		want    string // in the error; empty: it is found
	}{
		{"the primary network", []string{"other", "cbr"}, func(w *world) { w.attach("cni", cbr, runtime(unseen)) }, ""},
		{"nothing", []string{"cbr"}, func(*world) {}, "not exist"},
		{"another network", []string{"cb"}, func(w *world) { w.attach("cni", cbr, runtime(unseen)) }, "not exist"},
		{"another interface", []string{"cbr"}, func(w *world) { w.attach("cni", cbr, edited(func(rt *libcni.RuntimeConf) { rt.IfName = "eth1" })) }, "not exist"},
		{"our own network", []string{"cbr"}, func(w *world) { w.attach("cni", strings.ReplaceAll(cbr, "bridge", "multinet"), runtime(unseen)) }, "not exist"},
		{"a path as a name", []string{"../results/cbr"}, func(w *world) { w.attach("cni", cbr, runtime(unseen)) }, "not exist"},
		{"no cache", []string{"cbr"}, func(w *world) { w.attach("cni", cbr, runtime(unseen)); w.node.CacheDir = "" }, "not exist"},
		{"a file that has other names", []string{"cbr"}, func(w *world) {
			w.attach("cni", strings.ReplaceAll(cbr, `"cbr"`, `"x"`), edited(func(rt *libcni.RuntimeConf) { rt.ContainerID = "c1-eth0" }))
			w.Write("cni/results/cbr-c1-eth0", w.Read("cni/results/x-c1-eth0-eth0"))
		}, "does not match"},
		{"a damaged file", []string{"cbr"}, func(w *world) { w.Write("cni/results/cbr-c1-eth0", "{") }, "results/cbr-c1-eth0: incomplete"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.Exec.Plugins["multinet"] = w.Exec.Plugins["bridge"]
			w.node.Primary = tt.primary
			tt.attach(w)
			a, err := w.node.Attachment("c1", "eth0")
			switch {
			case tt.want == "":
				nodetest.OK(t, err)
				nodetest.Equal(t, "key", a.Key, eth0)
				nodetest.Equal(t, "sources", a.Sources, []string{w.Path("cni/results/cbr-c1-eth0")})
			case err == nil || !strings.Contains(err.Error(), tt.want) || errors.Is(err, fs.ErrNotExist) != (tt.want == "not exist"):
				t.Errorf("err = %v, want %q", err, tt.want)
			}
		})
	}
}

// newNetNS makes a namespace with an interface of that MAC and address.
func newNetNS(t *testing.T, mac, address string) string {
	t.Helper()
	host, err := realhost.Here()
	if err != nil {
		t.Skipf("needs the right to make a network namespace: %v", err)
	}
	t.Cleanup(func() { nodetest.OK(t, host.Close()) })
	c, err := host.Container()
	nodetest.OK(t, err)
	err = ns.WithNetNSPath(c.Path, func(ns.NetNS) error {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = "other0"
		attrs.HardwareAddr, _ = net.ParseMAC(mac)
		link := &netlink.Bridge{LinkAttrs: attrs}
		if err := netlink.LinkAdd(link); err != nil {
			return err
		}
		to, err := netlink.ParseAddr(address)
		if err != nil {
			return err
		}
		return netlink.AddrAdd(link, to)
	})
	if err != nil {
		t.Skipf("needs a kernel with bridges: %v", err)
	}
	return c.Path
}

// A path is the container's if its namespace has what the result says: its MAC address, under
// whatever name, or its IP address. Otherwise the adoption has no path, and the container is
// attached all the same: it may have moved its interfaces.
func TestWhoseContainerItIs(t *testing.T) {
	t.Parallel()
	netns := newNetNS(t, "02:00:00:00:00:01", "10.1.0.5/24")
	inside := func(mac string) string {
		return fmt.Sprintf(`"interfaces":[{"name":"br0","mac":"02:00:00:00:00:01"},{"name":"eth0","mac":%q,"sandbox":"/x"}]`, mac)
	}
	for _, tt := range []struct {
		name, result string
		lost         bool // the path
	}{
		{"its MAC address", `{` + inside("02:00:00:00:00:01") + `}`, false},
		{"in another notation", `{` + inside("02-00-00-00-00-01") + `}`, false},
		{"another MAC address", `{` + inside("02:00:00:00:00:02") + `}`, true},
		{"another MAC address and its IP address", `{` + inside("02:00:00:00:00:02") + `,"ips":[{"interface":1,"address":"10.1.0.5/24"}]}`, false},
		{"its MAC address and another IP address", `{` + inside("02:00:00:00:00:01") + `,"ips":[{"interface":1,"address":"10.1.0.6/24"}]}`, false},
		{"nothing of both", `{` + inside("02:00:00:00:00:02") + `,"ips":[{"interface":1,"address":"10.1.0.6/24"}]}`, true},
		{"an IP address alone", `{"ips":[{"address":"10.1.0.5/24"}]}`, false},
		{"another IP address alone", `{"ips":[{"address":"fd00::1/64"}]}`, true},
		{"the host's end alone", `{"interfaces":[{"name":"br0","mac":"02:00:00:00:00:09"}],"ips":[{"interface":0,"address":"10.1.0.1/24"}]}`, true},
		{"an interface that is not there", `{"ips":[{"interface":7,"address":"10.1.0.6/24"}]}`, true},
		{"no MAC address", `{` + inside("") + `}`, true},
		{"a MAC address that is none", `{` + inside("x") + `}`, true},
		{"nothing", `{"dns":{}}`, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.Write("cni/results/cbr-c1-eth0", fmt.Sprintf(`{"kind":"cniCacheV1","containerId":"c1","config":%q,"ifName":"eth0","networkName":"cbr","netns":%q,"result":%s}`,
				b64(cbr), netns, `{"cniVersion":"1.0.0",`+tt.result[1:]))
			for a, err := range w.node.Attachments() {
				nodetest.OK(t, err)
				want := netns
				if tt.lost {
					want = ""
				}
				nodetest.Equal(t, "namespace", a.Attached[0].NetNS, want)
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
	for path, kept := range map[string]bool{
		file: false, filepath.Dir(file): false, "/proc/self/ns/uts": false, file + "/x": false,
		unseen: true, w.Path("netns/absent"): true,
	} {
		w.Write("cni/results/cbr-c1-eth0", fmt.Sprintf(`{"kind":"cniCacheV1","containerId":"c1","config":%q,"ifName":"eth0","networkName":"cbr","netns":%q,"result":%s}`,
			b64(cbr), path, `{"cniVersion":"1.0.0","ips":[{"address":"10.1.0.5/24"}]}`))
		for a, err := range w.node.Attachments() {
			if err != nil || (a.Attached[0].NetNS == path) != kept {
				t.Errorf("%s: namespace %q, %v", path, a.Attached[0].NetNS, err)
			}
		}
	}
	if _, err := os.Stat(file); err != nil {
		t.Error(err)
	}
}
