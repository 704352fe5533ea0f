package adopt_test

import (
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"os"
	"path/filepath"
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
	t    testing.TB
	dir  string
	exec *delegatetest.Exec
	node adopt.Node
	life *lifecycle.Manager
}

func newWorld(t testing.TB) *world {
	t.Helper()
	w := &world{t: t, dir: t.TempDir(), exec: &delegatetest.Exec{Plugins: map[string]delegatetest.Plugin{}}}
	for _, p := range []string{"bridge", "portmap", "macvlan", "ipvlan"} {
		w.exec.Plugins[p] = delegatetest.Result(&types100.Result{
			CNIVersion: "1.0.0",
			Interfaces: []*types100.Interface{{Name: "eth0", Mac: "02:00:00:00:00:01", Sandbox: "/no-such-directory/sandbox"}},
		})
	}
	w.node = adopt.Node{
		Network: "multi", Primary: []string{"cbr"}, Own: []string{"multinet", "multus", "multus-shim"},
		CacheDir: w.path("cni"), MultusDir: w.path("multus"),
	}
	w.life = &lifecycle.Manager{Dir: w.path("state"), Invoker: &delegate.Invoker{Exec: w.exec}}
	return w
}

func (w *world) path(name string) string { return filepath.Join(w.dir, name) }

// write writes a file and returns its path.
func (w *world) write(name, text string) string {
	w.t.Helper()
	path := w.path(name)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		w.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		w.t.Fatal(err)
	}
	return path
}

func (w *world) read(name string) string {
	w.t.Helper()
	text, err := os.ReadFile(w.path(name))
	if err != nil {
		w.t.Fatal(err)
	}
	return string(text)
}

// old makes a file one that was written long ago.
func (w *world) old(path string) {
	w.t.Helper()
	if err := os.Chtimes(path, time.Time{}, time.Now().Add(-time.Hour)); err != nil {
		w.t.Fatal(err)
	}
}

// exists reports whether a file is there.
func (w *world) exists(name string) bool {
	_, err := os.Lstat(w.path(name))
	return err == nil
}

// attach attaches a container as a runtime does that uses libcni with the cache
// directory dir. What attached it is forgotten by the fake.
func (w *world) attach(dir, conf string, rt libcni.RuntimeConf) {
	w.t.Helper()
	list, err := libcni.NetworkConfFromBytes([]byte(conf))
	if err != nil {
		w.t.Fatal(err)
	}
	exec := &delegatetest.Exec{Plugins: w.exec.Plugins}
	if _, err := libcni.NewCNIConfigWithCacheDir([]string{"/bin"}, w.path(dir), exec).AddNetworkList(w.t.Context(), list, &rt); err != nil {
		w.t.Fatal(err)
	}
}

// take takes over what is found, and says what became of each.
func (w *world) take(found iter.Seq2[lifecycle.Adoption, error], dryRun bool) []string {
	var all []string
	for _, o := range adopt.Take(w.t.Context(), w.life, found, dryRun) {
		s := string(o.Verdict)
		if o.Adoption.Key.ContainerID != "" {
			s += " " + o.Adoption.Key.String()
			for _, a := range o.Adoption.Attached {
				s += " " + a.Network.Name() + ":" + a.IfName
			}
		}
		if o.Adoption.Gone {
			s += " gone"
		}
		if o.Err != nil {
			s += ": " + strings.ReplaceAll(o.Err.Error(), w.dir, "$DIR")
		}
		all = append(all, s)
	}
	return all
}

// states are the records: "c1/eth0 added".
func (w *world) states() []string {
	w.t.Helper()
	var all []string
	for r, err := range w.life.Records(w.t.Context()) {
		if err != nil {
			w.t.Fatal(err)
		}
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

// errorsOf are those of a list, without the directory.
func (w *world) errorsOf(found iter.Seq2[lifecycle.Adoption, error]) []string {
	var all []string
	for _, err := range found {
		if err != nil {
			all = append(all, strings.ReplaceAll(err.Error(), w.dir, "$DIR"))
		}
	}
	return all
}

func ended(ctx context.Context) context.Context {
	ctx, cancel := context.WithCancel(ctx)
	cancel()
	return ctx
}
