package daemon

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	multinet "github.com/metacni/metacni/examples/multinet/plugin"
	nodetest "github.com/metacni/metacni/internal/test/node"

	"github.com/containernetworking/cni/pkg/skel"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/delegatetest"
	"github.com/metacni/metacni/delegate/lifecycle"
	"github.com/metacni/metacni/delegate/thick"
	"github.com/metacni/metacni/delegate/thick/shim"
	"github.com/metacni/metacni/delegate/thick/wire"
	kubetest "github.com/metacni/metacni/internal/test/kube"
	"github.com/metacni/metacni/netconf"
	"github.com/metacni/metacni/scratch"
)

// A world is a daemon that runs in this process, and a shim.
type world struct {
	*service
	api     *kubetest.Server // nil without a cluster
	node    *nodetest.Node   // of the plugins
	fake    *delegatetest.Exec
	dir     string
	client  *shim.Client
	printed bytes.Buffer
	logged  *nodetest.Log
	stop    func() error // ends the daemon and returns its error
	states  chan string  // told to the service manager
	reasons chan string  // told to it, why the daemon is not ready
	seen    int          // calls that trace has returned
}

// newWorld makes a daemon with more keys in its file, in which $DIR is its
// directory, which is started by start.
func newWorld(t testing.TB, keys string) *world {
	t.Helper()
	return newWorldIn(t, nodetest.ShortDir(t), keys)
}

// newWorldIn makes a daemon in dir, in which there may have been others. edit may change what its
// file says.
func newWorldIn(t testing.TB, dir, keys string, edit ...func(*config)) *world {
	t.Helper()
	file := filepath.Join(dir, "daemon.json")
	text := fmt.Sprintf(`{"socketDir":%q,"queueDir":%q,"cniDir":%q,"logFormat":"json"%s}`,
		dir+"/run", dir+"/queue", dir+"/state", strings.ReplaceAll(keys, "$DIR", dir))
	nodetest.OK(t, os.WriteFile(file, []byte(text), 0o600))
	conf, err := readConfig(nil, file, nil)
	nodetest.OK(t, err)
	for _, e := range edit {
		e(conf)
	}
	w := &world{dir: dir, logged: &nodetest.Log{}, states: make(chan string, 2), reasons: make(chan string, 100)}
	w.service = newService(t.Context(), conf, "/daemon/bin", "v0", conf.logger(w.logged))
	w.node = nodetest.New(t)
	w.fake = w.node.Exec
	w.fake.Plugins["bridge"] = delegatetest.Result(nodetest.Result("10.9.0.2/24"))
	w.fake.Plugins["macvlan"] = delegatetest.Result(nodetest.Result("10.9.1.2/24"))
	w.fake.Plugins["full"] = delegatetest.FailOn("ADD", 107, "no free device", delegatetest.Result(nil))
	w.exec, w.interfaceNames = w.fake, func(string) ([]string, error) { return nil, nil }
	w.client = &shim.Client{
		Socket: filepath.Join(conf.SocketDir, multinet.SocketName), Stdout: &w.printed, Queue: conf.QueueDir, QueueWait: -1,
		Env: []string{"TRACEPARENT=00-1-2-01", "SECRET=hunter2hunter2", "CNI_PATH=/opt/other/bin"},
	}
	return w
}

// inCluster makes a daemon with more keys, in a cluster that has the definitions ns/blue,
// ns/broken and other/red.
func inCluster(t testing.TB, keys string) *world {
	t.Helper()
	api := kubetest.NewServer(scheme.Codecs.UniversalDeserializer().Decode)
	t.Cleanup(api.Close)
	for _, d := range []kubetest.Definition{
		{Namespace: "ns", Name: "blue", Config: `{"cniVersion":"1.0.0","type":"macvlan","capabilities":{"mac":true}}`},
		{Namespace: "ns", Name: "broken", Config: `{"type":"../../macvlan"}`},
		{Namespace: "other", Name: "red", Config: `{"cniVersion":"1.0.0","type":"macvlan"}`},
	} {
		kubetest.Put(api, d)
	}
	return inClusterAt(t, nodetest.ShortDir(t), api, keys)
}

// inClusterAt makes a daemon in dir, in which there may have been others.
func inClusterAt(t testing.TB, dir string, api *kubetest.Server, keys string, edit ...func(*config)) *world {
	t.Helper()
	kubeconfig, err := api.Kubeconfig(dir)
	nodetest.OK(t, err)
	w := newWorldIn(t, dir, fmt.Sprintf(`,"kubeconfig":%q%s`, kubeconfig, keys), edit...)
	w.api = api
	return w
}

// next ends the daemon, and returns the next one in its place, with the same plugins.
func (w *world) next(t testing.TB, keys string) *world {
	t.Helper()
	if w.stop != nil {
		nodetest.OK(t, w.stop())
	}
	next := inClusterAt(t, w.dir, w.api, keys)
	next.exec, next.fake, next.seen = w.fake, w.fake, len(w.fake.Trace())
	return next
}

// start starts the daemon, and returns once it is ready and knows the definitions.
func (w *world) start(t testing.TB) *world {
	t.Helper()
	w.startUnsynced(t)
	w.synced(t)
	return w
}

// synced waits until the daemon knows the definitions.
func (w *world) synced(t testing.TB) {
	t.Helper()
	w.until(t, "the definitions are known", func() bool {
		ok, err := w.cluster.Probe(t.Context())
		return ok && err == nil
	})
}

// until waits until done is true. What it depends on may be another process.
func (w *world) until(t testing.TB, what string, done func() bool) {
	t.Helper()
	nodetest.Until(t, what, done, w.logged)
}

