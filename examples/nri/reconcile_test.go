package main

import (
	"errors"
	"net"
	"os"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/containerd/nri/pkg/api"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/lifecycle"
	"github.com/metacni/metacni/examples/multinet/multinet"
	nodetest "github.com/metacni/metacni/internal/test/node"
	"github.com/metacni/metacni/netconf"
	"github.com/metacni/metacni/scratch"
)

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

// Without a connection nothing is detached, be it dead: the last list of pods may be out of date.
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
	s := n.sandbox("c1", "blue")
	n.mustRun(s)
	away.Store(true)
	p.disconnect()
	nodetest.Come(t, tried, "it has lost the connection")
	n.end(s)
	nodetest.Equal(t, "pass", p.Plugin.pass(t.Context(), false), Pass{Records: 1})
	nodetest.Equal(t, "calls", x.Trace(), []string{"ADD a net1"})
	away.Store(false)
	p.connected()
	nodetest.Equal(t, "pass", p.pass(synchronized), Pass{Synchronized: true, Records: 1, Detached: 1})
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
