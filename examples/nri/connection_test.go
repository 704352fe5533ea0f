package main

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"log/syslog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/nri/pkg/net/multiplex"
	"github.com/containerd/nri/pkg/stub"
	"github.com/containerd/ttrpc"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/delegatetest"
	"github.com/metacni/metacni/delegate/lifecycle"
	multinet "github.com/metacni/metacni/examples/multinet/plugin"
	nodetest "github.com/metacni/metacni/internal/test/node"
	"github.com/metacni/metacni/netconf"
	"github.com/metacni/metacni/scratch"
)

// A plugin that starts before its runtime waits for it.
func TestWaitsForTheRuntime(t *testing.T) {
	t.Parallel()
	n, x := newNode(t)
	n.Stop()
	p := n.plugin(x)
	tried := make(chan struct{}, 100)
	dial := p.dial
	p.dial = func(path string) (net.Conn, error) {
		tried <- struct{}{}
		return dial(path)
	}
	p.launch()
	nodetest.Come(t, tried, "it tries")
	nodetest.Come(t, tried, "it tries again")
	n.boot()
	p.connected()
	n.mustRun(n.sandbox("c1", "blue"))
	nodetest.Equal(t, "alive", x.Live(), []string{"a c1 net1"})
}

// A runtime that goes away between registration and configuration, or sends nothing,
// neither blocks the plugin nor keeps it from ending.
func TestRuntimeThatIsSilent(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		runtime func(conn net.Conn, registered func())
		again   bool
	}{
		"closes":                     {func(c net.Conn, registered func()) { registered(); _ = c.Close() }, true},
		"registers, and closes":      {func(c net.Conn, registered func()) { register(c, func() { registered(); _ = c.Close() }) }, true},
		"registers, and then rests":  {func(c net.Conn, registered func()) { register(c, registered) }, false},
		"does not even register":     {func(_ net.Conn, registered func()) { registered() }, false},
		"sends something else first": {func(c net.Conn, registered func()) { _, _ = c.Write(make([]byte, 1<<16)); registered(); _ = c.Close() }, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n, _ := newNode(t)
			n.Stop()
			l, err := net.Listen("unix", n.Path("sock"))
			nodetest.OK(t, err)
			defer l.Close()
			came := make(chan struct{}, 10)
			go func() {
				for {
					conn, err := l.Accept()
					if err != nil {
						return
					}
					tt.runtime(conn, func() { came <- struct{}{} })
				}
			}()
			p := n.plugin(plugins())
			p.launch()
			nodetest.Come(t, came, "it comes")
			if tt.again {
				nodetest.Come(t, came, "it comes again")
			}
			p.stop()
		})
	}
}

// register is a runtime that lets a plugin register, and says when its answer
// is on the way.
func register(conn net.Conn, registered func()) {
	mux := multiplex.Multiplex(&counted{Conn: conn, second: registered})
	l, err := mux.Listen(multiplex.RuntimeServiceConn)
	if err != nil {
		panic(err)
	}
	s, err := ttrpc.NewServer()
	if err != nil {
		panic(err)
	}
	api.RegisterRuntimeService(s, &registry{})
	go func() { _ = s.Serve(context.Background(), l) }()
}

// counted calls second after the second write: a frame is a header and a payload.
type counted struct {
	net.Conn
	n      atomic.Int32
	second func()
}

func (c *counted) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	if c.n.Add(1) == 2 {
		c.second()
	}
	return n, err
}

type registry struct{}

func (*registry) RegisterPlugin(context.Context, *api.RegisterPluginRequest) (*api.Empty, error) {
	return &api.Empty{}, nil
}

func (*registry) UpdateContainers(context.Context, *api.UpdateContainersRequest) (*api.UpdateContainersResponse, error) {
	return nil, errors.New("no")
}

