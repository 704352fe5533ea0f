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
