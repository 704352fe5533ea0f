package main

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/nri/pkg/adaptation"
	"github.com/containerd/nri/pkg/api"
	nrilog "github.com/containerd/nri/pkg/log"

	"github.com/metacni/metacni/delegate/conform/host"
	"github.com/metacni/metacni/delegate/delegatetest"
	"github.com/metacni/metacni/delegate/lifecycle"
	multinet "github.com/metacni/metacni/examples/multinet/plugin"
	nodetest "github.com/metacni/metacni/internal/test/node"
	"github.com/metacni/metacni/netconf/nad"
)

// requestTimeout is the runtime's, for all tests. It is long, because the
// machine may be slow; a test that is about it has a plugin with a long margin.
const requestTimeout = 20 * time.Second

// Of the tests with real plugins.
const (
	insideEnv    = "METACNI_NRI_INSIDE" // directory of real plugins, on a private host
	noHostStatus = 77
)

func TestMain(m *testing.M) {
	if os.Getenv(api.PluginSocketEnvVar) != "" {
		main() // launched by the runtime of a test
		os.Exit(0)
	}
	if os.Getenv(insideEnv) != "" {
		if err := host.Setup(); err != nil {
			fmt.Fprintln(os.Stderr, "nri:", err)
			os.Exit(noHostStatus)
		}
	}
	nrilog.Set(stubLogger{slog.New(slog.DiscardHandler)})
	adaptation.SetPluginRequestTimeout(requestTimeout)
	adaptation.SetPluginRegistrationTimeout(requestTimeout)
	os.Exit(m.Run())
}

// A node is a runtime, with the NRI of containerd and CRI-O, and the
// directories of a host.
type node struct {
	*adaptation.Adaptation
	*nodetest.Node

	netNS  func(tb testing.TB, path string) (end func()) // makes a network namespace; nil means that there is none at the path
	synced chan struct{}                                 // receives when a plugin has been synchronized

	mu    sync.Mutex // guards what follows
	pods  []*api.PodSandbox
	gates []func()
	ends  map[string]func() // end the namespaces of pods
}

// newNode returns a node without a plugin, and fakes for one. Its pods have no network namespaces:
// whether they live is not known.
func newNode(t *testing.T) (*node, *delegatetest.Exec) {
	t.Helper()
	n := &node{Node: &nodetest.Node{TB: t, Dir: nodetest.ShortDir(t)}, synced: make(chan struct{}, 100), ends: make(map[string]func())}
	n.network("blue", "a")
	n.network("red", "b")
	n.boot()
	return n, plugins()
}

// boot starts the runtime.
func (n *node) boot() {
	n.Helper()
	var err error
	n.Adaptation, err = adaptation.New("test", "1.0", n.synchronize,
		func(context.Context, []*api.ContainerUpdate) ([]*api.ContainerUpdate, error) { return nil, nil },
		adaptation.WithPluginPath(n.Path("plugins")),
		adaptation.WithPluginConfigPath(n.Path("conf.d")),
		adaptation.WithSocketPath(n.Path("sock")))
	nodetest.OK(n, err)
	nodetest.OK(n, n.Start())
	n.Cleanup(n.Stop)
	nodetest.Come(n, n.synced, "the plugins that the runtime launches are synchronized") // be there any or not
}

func (n *node) synchronize(ctx context.Context, cb adaptation.SyncCB) error {
	n.mu.Lock()
	pods := slices.Clone(n.pods)
	n.mu.Unlock()
	_, err := cb(ctx, pods, nil)
	if err == nil {
		n.synced <- struct{}{}
	}
	return err
}

// network makes a network that pods can select.
func (n *node) network(name, plugin string) {
	n.Write("net.d/"+name+".conf", fmt.Sprintf(`{"cniVersion":"1.0.0","name":%q,"type":%q}`, name, plugin))
}

// sandbox returns a new one, with a network namespace.
func (n *node) sandbox(id, networks string) *api.PodSandbox {
	n.Helper()
	n.netns(id)
	s := &api.PodSandbox{
		Id: id, Name: "web", Namespace: "shop", Uid: "uid-1",
		Linux: &api.LinuxPodSandbox{Namespaces: []*api.LinuxNamespace{{Type: "pid", Path: "/x"}, {Type: "network", Path: n.Path("netns", id)}}},
	}
	if networks != "" {
		s.Annotations = map[string]string{nad.NetworksAnnotation: networks}
	}
	return s
}