// When the context of Run ends, requests are completed and answered, and no goroutine
// is left.
func TestRunEndsWhatIsUnderWay(t *testing.T) { // not parallel: it looks at all goroutines
	n, x := newNode(t)
	arrived := make(deadline, 2)
	gate, open := n.gate()
	x.Plugins["b"] = arrived.during("ADD", stuck("ADD", gate, x.Plugins["b"]))
	hanging := delegatetest.HangOn("DEL", x.Plugins["a"])
	var reconciled atomic.Bool
	x.Plugins["a"] = func(ctx context.Context, c delegatetest.Invocation) ([]byte, error) {
		switch c.ContainerID + " " + c.Command {
		case "stopped DEL":
			arrived <- time.Time{}
			return hanging(ctx, c)
		case "gone DEL":
			arrived <- time.Time{}
			<-gate
			defer reconciled.Store(true)
		}
		return delegatetest.Result(nil)(ctx, c)
	}
	p := n.start(x)
	stopped, gone := n.sandbox("stopped", "blue"), n.sandbox("gone", "blue")
	n.mustRun(stopped, gone)
	n.end(gone)
	p.disconnect()
	p.connected()
	nodetest.Come(t, arrived, "it reconciles")
	answers := make(chan error, 1)
	// Requests of one runtime wait for each other; this one has not waited.
	detached := make(chan error, 1)
	go func() { detached <- p.StopPodSandbox(context.Background(), stopped) }()
	nodetest.Come(t, arrived, "it detaches")
	pod := n.sandbox("c1", "blue,red")
	go func() { answers <- n.run(pod) }()
	nodetest.Come(t, arrived, "it attaches")
	ended := make(chan struct{})
	go func() { p.stop(); close(ended) }()
	nodetest.Until(t, "it has been told to end", func() bool { return p.alive.Err() != nil })
	open()
	nodetest.Come(t, ended, "it has ended")
	nodetest.Equal(t, "reconciled", reconciled.Load(), true)
	nodetest.OK(t, nodetest.Come(t, answers, "what was being attached is answered"))
	nodetest.OK(t, nodetest.Come(t, detached, "it has answered"))
	nodetest.Equal(t, "records", p.records(), []string{"c1 added", "stopped deleting"})
	nodetest.Contains(t, "log: what was being detached was ended", p.log.String(), "context canceled")
	nodetest.Says(t, p.RunPodSandbox(t.Context(), n.sandbox("c2", "blue")), errEnds.Error())
	nodetest.OK(t, p.StopPodSandbox(t.Context(), stopped))
	buf := make([]byte, 1<<20)
	nodetest.Until(t, "nothing is left running", func() bool { // what ends with the connection may not have run yet
		stacks := string(buf[:runtime.Stack(buf, true)])
		return !strings.Contains(stacks, "(*Plugin)") && !strings.Contains(stacks, "lifecycle")
	})
}

// A launched plugin ends with its connection.
func TestLaunchedPluginEndsWithItsConnection(t *testing.T) {
	t.Parallel()
	cmd := exec.Command(os.Args[0])
	r, w, err := os.Pipe() // which is no socket
	nodetest.OK(t, err)
	defer w.Close()
	cmd.ExtraFiles = []*os.File{r}
	cmd.Env = []string{api.PluginNameEnvVar + "=networks", api.PluginIdxEnvVar + "=10", api.PluginSocketEnvVar + "=3"}
	out, err := cmd.CombinedOutput()
	var failed *exec.ExitError
	if !errors.As(err, &failed) || failed.ExitCode() != 1 || !strings.Contains(string(out), "stopped") {
		t.Errorf("%v: %s", err, out)
	}
}

