package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/containerd/nri/pkg/api"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/delegatetest"
	"github.com/metacni/metacni/delegate/lifecycle"
	"github.com/metacni/metacni/examples/multinet/multinet"
	nodetest "github.com/metacni/metacni/internal/test/node"
	"github.com/metacni/metacni/netconf"
	"github.com/metacni/metacni/scratch"
)

// synchronized is the pass after a Synchronize.
func synchronized(pass Pass) bool { return pass.Synchronized }

// The runtime's list of pods is compared with the records.
func TestRuntimesListIsComparedWithRecords(t *testing.T) {
	t.Parallel()
	for _, attachRunning := range []bool{false, true} {
		t.Run(fmt.Sprintf("attachRunning=%v", attachRunning), func(t *testing.T) {
			t.Parallel()
			n, _, p := started(t)
			kept, gone, unlisted := n.sandbox("kept", "blue"), n.sandbox("gone", "blue,red"), n.sandbox("unlisted", "blue")
			n.mustRun(kept, gone, unlisted)
			p.stop()
			n.end(gone) // while nobody is told
			n.forget(unlisted)
			n.list(n.sandbox("new", "blue"))
			n.list(n.sandbox("plain", ""))
			n.list(n.sandbox("broken", "[{"))
			dead := n.sandbox("dead", "blue") // stopped, and not yet removed
			n.list(dead)
			_ = os.Remove(n.file("netns", "dead"))
			silent := n.sandbox("silent", "blue") // its namespace is not said
			silent.Linux = nil
			n.list(silent)

			x2 := plugins()
			p = n.start(x2, func(p *Plugin) { p.Config.AttachRunning = attachRunning })
			want := Pass{Synchronized: true, Records: 3, Detached: 1, Unattached: 1}
			trace := []string{"gone: DEL b net2", "gone: DEL a net1"}
			records := []string{"kept added"}
			if attachRunning {
				want.Attached, want.Unattached = 1, 0
				trace = append(trace, "new: ADD a net1")
				records = append(records, "new added")
			}
			nodetest.Equal(t, "pass", p.first, want)
			nodetest.Equal(t, "calls", byContainer(x2.Calls()), trace)
			records = append(records, "unlisted added")
			nodetest.Equal(t, "records", p.records(), records)
			nodetest.Equal(t, "warnings", p.log.Count("runs without its networks"), want.Unattached)
			p.again()
			nodetest.Equal(t, "calls", byContainer(x2.Calls()), trace)
		})
	}
}

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

