//go:build e2e && linux

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/containerd/nri/pkg/api"

	"github.com/metacni/metacni/delegate/delegatetest"
	nodetest "github.com/metacni/metacni/internal/test/node"
)

// newLivingNode is newNode, whose pods have network namespaces: whether they live is certain.
func newLivingNode(t *testing.T) (*node, *delegatetest.Exec) {
	t.Helper()
	n, x := newNode(t)
	n.netNS = nodetest.NetNS
	return n, x
}

// Stop detaches in reverse order, in the recorded network namespace if the event has
// none. Remove does so again. Neither fails.
func TestStopAndRemoveDetach(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		prepare func(n *node, s *api.PodSandbox)
		netns   bool
	}{
		"with its namespace":                      {func(*node, *api.PodSandbox) {}, true},
		"without namespaces":                      {func(_ *node, s *api.PodSandbox) { s.Linux = nil }, true},
		"without namespaces, its own gone":        {func(n *node, s *api.PodSandbox) { n.unlink(s) }, false},
		"with its namespace, which is another by": {func(n *node, s *api.PodSandbox) { n.replace(s) }, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n, x := newLivingNode(t)
			p := n.start(x)
			s := n.sandbox("c1", "blue,red")
			path := n.Path("netns", "c1")
			n.mustRun(s)
			tt.prepare(n, s)
			n.stop(s)
			nodetest.Equal(t, "calls", x.Trace(), []string{"ADD a net1", "ADD b net2", "DEL b net2", "DEL a net1"})
			for _, c := range x.Calls()[2:] {
				if (c.NetNS == path) != tt.netns || c.NetNS != path && c.NetNS != "" {
					t.Errorf("%s in %q", c, c.NetNS)
				}
			}
			n.stop(s)
			n.remove(s)
			n.remove(s)
			nodetest.Equal(t, "calls", x.Trace(), []string{"ADD a net1", "ADD b net2", "DEL b net2", "DEL a net1"})
			nodetest.Equal(t, "records", p.records(), nil)
		})
	}
}

// replace puts another namespace where that of s was.
func (n *node) replace(s *api.PodSandbox) {
	linux := s.Linux
	n.unlink(s)
	n.netns(s.GetId())
	s.Linux = linux
}

// A pod that was started without the plugin lacks the networks of its claims, and their status
// says why.
func TestRunningPodsLackTheNetworksOfTheirClaims(t *testing.T) {
	t.Parallel()
	n, x := newLivingNode(t)
	c := clusterOf(t, n)
	p := c.startWith(x)
	o := c.prepared("s1", "uid-1", inline("a", ""))
	c.list(c.pod("c1", "uid-1", ""))
	c.list(c.pod("c2", "uid-2", ""))
	p.disconnect()
	p.connected()
	nodetest.Equal(t, "pass", p.pass(synchronized), Pass{Synchronized: true, Unattached: 1})
	nodetest.Equal(t, "calls", x.Trace(), nil)
	c.reports(o, "Ready=False", "started without nri")
}

// A plugin that is killed while it attaches a pod leaves a record. The next one completes it if
// the pod runs, with its claims. If the claims were released meanwhile,
// nothing is left.
func TestInterruptedADDOfClaims(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name           string
		unprepared     bool
		calls, records []string
	}{
		{"the claims are prepared", false, []string{"c1: DEL a net1", "c1: ADD a net1"}, []string{"c1 added"}},
		{"the claims were released", true, []string{"c1: DEL a net1"}, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			n, x := newLivingNode(t)
			c := clusterOf(t, n)
			x.Script = func(_ int, _ delegatetest.Call, plugin delegatetest.Plugin) delegatetest.Plugin {
				if err := os.CopyFS(c.Path("left"), os.DirFS(c.Path("state"))); err != nil {
					t.Error(err)
				}
				return plugin
			}
			p := c.startWith(x)
			c.prepared("s1", "uid-1", inline("a", ""))
			s := c.pod("c1", "uid-1", "")
			c.mustRun(s)
			p.stop()
			nodetest.OK(t, errors.Join(os.RemoveAll(c.Path("state")), os.Rename(c.Path("left"), c.Path("state"))))
			if tt.unprepared {
				_ = os.Remove(c.Path("state", "claims", "uid-1@claim-s1@claim.json"))
			}
			again := plugins()
			p = c.startWith(again)
			nodetest.Equal(t, "calls", byContainer(again.Calls()), tt.calls)
			nodetest.Equal(t, "errors", p.log.Count("level=ERROR"), 0)
			nodetest.Equal(t, "records", p.records(), tt.records)
		})
	}
}