// Run fails at once if the configuration file cannot be used.
func TestRunWithBadConfiguration(t *testing.T) {
	t.Parallel()
	n, _ := newNode(t)
	n.Write("bad.json", `{"index":"x"}`)
	n.Write("broken.json", `{`)
	n.Write("good.json", `{"socket":"`+n.Path("none")+`"}`)
	for _, file := range []string{"bad.json", "broken.json", "absent.json"} {
		nodetest.Refused(t, file, run(t.Context(), n.Path(file), slog.New(slog.DiscardHandler)))
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	nodetest.OK(t, run(ctx, n.Path("good.json"), slog.New(slog.DiscardHandler)))
}

// A runtime that launches plugins discards their stderr. The log then goes to the
// system's log.
func TestLogIsNotThrownAway(t *testing.T) {
	t.Parallel()
	socket := filepath.Join(t.TempDir(), "log")
	l, err := net.ListenPacket("unixgram", socket)
	nodetest.OK(t, err)
	defer l.Close()
	null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	nodetest.OK(t, err)
	defer null.Close()
	file, err := os.Create(filepath.Join(t.TempDir(), "stderr"))
	nodetest.OK(t, err)
	defer file.Close()
	system := func() (io.Writer, error) { return syslog.Dial("unixgram", socket, priority, "nri") }
	none := func() (io.Writer, error) { return nil, errors.New("no system log") }
	if w := destination(file, system); w != io.Writer(file) {
		t.Errorf("logs to %v though there is a stderr", w)
	}
	if w := destination(null, none); w != io.Writer(null) {
		t.Errorf("logs to %v, and there is only a stderr", w)
	}
	_, err = io.WriteString(destination(null, system), "hello\n")
	nodetest.OK(t, err)
	buf := make([]byte, 1<<10)
	k, _, err := l.ReadFrom(buf)
	if got := string(buf[:k]); err != nil || !strings.Contains(got, "nri[") || !strings.HasSuffix(got, ": hello\n") {
		t.Errorf("%q, %v", got, err)
	}
}

// impatient is a margin that leaves a request little time.
func impatient(p *Plugin) { p.Config.Margin = multinet.Duration(requestTimeout - 100*time.Millisecond) }

// refused runs a plugin that must not start, and checks what Run says.
func (n *node) refused(x *delegatetest.Exec, dir string, edit ...func(*Plugin)) {
	n.Helper()
	p := n.plugin(x, append(edit, impatient, func(p *Plugin) { p.Config.StateDir = dir })...)
	ctx, cancel := context.WithCancel(n.Context())
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- p.Run(ctx) }()
	nodetest.Says(n, nodetest.Come(n, ended, "the second plugin has given up"), "stateDir", dir, "another nri", "of its own")
	nodetest.Equal(n, "calls", x.Trace(), nil)
}

// Two plugins with one state directory would detach each other's pods. The second is refused, whatever
// its name and its runtime, and the first is not affected. One that replaces the first waits until that
// has ended, and uses its records.
func TestTwoOnOneStateDirectory(t *testing.T) {
	t.Parallel()
	n, x, p := started(t)
	other, _ := newNode(t)
	s, second := n.sandbox("c1", "blue,red"), n.sandbox("c2", "blue")
	n.mustRun(s, second)
	dir := p.Config.StateDir
	n.refused(plugins(), dir, func(p *Plugin) { p.Config.Index, p.Config.Name = "91", "other" })
	other.refused(plugins(), dir) // which has no such pod
	nodetest.Equal(t, "records", p.records(), []string{"c1 added", "c2 added"})
	n.stop(second)
	nodetest.Equal(t, "calls", x.Trace(), []string{"ADD a net1", "ADD b net2", "ADD a net1", "DEL a net1"})
	nodetest.Equal(t, "the connection was lost", p.log.Count("not connected"), 0)

	x = plugins()
	next := n.plugin(x)
	next.launch()
	p.stop()
	next.connected()
	next.pass(synchronized)
	n.stop(s)
	nodetest.Equal(t, "calls", x.Trace(), []string{"DEL b net2", "DEL a net1"})
	nodetest.Equal(t, "records", next.records(), nil)
}

// Two plugins with a state directory each, on one runtime, do not touch each other's
// attachments, even if one loses its connection or ends.
func TestTwoWithAStateDirectoryEach(t *testing.T) {
	t.Parallel()
	n, x, one := started(t)
	x2 := plugins()
	two := n.start(x2, func(p *Plugin) { p.Config.Index, p.Config.StateDir = "91", n.Path("state2") })
	n.mustRun(n.sandbox("c1", "blue"))
	for _, p := range []*process{one, two} {
		p.reconnect()
	}
	one.stop()
	two.again()
	for _, x := range []*delegatetest.Exec{x, x2} {
		nodetest.Equal(t, "calls", x.Trace(), []string{"ADD a net1"})
	}
}