// startUnsynced starts the daemon, and returns once it is ready.
func (w *world) startUnsynced(t testing.TB) *world {
	t.Helper()
	w.begin(t)
	nodetest.Equal(t, "the service manager is told", <-w.states, "READY=1")
	return w
}

// begin starts the daemon.
func (w *world) begin(t testing.TB) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	l, err := w.listen(ctx, nil)
	nodetest.OK(t, err)
	ended := make(chan error, 1)
	go func() {
		ended <- w.serve(ctx, l, func(state string) {
			if why, ok := strings.CutPrefix(state, "STATUS="); ok {
				w.reasons <- why
			} else {
				w.states <- state
			}
		})
	}()
	w.stop = sync.OnceValue(func() error { cancel(); return <-ended })
	t.Cleanup(func() {
		nodetest.Code(t, w.stop(), 0)
	})
}

// args are those of a command for eth0 of the container c1.
func (w *world) args(conf string) *skel.CmdArgs {
	return &skel.CmdArgs{
		ContainerID: "c1", Netns: filepath.Join(w.dir, "netns"), IfName: "eth0", Path: "/opt/other/bin",
		Args: "IgnoreUnknown=1;K8S_POD_NAMESPACE=ns;K8S_POD_NAME=pod-1;", StdinData: []byte(conf),
	}
}

// conf is a runtime's configuration with more keys.
func conf(keys string) string {
	return `{"cniVersion":"1.1.0","name":"multi","type":"multinet-shim","cniDir":"/of/the/runtime",` + keys + `}`
}

const bridge = `"delegates":[{"type":"bridge","password":"hunter2hunter2"}]`

// run has the shim run a command with more keys in the configuration.
func (w *world) run(t *testing.T, command, keys string) error {
	t.Helper()
	return w.client.Execute(t.Context(), command, w.args(conf(keys)))
}

func (w *world) mustRun(t *testing.T, command, keys string) {
	t.Helper()
	nodetest.OK(t, w.run(t, command, keys))
}

// onSocket has a network of the type macvlan attached to the container of a, or detached from it,
// by a request on the socket.
func (w *world) onSocket(t *testing.T, command string, a *skel.CmdArgs, ifname, network string) {
	t.Helper()
	hot := w.args(fmt.Sprintf(`{"name":%q,"type":"macvlan"}`, network))
	hot.ContainerID, hot.IfName, hot.Args = a.ContainerID, ifname, ""
	_, err := w.client.Do(t.Context(), command, hot, &wire.Attributes{})
	nodetest.OK(t, err)
}

// adopt takes over a container from another program, with eth0, net1 and so on of these types.
func (w *world) adopt(t *testing.T, a *skel.CmdArgs, types ...string) {
	t.Helper()
	adoption := lifecycle.Adoption{Key: scratch.Key{Network: "multi", ContainerID: a.ContainerID, IfName: "eth0"}}
	for i, typ := range types {
		ifname := "eth0"
		if i > 0 {
			ifname = fmt.Sprint("net", i)
		}
		n, err := netconf.Parse(fmt.Appendf(nil, `{"cniVersion":"1.0.0","name":"of-%s","type":%q}`, typ, typ))
		nodetest.OK(t, err)
		adoption.Attached = append(adoption.Attached, delegate.Attached{Attachment: delegate.Attachment{
			Network: n, ContainerID: a.ContainerID, IfName: ifname, Args: a.Args,
		}})
	}
	adopted, err := (&lifecycle.Manager{Dir: w.conf.stateDir}).Adopt(t.Context(), adoption)
	if err != nil || !adopted {
		t.Fatalf("taken over: %t, %v", adopted, err)
	}
}

// trace is what plugins were called for since the last trace.
func (w *world) wantTrace(t *testing.T, want ...string) {
	t.Helper()
	got := w.fake.Trace()[w.seen:]
	w.seen += len(got)
	nodetest.Equal(t, "calls", got, want)
}

// replayed returns a channel that is closed when the daemon, which has not been
// started, has done a DEL of the queue.
func (w *world) replayed() <-chan struct{} {
	done := make(chan struct{})
	observe := w.server.Observer
	w.server.Observer = func(e thick.Event) {
		observe(e)
		if e.Replayed {
			close(done)
		}
	}
	return done
}

// get returns what the daemon answers to a GET.
func (w *world) get(t *testing.T, path string) (int, string) {
	t.Helper()
	c := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", w.client.Socket)
	}}}
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://daemon"+path, nil)
	nodetest.OK(t, err)
	a, err := c.Do(r)
	nodetest.OK(t, err)
	defer a.Body.Close()
	body, err := io.ReadAll(a.Body)
	nodetest.OK(t, err)
	return a.StatusCode, string(body)
}

// answers wants a code and words in the answer of the daemon to a GET.
func (w *world) answers(t *testing.T, path string, code int, words ...string) {
	t.Helper()
	got, text := w.get(t, path)
	nodetest.Equal(t, path, got, code)
	nodetest.Contains(t, path, text, words...)
}

// scrape are the metrics of the daemon.
func (w *world) scrape(t *testing.T) map[string]float64 {
	t.Helper()
	_, text := w.get(t, "/metrics")
	return series(t, text)
}

// metric is the value of a metric with its labels.
func (w *world) metric(t *testing.T, name string) float64 {
	t.Helper()
	return w.scrape(t)[name]
}

// clean fails unless nothing is left.
func (w *world) clean(t *testing.T) {
	t.Helper()
	nodetest.Equal(t, "left", w.fake.Live(), nil)
	files, _ := filepath.Glob(w.dir + "/state/*/*")
	nodetest.Equal(t, "files left", files, nil)
}