// An event of a pod that is being reconciled waits for that, or ends it.
func TestEventDuringReconciling(t *testing.T) {
	t.Parallel()
	n, x := newNode(t)
	running := n.sandbox("c1", "blue,red")
	n.list(running)
	arrived := make(deadline)
	x.Plugins["b"] = arrived.during("ADD", delegatetest.HangOn("ADD", x.Plugins["b"]))
	p := n.plugin(x, attachRunning)
	p.launch()
	p.connected()
	nodetest.Come(t, arrived, "the reconciler attaches")
	n.stop(running)
	nodetest.Equal(t, "calls", x.Trace(), []string{"ADD a net1", "ADD b net2", "DEL b net2", "DEL a net1"})
	nodetest.Equal(t, "alive", x.Live(), nil)
	nodetest.Equal(t, "pass", p.pass(synchronized), Pass{Synchronized: true})
	nodetest.Equal(t, "records", p.records(), nil)
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

// A pod that the runtime has started without waiting for the answer is attached when
// the runtime lists it, although its request has failed.
func TestPodStartedWithoutAnAnswer(t *testing.T) {
	t.Parallel()
	n, x := newNode(t)
	arrived := make(chan struct{}, 10)
	gate, open := n.gate()
	x.Script = func(call int, _ delegatetest.Call, plugin delegatetest.Plugin) delegatetest.Plugin {
		arrived <- struct{}{}
		if call == 1 {
			return delegatetest.FailOn("ADD", 101, "no", plugin)
		}
		return plugin
	}
	x.Plugins["a"] = stuck("DEL", gate, x.Plugins["a"])
	p := n.configured(x)
	s := n.sandbox("c1", "blue")
	answer := make(chan error, 1)
	go func() { answer <- p.RunPodSandbox(context.Background(), s) }()
	nodetest.Come(t, arrived, "it attaches")
	nodetest.Come(t, arrived, "it undoes that")
	_, err := p.Synchronize(t.Context(), []*api.PodSandbox{s}, nil)
	nodetest.OK(t, err)
	open()
	nodetest.Says(t, nodetest.Come(t, answer, "it has answered"), "code 101")
	nodetest.Equal(t, "pods attached", p.Plugin.pass(t.Context(), true).Attached, 1)
	nodetest.Equal(t, "calls", x.Trace(), []string{"ADD a net1", "DEL a net1", "ADD a net1"})
	nodetest.Equal(t, "records", p.records(), []string{"c1 added"})
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
	p.nothingLeft(x)
}

// A pod that runs, and is owed its networks, gets them after a sweep has removed what a failed undo
// has left, and after a list that lacks it.
func TestPodThatIsOwedItsNetworksIsNotForgotten(t *testing.T) {
	t.Parallel()
	n, x := newNode(t)
	var broken, left atomic.Bool
	broken.Store(true)
	left.Store(true)
	x.Plugins["a"] = failing("DEL", &left, failing("ADD", &broken, x.Plugins["a"]))
	p := n.configured(x)
	s := n.sandbox("c1", "blue")
	list := func(ss ...*api.PodSandbox) {
		t.Helper()
		_, err := p.Synchronize(t.Context(), ss, nil)
		nodetest.OK(t, err)
	}
	p.pods.learn(s)
	list(s)
	p.pods.tried("c1", errLate) // it was listed while it was attached: the answer was too late
	nodetest.Equal(t, "pods failed", p.Plugin.pass(t.Context(), true).Failed > 0, true)
	nodetest.Equal(t, "records", p.records(), []string{"c1 leftover"})
	left.Store(false)
	nodetest.Until(t, "a sweep removes what is left", func() bool { return p.Plugin.pass(t.Context(), false).Detached == 1 })
	list()
	nodetest.Equal(t, "pods attached while it is not listed", p.Plugin.pass(t.Context(), true).Attached, 0)
	broken.Store(false)
	list(s)
	nodetest.Equal(t, "pods attached", p.Plugin.pass(t.Context(), true).Attached, 1)
	nodetest.Equal(t, "records", p.records(), []string{"c1 added"})
}

// Damaged records do not stop the reconciler.
func TestDamagedRecordsDoNotStopTheReconciler(t *testing.T) {
	t.Parallel()
	n, _, p := started(t)
	bad, gone := n.sandbox("bad", "blue"), n.sandbox("gone", "blue")
	n.mustRun(bad, gone)
	p.stop()
	n.end(gone)
	n.write("{", "state", "bad@nri@eth0.json")
	n.write(`{"version":1}`, "state", "none@nri@eth0.json")
	foreign, err := netconf.LoadFile(os.DirFS(n.file("net.d")), "blue.conf")
	nodetest.OK(t, err)
	life := lifecycle.Manager{Dir: n.file("state"), Invoker: &delegate.Invoker{Exec: plugins()}}
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

// After a restart of the runtime or the node, the runtime lists dead pods and sends
// no Stop or Remove for them. A recorded pod is detached when its network namespace
// is gone, whether the runtime lists it or not.
func TestDeadPodsAreDetachedThoughTheRuntimeListsThem(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		die  func(n *node, s *api.PodSandbox)
	}{
		{"the namespace is gone", func(n *node, s *api.PodSandbox) { netns := s.Linux; n.unlink(s); s.Linux = netns }},
		{"the list does not say where it was", (*node).unlink},
		{"another has come to its path", (*node).replace},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			n, x := newNode(t)
			p := n.start(x, attachRunning)
			live, dead := n.sandbox("live", "blue"), n.sandbox("dead", "blue,red")
			n.mustRun(live, dead)
			tt.die(n, dead)
			p.disconnect()
			nodetest.Equal(t, "pass", p.pass(synchronized), Pass{Synchronized: true, Records: 2, Detached: 1})
			nodetest.Equal(t, "records", p.records(), []string{"live added"})
			dels := x.Calls()[len(x.Calls())-2:]
			nodetest.Equal(t, "calls", byContainer(dels), []string{"dead: DEL b net2", "dead: DEL a net1"})
			for _, c := range dels {
				if c.NetNS != "" {
					t.Errorf("%s in %q, which may be another pod's", c, c.NetNS)
				}
			}
			p.again()
			n.stop(live)
			nodetest.Equal(t, "alive", x.Live(), nil)
		})
	}
}

// attachRunning has the plugin attach pods that it finds running.
func attachRunning(p *Plugin) { p.Config.AttachRunning = true }

// Without a connection nothing is detached: the last list of pods may be out of date.
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
	p.pods.forget("c1") // as if the runtime had started it without telling
	away.Store(true)
	p.disconnect()
	nodetest.Come(t, tried, "it has lost the connection")
	nodetest.Equal(t, "pass", p.Plugin.pass(t.Context(), false), Pass{Records: 1})
	away.Store(false)
	p.connected()
	nodetest.Equal(t, "pass", p.pass(synchronized), Pass{Synchronized: true, Records: 1})
	nodetest.Equal(t, "calls", x.Trace(), []string{"ADD a net1"})
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