// Plugins run in the order of their indices. By default nri is late, so that it has nothing to undo
// if another one fails. The runtime receives the text of an error unchanged, and does not call
// later plugins.
func TestErrorsReachTheRuntimeUnchanged(t *testing.T) {
	t.Parallel()
	n, x := newNode(t)
	x.Plugins["a"] = delegatetest.FailOn("", 101, "no <free> \"device\"", nil)
	n.start(x)
	asked := 0
	n.other("95", "later", func(*api.PodSandbox) error { asked++; return nil })
	nodetest.Says(t, n.run(n.sandbox("c1", "blue")), `nri: RunPodSandbox pod "shop/web" (c1): `, `no <free> "device"`, "(CNI code 101)")
	n.mustRun(n.sandbox("c2", ""))
	nodetest.Equal(t, "asked", asked, 1)
	calls := len(x.Calls())
	n.other("10", "earlier", func(*api.PodSandbox) error { return errors.New("earlier is not willing") })
	nodetest.Says(t, n.run(n.sandbox("c3", "blue")), "earlier is not willing")
	nodetest.Equal(t, "calls", len(x.Calls()), calls)
}

// If the runtime supports failure policies, a pod is not started when the plugin is
// lost during its event. What the plugin had begun is removed when it is back.
func TestPodIsNotStartedWhenThePluginIsLost(t *testing.T) {
	t.Parallel()
	n, x := newNode(t)
	arrived := make(deadline)
	gate, open := n.gate()
	x.Plugins["b"] = arrived.during("ADD", stuck("ADD", gate, x.Plugins["b"]))
	p := n.start(x)
	s := n.sandbox("c1", "blue,red")
	answer := make(chan error, 1)
	go func() { answer <- n.runOnce(s) }()
	nodetest.Come(t, arrived, "it attaches")
	p.disconnect()
	nodetest.Says(t, nodetest.Come(t, answer, "the runtime has noticed"), "90-metacni failed to handle RunPodSandbox")
	nodetest.Equal(t, "running", n.running(), nil)
	n.unlink(s) // the runtime gives the pod up
	open()
	p.connected()
	for len(x.Live()) > 0 {
		p.pass(synchronized)
		p.kick()
	}
	nodetest.Equal(t, "records", p.records(), nil)
}

// If the runtime does not support failure policies, such a pod is started. So its ADD
// goes on.
func TestPodStartedWithoutThePluginIsAttached(t *testing.T) {
	t.Parallel()
	n, x := newNode(t)
	arrived := make(deadline)
	gate, open := n.gate()
	x.Plugins["a"] = arrived.during("ADD", stuck("ADD", gate, x.Plugins["a"]))
	p := n.configured(x)
	ctx, lost := context.WithCancel(context.Background())
	answer := make(chan error, 1)
	pod := n.sandbox("c1", "blue")
	go func() { answer <- p.RunPodSandbox(ctx, pod) }()
	nodetest.Come(t, arrived, "it attaches")
	lost()
	open()
	nodetest.OK(t, nodetest.Come(t, answer, "it has attached"))
	nodetest.Equal(t, "records", p.records(), []string{"c1 added"})
}

// other connects another plugin.
func (n *node) other(index, name string, run func(*api.PodSandbox) error) {
	n.Helper()
	s, err := stub.New(&other{run}, stub.WithPluginIdx(index), stub.WithPluginName(name), stub.WithSocketPath(n.Path("sock")))
	nodetest.OK(n, err)
	nodetest.OK(n, s.Start(context.Background()))
	n.Cleanup(s.Stop)
	nodetest.Come(n, n.synced, "the other plugin is synchronized")
	n.BlockPluginSync().Unblock()
}

type other struct{ run func(*api.PodSandbox) error }

func (o *other) RunPodSandbox(_ context.Context, s *api.PodSandbox) error { return o.run(s) }