// netns makes a network namespace at the path of a pod's.
func (n *node) netns(id string) {
	n.Helper()
	end := func() { nodetest.OK(n, nodetest.Restarted(n.Path("state"), id)) } // it is dead
	if n.netNS != nil {
		nodetest.OK(n, os.MkdirAll(n.Path("netns"), 0o700))
		end = n.netNS(n, n.Path("netns", id))
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.ends[id] = end
}

// run starts a pod as containerd does: when a plugin fails there is none, and no
// other event.
func (n *node) run(s *api.PodSandbox) error {
	err := n.runOnce(s)
	for err != nil && strings.Contains(err.Error(), "ttrpc: closed") {
		err = n.runOnce(s)
	}
	return err
}

// runOnce is run where the kubelet does not ask again.
func (n *node) runOnce(s *api.PodSandbox) error {
	block := n.BlockPluginSync()
	defer block.Unblock()
	err := n.RunPodSandbox(context.Background(), &api.RunPodSandboxRequest{Pod: s})
	if err == nil {
		n.list(s)
	}
	return err
}

func (n *node) mustRun(ss ...*api.PodSandbox) {
	n.Helper()
	for _, s := range ss {
		nodetest.OK(n, n.run(s))
	}
}

// list has the runtime know a pod that nobody was told of.
func (n *node) list(s *api.PodSandbox) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.pods = append(n.pods, s)
}

// running lists the pods that the runtime has.
func (n *node) running() (ids []string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, s := range n.pods {
		ids = append(ids, s.GetId())
	}
	return ids
}

// stop stops a pod. Its namespace goes after that, and with it what the event
// could have said of it.
func (n *node) stop(s *api.PodSandbox) {
	n.Helper()
	block := n.BlockPluginSync()
	defer block.Unblock()
	nodetest.OK(n, n.StopPodSandbox(context.Background(), &api.StopPodSandboxRequest{Pod: s}))
	n.unlink(s)
}

func (n *node) remove(s *api.PodSandbox) {
	n.Helper()
	block := n.BlockPluginSync()
	defer block.Unblock()
	nodetest.OK(n, n.RemovePodSandbox(context.Background(), &api.RemovePodSandboxRequest{Pod: s}))
	n.mu.Lock()
	defer n.mu.Unlock()
	n.pods = slices.DeleteFunc(n.pods, func(o *api.PodSandbox) bool { return o.GetId() == s.GetId() })
}

// unlink ends the namespace of a pod.
func (n *node) unlink(s *api.PodSandbox) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if end := n.ends[s.GetId()]; end != nil {
		end()
	}
	s.Linux = nil
}

// gate returns what a fake waits for, and a function that opens it. At the end of
// the test it is open, before the plugins are stopped.
func (n *node) gate() (wait <-chan struct{}, open func()) {
	gate := make(chan struct{})
	open = sync.OnceFunc(func() { close(gate) })
	n.mu.Lock()
	defer n.mu.Unlock()
	n.gates = append(n.gates, open)
	return gate, open
}

// plugins are fakes that succeed.
func plugins() *delegatetest.Exec { return &delegatetest.Exec{Plugins: nodetest.Plugins("a", "b")} }

// A process is a plugin that runs.
type process struct {
	*Plugin
	n      *node
	passes chan Pass
	first  Pass   // after the start
	stop   func() // and wait
	log    *nodetest.Log

	mu   sync.Mutex
	conn net.Conn // the last
}

// plugin returns one that does not run yet, on the node's directories. Its sweep
// never comes unless edit says so.
func (n *node) plugin(x *delegatetest.Exec, edit ...func(*Plugin)) *process {
	n.Helper()
	p := &process{n: n, passes: make(chan Pass, 10000), log: &nodetest.Log{}}
	p.Plugin = &Plugin{
		Config: Config{
			Socket: n.Path("sock"), ConfDir: n.Path("net.d"), BinDir: n.Path("bin"), StateDir: n.Path("state"),
			Sweep: multinet.Duration(time.Hour),
		},
		Exec: x, Logger: slog.New(slog.NewTextHandler(p.log, nil)),
		InterfaceNames: func(string) ([]string, error) { return []string{"lo", "eth0"}, nil },
		Observer:       func(pass Pass) { p.passes <- pass },
	}
	p.pause = 1 // so that kick need not wait
	p.dial = func(path string) (net.Conn, error) {
		conn, err := net.Dial("unix", path)
		p.mu.Lock()
		defer p.mu.Unlock()
		p.conn = conn
		return conn, err
	}
	for _, e := range edit {
		e(p.Plugin)
	}
	return p
}