// The runtime's list of pods is compared with the records.
func TestRuntimesListIsComparedWithRecords(t *testing.T) {
	t.Parallel()
	for _, attachRunning := range []bool{false, true} {
		t.Run(fmt.Sprintf("attachRunning=%v", attachRunning), func(t *testing.T) {
			t.Parallel()
			n, x := newLivingNode(t)
			p := n.start(x)
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
			_ = os.Remove(n.Path("netns", "dead"))
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

// An event of a pod that is being reconciled waits for that, or ends it.
func TestEventDuringReconciling(t *testing.T) {
	t.Parallel()
	n, x := newLivingNode(t)
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

// A pod that the runtime has started without waiting for the answer is attached when
// the runtime lists it, although its request has failed.
func TestPodStartedWithoutAnAnswer(t *testing.T) {
	t.Parallel()
	n, x := newLivingNode(t)
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

// A pod that runs, and is owed its networks, gets them after a sweep has removed what a failed undo
// has left, and after a list that lacks it.
func TestPodThatIsOwedItsNetworksIsNotForgotten(t *testing.T) {
	t.Parallel()
	n, x := newLivingNode(t)
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
			n, x := newLivingNode(t)
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

// Wherever a plugin is killed, the next one leaves nothing behind. A pod that runs
// gets all of its networks if the plugin was killed while it attached them, in the recorded
// namespace. A pod
// that is gone has none.
func TestKilledAnywhere(t *testing.T) {
	t.Parallel()
	const adds, dels = 2, 2
	for step := 1; step <= adds+dels; step++ {
		for _, gone := range []bool{false, true} {
			t.Run(fmt.Sprintf("call %d, gone=%v", step, gone), func(t *testing.T) {
				t.Parallel()
				n, _ := newLivingNode(t)
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
				nodetest.OK(t, os.CopyFS(n.Path("left"), os.DirFS(n.Path("state"))))
				close(ended)
				nodetest.Come(t, events, "nobody cares for the old one any more")

				s.Linux = nil // not every runtime repeats it
				if !gone {
					n.list(s)
				}
				x := plugins()
				p := n.start(x, func(p *Plugin) { p.Config.StateDir = n.Path("left") })
				trace := x.Trace()
				for _, alive := range left {
					plugin, ifname := strings.Fields(alive)[0], strings.Fields(alive)[2]
					if !slices.Contains(trace, "DEL "+plugin+" "+ifname) {
						t.Errorf("%s is left: %q", alive, trace)
					}
				}
				nodetest.Equal(t, "pods failed", p.first.Failed, 0)
				if gone || step > adds {
					p.wants(x, nil)
				} else {
					nodetest.Equal(t, "alive", x.Live(), []string{"a c1 net1", "b c1 net2"})
					nodetest.Equal(t, "records", p.records(), []string{"c1 added"})
				}
				n.stop(s)
				n.remove(s)
				p.wants(x, nil)
			})
		}
	}
}

// A pod that was started although its ADD was interrupted is attached as soon as
// possible.
func TestInterruptedADDIsTriedAgain(t *testing.T) {
	t.Parallel()
	n, x := newLivingNode(t)
	s := n.sandbox("c1", "blue")
	n.interrupted(s)
	var broken atomic.Bool
	broken.Store(true)
	x.Plugins["a"] = failing("ADD", &broken, x.Plugins["a"])
	p := n.start(x)
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

// The runtime need not name the namespace of a pod whose ADD was interrupted: it is recorded. If it
// is gone, the pod is detached, even if the runtime still lists it.
func TestInterruptedADDInTheRecordedNamespace(t *testing.T) {
	t.Parallel()
	for gone, want := range map[bool][]string{false: {"DEL a net1", "ADD a net1"}, true: {"DEL a net1"}} {
		n, x := newLivingNode(t)
		s := n.sandbox("c1", "blue")
		n.interrupted(s)
		s.Linux = nil
		if gone {
			n.unlink(s)
		}
		p := n.start(x)
		nodetest.Equal(t, "calls", x.Trace(), want)
		if !gone {
			nodetest.Equal(t, "attached in", x.Calls()[1].NetNS, n.Path("netns", "c1"))
		}
		nodetest.Equal(t, "records", len(p.records()), len(want)-1)
		p.stop()
	}
}

// interrupted leaves the record of a pod whose ADD was interrupted, and has it
// run.
func (n *node) interrupted(s *api.PodSandbox) {
	n.Helper()
	x := plugins()
	arrived, ended := make(chan struct{}), make(chan struct{})
	x.Plugins["a"] = func(context.Context, delegatetest.Call) ([]byte, error) {
		close(arrived)
		<-ended
		return nil, errors.New("signal: killed")
	}
	p := n.configured(x, func(p *Plugin) { p.Config.StateDir = n.Path("old") })
	done := make(chan error)
	go func() { done <- p.RunPodSandbox(context.Background(), s) }()
	nodetest.Come(n, arrived, "the plugin is interrupted")
	nodetest.OK(n, os.CopyFS(n.Path("state"), os.DirFS(n.Path("old"))))
	n.Cleanup(func() {
		x.Plugins = nil
		close(ended)
		<-done
	})
	n.list(s)
}