// synchronized is the pass after a Synchronize.
func synchronized(pass Pass) bool { return pass.Synchronized }

// end has a pod end, and the runtime lose it, without a word.
func (n *node) end(s *api.PodSandbox) {
	n.forget(s)
	n.unlink(s)
}

// forget has the runtime lose a pod without a word.
func (n *node) forget(s *api.PodSandbox) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.pods = slices.DeleteFunc(n.pods, func(o *api.PodSandbox) bool { return o.GetId() == s.GetId() })
}

// Neither Synchronize nor events of other pods wait for the reconciler.
func TestReconcilingRunsInTheBackground(t *testing.T) {
	t.Parallel()
	n, _, p := started(t)
	gone := n.sandbox("gone", "blue")
	n.mustRun(gone)
	p.stop()
	n.end(gone)

	x := plugins()
	gate, open := n.gate()
	x.Plugins["a"] = stuck("DEL", gate, x.Plugins["a"])
	p = n.plugin(x)
	p.launch()
	p.connected()
	s := n.sandbox("c1", "blue")
	n.mustRun(s)
	nodetest.Equal(t, "alive", x.Live(), []string{"a c1 net1"})
	open()
	nodetest.Equal(t, "pods detached", p.pass(synchronized).Detached, 1)
	nodetest.Equal(t, "records", p.records(), []string{"c1 added"})
}

// The reconciler does not attach a pod that has stopped meanwhile.
func TestPodStoppedBeforeItIsReconciled(t *testing.T) {
	t.Parallel()
	n, x := newNode(t)
	p := n.configured(x)
	_, err := p.Synchronize(t.Context(), nil, nil)
	nodetest.OK(t, err)
	s := n.sandbox("c1", "blue")
	nodetest.Is(t, p.attach(t.Context(), s, namespace(s), func() error { return nil }), errGone)
	nodetest.Equal(t, "alive", x.Live(), nil)
}

// A list without a running pod is no proof that the pod has ended: its networks stay, list after
// list, until an event says so.
func TestPodThatIsNotListedStaysAttached(t *testing.T) {
	t.Parallel()
	n, x, p := started(t)
	all := []*api.PodSandbox{n.sandbox("c1", "blue"), n.sandbox("c2", "blue,red")}
	n.mustRun(all...)
	for _, s := range all {
		n.forget(s)
	}
	nodetest.Equal(t, "pass", p.reconnect(), Pass{Synchronized: true, Records: 2})
	nodetest.Equal(t, "pass", p.again(), Pass{Synchronized: true, Records: 2})
	nodetest.Equal(t, "records", p.records(), []string{"c1 added", "c2 added"})
	for _, s := range all {
		n.stop(s)
	}
	p.wants(x, nil)
}

// Damaged records do not stop the reconciler.
func TestDamagedRecordsDoNotStopTheReconciler(t *testing.T) {
	t.Parallel()
	n, _, p := started(t)
	bad, gone := n.sandbox("bad", "blue"), n.sandbox("gone", "blue")
	n.mustRun(bad, gone)
	p.stop()
	n.end(gone)
	n.Write("state/bad@nri@eth0.json", "{")
	n.Write("state/none@nri@eth0.json", `{"version":1}`)
	foreign, err := netconf.LoadFile(os.DirFS(n.Path("net.d")), "blue.conf")
	nodetest.OK(t, err)
	life := lifecycle.Manager{Dir: n.Path("state"), Invoker: &delegate.Invoker{Exec: plugins()}}
	_, err = life.Add(t.Context(), scratch.Key{Network: "multi", ContainerID: "foreign", IfName: "eth0"}, lifecycle.Transaction{
		Plan: lifecycle.Plan(delegate.Attachment{Network: foreign, ContainerID: "foreign", IfName: "eth0"}),
	})
	nodetest.OK(t, err)
	x := plugins()
	p = n.start(x, attachRunning)
	nodetest.Equal(t, "pass", p.first, Pass{Synchronized: true, Records: 4, Damaged: 2, Detached: 1})
	nodetest.Equal(t, "calls", byContainer(x.Calls()), []string{"gone: DEL a net1"})
	nodetest.Equal(t, "notable", []bool{p.first.Notable(), Pass{Records: 3}.Notable()}, []bool{true, false})
}

