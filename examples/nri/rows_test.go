package main

import (
	"context"
	"errors"
	"testing"

	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/nri/pkg/stub"

	"github.com/metacni/metacni/delegate/delegatetest"
	"github.com/metacni/metacni/internal/nodetest"
)

// Plugins run in the order of their indices. By default nri is late, so that it has
// nothing to undo if another one fails.
func TestRunsAfterOtherPluginsByDefault(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	x := plugins()
	n.start(x)
	var calls []int
	n.other("10", "earlier", func(*api.PodSandbox) error {
		calls = append(calls, len(x.Calls()))
		return errors.New("earlier is not willing")
	})
	nodetest.Says(t, n.run(n.sandbox("c1", "blue")), "earlier is not willing")
	nodetest.Equal(t, "calls before the other", calls, []int{0})
	nodetest.Equal(t, "calls", x.Trace(), nil)
}

// A pod that is being started while the plugin connects is either in the list or an
// event, never both and never neither.
func TestPodIsEitherListedOrAnEvent(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	block := n.BlockPluginSync()
	s := n.sandbox("c1", "blue") // its event came too early for the plugin
	x := plugins()
	p := n.plugin(x, func(p *Plugin) { p.Config.AttachRunning = true })
	p.launch()
	nodetest.OK(t, n.RunPodSandbox(t.Context(), &api.RunPodSandboxRequest{Pod: s}))
	n.list(s)
	block.Unblock()
	p.connected()
	p.pass(synchronized)
	nodetest.Equal(t, "calls", x.Trace(), []string{"ADD a net1"})
}

// The runtime receives the text of an error unchanged, and does not call later
// plugins. A Stop never fails, so that they are called.
func TestErrorsReachTheRuntimeUnchanged(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	x := plugins()
	x.Plugins["a"] = delegatetest.FailOn("", 101, "no <free> \"device\"", nil)
	n.start(x)
	asked := 0
	n.other("95", "later", func(*api.PodSandbox) error { asked++; return nil })
	err := n.run(n.sandbox("c1", "blue"))
	nodetest.Says(t, err, `nri: RunPodSandbox pod "shop/web" (c1): `, `no <free> "device"`, "(CNI code 101)")
	nodetest.Equal(t, "asked", asked, 0)
	n.mustRun(n.sandbox("c2", ""))
	nodetest.Equal(t, "asked", asked, 1)
}

// If the runtime supports failure policies, a pod is not started when the plugin is
// lost during its event. What the plugin had begun is removed when it is back.
func TestPodIsNotStartedWhenThePluginIsLost(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	x := plugins()
	arrived := make(chan struct{})
	gate, open := n.gate()
	x.Plugins["b"] = func(ctx context.Context, c delegatetest.Call) ([]byte, error) {
		if c.Command == "ADD" {
			close(arrived)
			<-gate
		}
		return delegatetest.Result(nil)(ctx, c)
	}
	p := n.start(x)
	s := n.sandbox("c1", "blue,red")
	answer := make(chan error, 1)
	go func() { answer <- n.runOnce(s) }()
	nodetest.Come(t, arrived, "it attaches")
	p.disconnect()
	nodetest.Says(t, nodetest.Come(t, answer, "the runtime has noticed"), "90-metacni failed to handle RunPodSandbox")
	nodetest.Equal(t, "running", n.running(), nil)
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
	n := newNode(t)
	x := plugins()
	arrived := make(chan struct{}, 10)
	gate, open := n.gate()
	x.Script = func(_ int, _ delegatetest.Call, plugin delegatetest.Plugin) delegatetest.Plugin {
		arrived <- struct{}{}
		return delegatetest.GateOn("ADD", gate, plugin)
	}
	p := n.plugin(x)
	if _, err := p.Configure(t.Context(), "", "test", "1.0"); err != nil {
		t.Fatal(err)
	}
	ctx, lost := context.WithCancel(context.Background())
	answer := make(chan error, 1)
	go func() { answer <- p.RunPodSandbox(ctx, n.sandbox("c1", "blue")) }()
	nodetest.Come(t, arrived, "it attaches")
	lost()
	open()
	if err := nodetest.Come(t, answer, "it has attached"); err != nil {
		t.Error(err)
	}
	nodetest.Equal(t, "records", p.records(), []string{"c1 added"})
}

// other connects another plugin.
func (n *node) other(index, name string, run func(*api.PodSandbox) error) {
	n.t.Helper()
	s, err := stub.New(&other{run}, stub.WithPluginIdx(index), stub.WithPluginName(name), stub.WithSocketPath(n.file("sock")))
	nodetest.OK(n.t, err)
	nodetest.OK(n.t, s.Start(context.Background()))
	n.t.Cleanup(s.Stop)
	nodetest.Come(n.t, n.synced, "the other plugin is synchronized")
	n.BlockPluginSync().Unblock()
}

type other struct{ run func(*api.PodSandbox) error }

func (o *other) RunPodSandbox(_ context.Context, s *api.PodSandbox) error { return o.run(s) }