// start runs a plugin until the end of the test, and returns when it has been
// synchronized and has reconciled.
func (n *node) start(x *delegatetest.Exec, edit ...func(*Plugin)) *process {
	n.Helper()
	p := n.plugin(x, edit...)
	p.launch()
	p.connected()
	p.first = p.pass(synchronized)
	return p
}

// started returns a node on which a plugin runs fakes.
func started(t *testing.T) (*node, *delegatetest.Exec, *process) {
	t.Helper()
	n, x := newNode(t)
	return n, x, n.start(x)
}

// configured returns a plugin that serves no runtime but knows its configuration.
func (n *node) configured(x *delegatetest.Exec, edit ...func(*Plugin)) *process {
	n.Helper()
	p := n.plugin(x, edit...)
	p.alive = n.Context()
	_, err := p.Configure(n.Context(), "", "test", "1.0")
	nodetest.OK(n, err)
	return p
}

// launch starts the plugin.
func (p *process) launch() {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- p.Run(ctx) }()
	p.stop = sync.OnceFunc(func() {
		cancel()
		nodetest.Code(p.n, <-done, 0)
	})
	p.n.Cleanup(func() {
		for _, open := range p.n.gates {
			open()
		}
		p.stop()
	})
}

// connected waits until the runtime has taken the plugin in.
func (p *process) connected() {
	p.n.Helper()
	nodetest.Come(p.n, p.n.synced, "the plugin is synchronized")
	p.n.BlockPluginSync().Unblock()
}

// pass waits for one. What its sweep has left, because the machine was too slow
// to lock it at once, is done in more of them, which count as one.
func (p *process) pass(want func(Pass) bool) Pass {
	p.n.Helper()
	var sum Pass
	for {
		got := nodetest.Come(p.n, p.passes, "the plugin has reconciled")
		if sum.Waiting > 0 {
			got.Records = sum.Records
			got.Attached, got.Detached, got.Failed = got.Attached+sum.Attached, got.Detached+sum.Detached, got.Failed+sum.Failed
		}
		if sum = got; got.Waiting > 0 {
			p.kick()
		} else if want(got) {
			return got
		}
	}
}

// kick has the plugin reconcile, as its sweep does.
func (p *process) kick() {
	select {
	case p.news <- struct{}{}:
	default:
	}
}

// again has the plugin reconcile, until a pass is as wanted.
func (p *process) again(want ...func(Pass) bool) Pass {
	p.n.Helper()
	p.kick()
	return p.pass(append(want, func(Pass) bool { return true })[0])
}

// reconnect ends the connection, and returns the pass after the plugin is back.
func (p *process) reconnect() Pass {
	p.n.Helper()
	p.disconnect()
	p.connected()
	return p.pass(synchronized)
}

// wants expects that these attachments live, and that these records are there.
func (p *process) wants(x *delegatetest.Exec, live []string, records ...string) {
	p.n.Helper()
	nodetest.Equal(p.n, "alive", x.Live(), live)
	nodetest.Equal(p.n, "records", p.records(), records)
}

// nothingDone expects that no plugin has run.
func (p *process) nothingDone(x *delegatetest.Exec) {
	p.n.Helper()
	nodetest.Equal(p.n, "calls", x.Trace(), nil)
	nodetest.Equal(p.n, "records", p.records(), nil)
}

// disconnect ends the connection, as the end of the runtime does.
func (p *process) disconnect() {
	p.mu.Lock()
	defer p.mu.Unlock()
	_ = p.conn.Close()
}

// records lists what is recorded, as "container state".
func (p *process) records() (all []string) {
	p.n.Helper()
	life := &lifecycle.Manager{Dir: p.Config.StateDir}
	for r, err := range life.Records(p.n.Context()) {
		if err != nil {
			p.n.Error(err)
		}
		all = append(all, r.Key.ContainerID+" "+string(r.State))
	}
	return all
}

// byContainer sorts calls that workers make side by side.
func byContainer(calls []delegatetest.Invocation) []string {
	slices.SortStableFunc(calls, func(a, b delegatetest.Invocation) int { return cmp.Compare(a.ContainerID, b.ContainerID) })
	var lines []string
	for _, c := range calls {
		lines = append(lines, c.ContainerID+": "+c.String())
	}
	return lines
}