// When a later plugin fails, the runtime does not tell that there is no pod. A sweep
// detaches it when its network namespace is gone, and not before.
func TestSweepAfterALaterPluginFails(t *testing.T) {
	t.Parallel()
	n, x := newNode(t)
	p := n.start(x, func(p *Plugin) { p.Config.Sweep = multinet.Duration(5 * time.Millisecond) })
	n.other("95", "later", func(s *api.PodSandbox) error {
		if s.GetId() == "c1" {
			return errors.New("later is not willing")
		}
		return nil
	})
	s, alive := n.sandbox("c1", "blue,red"), n.sandbox("c2", "blue")
	nodetest.Says(t, n.run(s), "later is not willing")
	n.mustRun(alive)
	p.pass(func(pass Pass) bool { return pass.Records == 2 })
	p.pass(func(pass Pass) bool { return pass.Records == 2 })
	nodetest.Equal(t, "alive", x.Live(), []string{"a c1 net1", "a c2 net1", "b c1 net2"})
	n.unlink(s)
	p.pass(func(pass Pass) bool { return pass.Detached == 1 })
	nodetest.Equal(t, "alive", x.Live(), []string{"a c2 net1"})
	nodetest.Equal(t, "records", p.records(), []string{"c2 added"})
}

// attachRunning has the plugin attach pods that it finds running.
func attachRunning(p *Plugin) { p.Config.AttachRunning = true }

// Without a connection nothing is detached, be it dead: the last list of pods may be out of date. The
// connection is made again, and missed events are made up for.
func TestNothingIsDetachedWithoutAConnection(t *testing.T) {
	t.Parallel()
	n, x := newNode(t)
	p := n.plugin(x)
	var away atomic.Bool
	dial, tried := p.dial, make(chan struct{}, 1000)
	p.dial = func(path string) (net.Conn, error) {
		if away.Load() {
			tried <- struct{}{}
			return nil, errLost
		}
		return dial(path)
	}
	p.launch()
	p.connected()
	p.pass(synchronized)
	kept, gone := n.sandbox("kept", "blue"), n.sandbox("gone", "blue")
	n.mustRun(kept, gone)
	away.Store(true)
	p.disconnect()
	nodetest.Come(t, tried, "it has lost the connection")
	n.end(gone)
	nodetest.Equal(t, "pass", p.Plugin.pass(t.Context(), false), Pass{Records: 2})
	nodetest.Equal(t, "alive", x.Live(), []string{"a gone net1", "a kept net1"})
	away.Store(false)
	p.connected()
	nodetest.Equal(t, "pass", p.pass(synchronized), Pass{Synchronized: true, Records: 2, Detached: 1})
	nodetest.Equal(t, "alive", x.Live(), []string{"a kept net1"})
	n.stop(kept)
	p.wants(x, nil)
	before := p.log.Count("not connected")
	p.reconnect()
	nodetest.Equal(t, "lost again", p.log.Count("not connected")-before, 1)
}

// What is left of a pass when the connection is lost is not done.
func TestALostConnectionEndsThePass(t *testing.T) {
	t.Parallel()
	n, x := newNode(t)
	p := n.configured(x) // and nothing is listed yet
	gone, owed := n.sandbox("gone", "blue"), n.sandbox("owed", "blue")
	nodetest.OK(t, p.RunPodSandbox(t.Context(), gone))
	p.pods.forget("gone")
	p.pods.learn(owed)
	pass := Pass{}
	p.attachAll(t.Context(), []job{{pod{sandbox: owed}, namespace(owed)}}, &pass)
	p.sweep(t.Context(), nil, &pass)
	nodetest.Equal(t, "pass", pass, Pass{})
	nodetest.Equal(t, "alive", x.Live(), []string{"a gone net1"})
}
