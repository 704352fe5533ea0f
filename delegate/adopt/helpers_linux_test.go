package adopt_test

import (
	"encoding/json"
	"fmt"
	"iter"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/adopt"
	"github.com/metacni/metacni/delegate/delegatetest"
	"github.com/metacni/metacni/delegate/lifecycle"
	"github.com/metacni/metacni/internal/nodetest"
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
		if a.Gone {
			s += " gone"
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
		{"a configuration with a key twice", "cni/results/cbr-c1-eth0", text("cniCacheV1", "c1", `{"name":"cbr","name":"cbr","type":"bridge"}`, result), "twice"},
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
