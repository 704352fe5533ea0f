package main

import (
	"context"
	"fmt"
	"net"
	"testing"

	"github.com/containerd/nri/pkg/api"

	"github.com/metacni/metacni/internal/nodetest"
)

// After a restart of the runtime or the node, the runtime lists dead pods and sends
// no Stop or Remove for them. A recorded pod is detached when its network namespace
// is gone, whether the runtime lists it or not.
func TestDeadPodsAreDetachedThoughTheRuntimeListsThem(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		die  func(n *node, s *api.PodSandbox)
		says bool // the list says where its namespace is
	}{
		{"the namespace is gone", func(n *node, s *api.PodSandbox) { netns := s.Linux; n.unlink(s); s.Linux = netns }, true},
		{"the list does not say where it was", func(n *node, s *api.PodSandbox) { n.unlink(s) }, false},
		{"another has come to its path", func(n *node, s *api.PodSandbox) { n.replace(s) }, true},
	} {
		for _, restart := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, restart=%v", tt.name, restart), func(t *testing.T) {
				t.Parallel()
				n := newNode(t)
				x := plugins()
				p := n.start(x, attachRunning)
				live, dead := n.sandbox("live", "blue"), n.sandbox("dead", "blue,red")
				n.mustRun(live, dead)
				if restart {
					p.stop()
					x = plugins()
				}
				tt.die(n, dead)
				if restart {
					p = n.plugin(x, attachRunning)
					p.launch()
				} else {
					p.disconnect()
				}
				if got, want := p.pass(synchronized), (Pass{Synchronized: true, Records: 2, Detached: 1}); got != want {
					t.Errorf("pass %+v, want %+v", got, want)
				}
				nodetest.Equal(t, "records", p.records(), []string{"live added"})
				dels := x.Calls()[len(x.Calls())-2:]
				nodetest.Equal(t, "calls", byContainer(dels), []string{"dead: DEL b net2", "dead: DEL a net1"})
				for _, c := range dels {
					if c.NetNS != "" {
						t.Errorf("%s in %q, which may be another pod's", c, c.NetNS)
					}
				}
				calls := len(x.Calls())
				p.kick()
				p.pass(func(Pass) bool { return true })
				n.stop(live)
				nodetest.Equal(t, "calls", len(x.Calls()), calls+1)
			})
		}
	}
}

// attachRunning has the plugin attach pods that it finds running.
func attachRunning(p *Plugin) { p.Config.AttachRunning = true }

// Without a connection nothing is detached: the last list of pods may be out of date.
func TestNothingIsDetachedWithoutAConnection(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	x := plugins()
	p := n.plugin(x)
	dial, away, tried := p.dial, make(chan bool, 1), make(chan struct{}, 1000)
	away <- false
	p.dial = func(ctx context.Context, path string) (net.Conn, error) {
		a := <-away
		away <- a
		if a {
			tried <- struct{}{}
			return nil, errLost
		}
		return dial(ctx, path)
	}
	p.launch()
	p.connected()
	p.pass(synchronized)
	s := n.sandbox("c1", "blue")
	n.mustRun(s)
	p.forget("c1") // as if the runtime had started it without telling
	<-away
	away <- true
	p.disconnect()
	nodetest.Come(t, tried, "it has lost the connection")
	if got, want := p.Plugin.pass(t.Context(), false), (Pass{Records: 1}); got != want {
		t.Errorf("pass %+v, want %+v", got, want)
	}
	<-away
	away <- false
	p.connected()
	if got, want := p.pass(synchronized), (Pass{Synchronized: true, Records: 1}); got != want {
		t.Errorf("pass %+v, want %+v", got, want)
	}
	nodetest.Equal(t, "calls", x.Trace(), []string{"ADD a net1"})
}

// A pass of the reconciler ends when the connection is lost.
func TestALostConnectionEndsThePass(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	x := plugins()
	p := n.start(x)
	s := n.sandbox("c1", "blue")
	n.mustRun(s)
	p.Plugin.mu.Lock()
	p.stage = stageConnecting
	p.Plugin.mu.Unlock()
	p.forget("c1")
	pass := Pass{}
	p.doAll(t.Context(), []job{{id: "c1"}}, &pass)
	if pass != (Pass{}) {
		t.Errorf("pass %+v", pass)
	}
	nodetest.Equal(t, "alive", x.Live(), []string{"a c1 net1"})
}
