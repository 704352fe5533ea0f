package main

import (
	"context"
	"errors"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/nri/pkg/net/multiplex"
	"github.com/containerd/ttrpc"

	"github.com/metacni/metacni/delegate/delegatetest"
	"github.com/metacni/metacni/internal/nodetest"
)

// A lost connection is made again, and missed events are made up for.
func TestReconnects(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	x := plugins()
	p := n.start(x)
	kept, gone := n.sandbox("kept", "blue"), n.sandbox("gone", "blue")
	n.mustRun(kept, gone)
	block := n.BlockPluginSync()
	p.disconnect()
	n.forget(gone)
	n.list(n.sandbox("new", "blue"))
	block.Unblock()
	p.connected()
	if got, want := p.pass(synchronized), (Pass{Synchronized: true, Records: 2, Detached: 1, Unattached: 1}); got != want {
		t.Errorf("pass %+v, want %+v", got, want)
	}
	nodetest.Equal(t, "alive", x.Live(), []string{"a kept net1"})
	n.stop(kept)
	nodetest.Equal(t, "alive", x.Live(), nil)
	nodetest.Equal(t, "lost", p.log.Count("not connected"), 1)
}

// A plugin that starts before its runtime waits for it.
func TestWaitsForTheRuntime(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.Stop()
	x := plugins()
	p := n.plugin(x)
	tried := make(chan struct{}, 100)
	dial := p.dial
	p.dial = func(ctx context.Context, path string) (net.Conn, error) {
		tried <- struct{}{}
		return dial(ctx, path)
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
			n := newNode(t)
			n.Stop()
			l, err := net.Listen("unix", n.file("sock"))
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
	n := newNode(t)
	x := plugins()
	arrived := make(chan struct{}, 2)
	gate, open := n.gate()
	x.Plugins["b"] = func(ctx context.Context, c delegatetest.Call) ([]byte, error) {
		if c.Command == "ADD" {
			arrived <- struct{}{}
			<-gate
		}
		return delegatetest.Result(nil)(ctx, c)
	}
	hanging := delegatetest.HangOn("DEL", x.Plugins["a"])
	var reconciled atomic.Bool
	x.Plugins["a"] = func(ctx context.Context, c delegatetest.Call) ([]byte, error) {
		switch c.ContainerID + " " + c.Command {
		case "stopped DEL":
			arrived <- struct{}{}
			return hanging(ctx, c)
		case "gone DEL":
			arrived <- struct{}{}
			<-gate
			defer reconciled.Store(true)
		}
		return delegatetest.Result(nil)(ctx, c)
	}
	p := n.start(x)
	stopped, gone := n.sandbox("stopped", "blue"), n.sandbox("gone", "blue")
	n.mustRun(stopped, gone)
	n.forget(gone)
	p.disconnect()
	p.connected()
	nodetest.Come(t, arrived, "it reconciles")
	answers := make(chan error, 1)
	// Requests of one runtime wait for each other; this one has not waited.
	detached := make(chan error, 1)
	go func() { detached <- p.StopPodSandbox(context.Background(), stopped) }()
	nodetest.Come(t, arrived, "it detaches")
	go func() { answers <- n.run(n.sandbox("c1", "blue,red")) }()
	nodetest.Come(t, arrived, "it attaches")
	ended := make(chan struct{})
	go func() { p.stop(); close(ended) }()
	nodetest.Until(t, "it has been told to end", func() bool {
		p.work.mu.Lock()
		defer p.work.mu.Unlock()
		return p.work.ended
	})
	open()
	nodetest.Come(t, ended, "it has ended")
	if !reconciled.Load() {
		t.Error("the reconciler is at work still")
	}
	if err := nodetest.Come(t, answers, "it has answered"); err != nil {
		t.Errorf("what was being attached: %v", err)
	}
	if err := nodetest.Come(t, detached, "it has answered"); err != nil {
		t.Error(err)
	}
	nodetest.Equal(t, "records", p.records(), []string{"c1 added", "stopped deleting"})
	if !strings.Contains(p.log.String(), "context canceled") {
		t.Errorf("what was being detached was not ended: %s", p.log)
	}
	if err := p.RunPodSandbox(t.Context(), n.sandbox("c2", "blue")); !strings.Contains(err.Error(), errEnds.Error()) {
		t.Errorf("after the end: %v", err)
	}
	if err := p.StopPodSandbox(t.Context(), stopped); err != nil {
		t.Errorf("after the end: %v", err)
	}
	for _, g := range goroutines() {
		if strings.Contains(g, "(*Plugin)") || strings.Contains(g, "lifecycle") {
			t.Errorf("left running: %s", g)
		}
	}
}

// goroutines lists the stacks of all.
func goroutines() []string {
	buf := make([]byte, 1<<20)
	return strings.Split(string(buf[:runtime.Stack(buf, true)]), "\n\n")
}

// A runtime launches the plugin with its configuration. When the runtime goes away
// the plugin ends, because it cannot connect again.
func TestLaunchedByTheRuntime(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.Stop()
	self, err := os.Executable()
	nodetest.OK(t, err)
	n.write("", "plugins", "README") // not executable
	nodetest.OK(t, os.Symlink(self, n.file("plugins", "10-networks")))
	n.write(`{"confDir":"`+n.file("special.d")+`","stateDir":"`+n.file("state")+`"}`, "conf.d", "networks.conf")
	n.boot()
	err = n.run(n.sandbox("c1", "blue"))
	nodetest.Says(t, err, `"blue"`, "special.d", "code")
	n.mustRun(n.sandbox("c2", ""))
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
	n := newNode(t)
	n.write(`{"index":"x"}`, "bad.json")
	n.write(`{`, "broken.json")
	n.write(`{"socket":"`+n.file("none")+`"}`, "good.json")
	for _, file := range []string{"bad.json", "broken.json", "absent.json"} {
		if err := run(t.Context(), n.file(file), (&Plugin{}).log()); err == nil {
			t.Errorf("%s: no error", file)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := run(ctx, n.file("good.json"), (&Plugin{}).log()); err != nil {
		t.Error(err)
	}
}

// Work that begins after the end is cancelled and does not delay the end.
func TestWorkBegunAfterTheEndIsCancelled(t *testing.T) {
	t.Parallel()
	var w work
	began, done := make(chan struct{}), make(chan error, 1)
	w.start(func() {
		<-began
		ctx, cancel := w.context(t.Context())
		defer cancel()
		done <- ctx.Err()
	})
	go w.end()
	for w.start(func() {}) { // until it has ended
	}
	close(began)
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("context of the work: %v", err)
	}
}