// Wherever a plugin is killed, the next one leaves nothing behind. A pod that runs
// gets all of its networks if the plugin was killed while it attached them. A pod
// that is gone has none.
func TestKilledAnywhere(t *testing.T) {
	t.Parallel()
	const adds, dels = 2, 2
	for step := 1; step <= adds+dels; step++ {
		for _, gone := range []bool{false, true} {
			t.Run(fmt.Sprintf("call %d, gone=%v", step, gone), func(t *testing.T) {
				t.Parallel()
				n, _ := newNode(t)
				s := n.sandbox("c1", "blue,red")
				old := plugins()
				arrived, ended := make(chan struct{}), make(chan struct{})
				old.Script = func(call int, _ delegatetest.Call, plugin delegatetest.Plugin) delegatetest.Plugin {
					if call != step {
						return plugin
					}
					return func(ctx context.Context, c delegatetest.Call) ([]byte, error) {
						close(arrived)
						<-ended
						return plugin(ctx, c)
					}
				}
				first := n.configured(old)
				events := make(chan error, 1)
				go func() {
					err := first.RunPodSandbox(context.Background(), s)
					if err == nil {
						err = first.StopPodSandbox(context.Background(), s)
					}
					events <- err
				}()
				nodetest.Come(t, arrived, "the plugin is killed")
				left := old.Live()
				nodetest.OK(t, os.CopyFS(n.file("left"), os.DirFS(n.file("state"))))
				close(ended)
				nodetest.Come(t, events, "nobody cares for the old one any more")

				if !gone {
					n.list(s)
				}
				x := plugins()
				p := n.start(x, func(p *Plugin) { p.Config.StateDir = n.file("left") })
				trace := x.Trace()
				for _, alive := range left {
					plugin, ifname := strings.Fields(alive)[0], strings.Fields(alive)[2]
					if !slices.Contains(trace, "DEL "+plugin+" "+ifname) {
						t.Errorf("%s is left: %q", alive, trace)
					}
				}
				nodetest.Equal(t, "pods failed", p.first.Failed, 0)
				if gone || step > adds {
					p.nothingLeft(x)
				} else {
					nodetest.Equal(t, "alive", x.Live(), []string{"a c1 net1", "b c1 net2"})
					nodetest.Equal(t, "records", p.records(), []string{"c1 added"})
				}
				n.stop(s)
				n.remove(s)
				p.nothingLeft(x)
			})
		}
	}
}

// A pod that was started although its ADD was interrupted is attached as soon as
// possible, in the recorded network namespace if the runtime does not name one.
func TestInterruptedADDIsTriedAgain(t *testing.T) {
	t.Parallel()
	n, x := newNode(t)
	s := n.sandbox("c1", "blue")
	netns := n.file("netns", "c1")
	n.interrupted(s)
	s.Linux = nil
	p := n.start(x)
	nodetest.Equal(t, "calls", x.Trace(), []string{"DEL a net1", "ADD a net1"})
	nodetest.Equal(t, "attached in", x.Calls()[1].NetNS, netns)
	p.stop()

	n, x = newNode(t)
	s = n.sandbox("c1", "blue")
	n.interrupted(s)
	var broken atomic.Bool
	broken.Store(true)
	x.Plugins["a"] = failing("ADD", &broken, x.Plugins["a"])
	p = n.start(x)
	nodetest.Equal(t, "first pass", p.first, Pass{Synchronized: true, Records: 1, Failed: 1})
	want := func(when string, want Pass) {
		t.Helper()
		nodetest.Equal(t, "pass "+when, p.pass(func(Pass) bool { return true }), want)
	}
	p.disconnect()
	p.connected()
	want("connected again", Pass{Synchronized: true, Failed: 1})
	broken.Store(false)
	p.kick()
	want("no more broken", Pass{Synchronized: true, Attached: 1})
	nodetest.Equal(t, "records", p.records(), []string{"c1 added"})
	calls := len(x.Calls())
	p.kick()
	want("attached", Pass{Synchronized: true, Records: 1})
	nodetest.Equal(t, "calls", len(x.Calls()), calls)
}

// A pod whose ADD was interrupted and whose network namespace is gone is detached,
// even if the runtime still lists it.
func TestInterruptedPodWithoutANamespaceIsDetached(t *testing.T) {
	t.Parallel()
	n, x := newNode(t)
	s := n.sandbox("c1", "blue")
	n.interrupted(s)
	n.unlink(s)
	p := n.start(x)
	nodetest.Equal(t, "pass", p.first, Pass{Synchronized: true, Records: 1, Detached: 1})
	nodetest.Equal(t, "calls", x.Trace(), []string{"DEL a net1"})
	nodetest.Equal(t, "records", p.records(), nil)
}

// interrupted leaves the record of a pod whose ADD was interrupted, and has it
// run.
func (n *node) interrupted(s *api.PodSandbox) {
	n.t.Helper()
	x := plugins()
	arrived, ended := make(chan struct{}), make(chan struct{})
	x.Plugins["a"] = func(context.Context, delegatetest.Call) ([]byte, error) {
		close(arrived)
		<-ended
		return nil, errors.New("signal: killed")
	}
	p := n.configured(x, func(p *Plugin) { p.Config.StateDir = n.file("old") })
	done := make(chan error)
	go func() { done <- p.RunPodSandbox(context.Background(), s) }()
	nodetest.Come(n.t, arrived, "the plugin is interrupted")
	nodetest.OK(n.t, os.CopyFS(n.file("state"), os.DirFS(n.file("old"))))
	n.t.Cleanup(func() {
		x.Plugins = nil
		close(ended)
		<-done
	})
	n.list(s)
}
