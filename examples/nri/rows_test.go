package main

import (
	"context"
	"errors"
	"testing"

	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/nri/pkg/stub"

	"github.com/metacni/metacni/delegate/delegatetest"
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
	wantError(t, n.run(n.sandbox("c1", "blue")), "earlier is not willing")
	same(t, "calls before the other", []int{0}, calls)
	same(t, "calls", nil, x.Trace())
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
	if err := n.RunPodSandbox(t.Context(), &api.RunPodSandboxRequest{Pod: s}); err != nil {
		t.Fatal(err)
	}
	n.list(s)
	block.Unblock()
	p.connected()
	p.pass(synchronized)
	same(t, "calls", []string{"ADD a net1"}, x.Trace())
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
	wantError(t, err, `nri: RunPodSandbox pod "shop/web" (c1): `, `no <free> "device"`, "(CNI code 101)")
	same(t, "asked", []int{0}, []int{asked})
	n.mustRun(n.sandbox("c2", ""))
	same(t, "asked", []int{1}, []int{asked})
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
	receive(t, arrived, "it attaches")
	p.disconnect()
	wantError(t, receive(t, answer, "the runtime has noticed"), "90-metacni failed to handle RunPodSandbox")
	same(t, "running", nil, n.running())
	open()
	p.connected()
	for len(x.Live()) > 0 {
		p.pass(synchronized)
		p.kick()
	}
	same(t, "records", nil, p.records())
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
	receive(t, arrived, "it attaches")
	lost()
	open()
	if err := receive(t, answer, "it has attached"); err != nil {
		t.Error(err)
	}
	same(t, "records", []string{"c1 added"}, p.records())
}

// A runtime that stops NRI closes its socket but not the connection. The plugin
// serves the next runtime when it is closed.
func TestRuntimeThatStopsLeavesTheConnectionOpen(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	x := plugins()
	p := n.start(x)
	n.Stop()
	n.boot()
	p.disconnect()
	p.connected()
	n.mustRun(n.sandbox("c1", "blue"))
	same(t, "alive", []string{"a c1 net1"}, x.Live())
}

// other connects another plugin.
func (n *node) other(index, name string, run func(*api.PodSandbox) error) {
	n.t.Helper()
	s, err := stub.New(&other{run}, stub.WithPluginIdx(index), stub.WithPluginName(name), stub.WithSocketPath(n.file("sock")))
	if err != nil {
		n.t.Fatal(err)
	}
	if err := s.Start(context.Background()); err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(s.Stop)
	receive(n.t, n.synced, "the other plugin is synchronized")
	n.BlockPluginSync().Unblock()
}

type other struct{ run func(*api.PodSandbox) error }

func (o *other) RunPodSandbox(_ context.Context, s *api.PodSandbox) error { return o.run(s) }
