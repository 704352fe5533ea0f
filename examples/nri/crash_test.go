package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/nri/pkg/api"

	"github.com/metacni/metacni/delegate/delegatetest"
	"github.com/metacni/metacni/internal/nodetest"
)

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
				n := newNode(t)
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
				first := n.plugin(old)
				if _, err := first.Configure(t.Context(), "", "test", "1.0"); err != nil {
					t.Fatal(err)
				}
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
				p := n.plugin(x, func(p *Plugin) { p.Config.StateDir = n.file("left") })
				p.launch()
				pass := p.pass(synchronized)
				trace := x.Trace()
				for _, alive := range left {
					plugin, ifname := strings.Fields(alive)[0], strings.Fields(alive)[2]
					if !slices.Contains(trace, "DEL "+plugin+" "+ifname) {
						t.Errorf("%s is left: %q", alive, trace)
					}
				}
				if pass.Failed > 0 {
					t.Errorf("pass %+v", pass)
				}
				if gone || step > adds {
					nodetest.Equal(t, "alive", x.Live(), nil)
					nodetest.Equal(t, "records", p.records(), nil)
				} else {
					nodetest.Equal(t, "alive", x.Live(), []string{"a c1 net1", "b c1 net2"})
					nodetest.Equal(t, "records", p.records(), []string{"c1 added"})
				}
				n.stop(s)
				n.remove(s)
				nodetest.Equal(t, "alive", x.Live(), nil)
				nodetest.Equal(t, "records", p.records(), nil)
			})
		}
	}
}

// A pod that was started although its ADD was interrupted is attached as soon as
// possible, in the recorded network namespace if the runtime does not name one.
func TestInterruptedADDIsTriedAgain(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	s := n.sandbox("c1", "blue")
	netns := n.file("netns", "c1")
	n.interrupted(s)
	s.Linux = nil
	x := plugins()
	p := n.start(x)
	nodetest.Equal(t, "calls", x.Trace(), []string{"DEL a net1", "ADD a net1"})
	if got := x.Calls()[1].NetNS; got != netns {
		t.Errorf("attached in %q", got)
	}
	p.stop()

	n = newNode(t)
	s = n.sandbox("c1", "blue")
	n.interrupted(s)
	x = plugins()
	broken := make(chan bool, 1)
	broken <- true
	good := x.Plugins["a"]
	x.Plugins["a"] = func(ctx context.Context, c delegatetest.Call) ([]byte, error) {
		b := <-broken
		broken <- b
		if b && c.Command == "ADD" {
			return nil, errors.New("not now")
		}
		return good(ctx, c)
	}
	p = n.plugin(x)
	p.launch()
	p.connected()
	want := func(when string, want Pass) {
		t.Helper()
		if got := p.pass(func(Pass) bool { return true }); got != want {
			t.Errorf("%s: pass %+v, want %+v", when, got, want)
		}
	}
	want("at first", Pass{Synchronized: true, Records: 1, Failed: 1})
	p.disconnect()
	p.connected()
	want("connected again", Pass{Synchronized: true, Failed: 1})
	<-broken
	broken <- false
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
	n := newNode(t)
	s := n.sandbox("c1", "blue")
	n.interrupted(s)
	n.unlink(s)
	x := plugins()
	p := n.plugin(x)
	p.launch()
	if got, want := p.pass(synchronized), (Pass{Synchronized: true, Records: 1, Detached: 1}); got != want {
		t.Errorf("pass %+v, want %+v", got, want)
	}
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
	p := n.plugin(x, func(p *Plugin) { p.Config.StateDir = n.file("old") })
	if _, err := p.Configure(n.t.Context(), "", "test", "1.0"); err != nil {
		n.t.Fatal(err)
	}
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
