package main

import (
	"context"
	"testing"
	"time"

	"github.com/metacni/metacni/delegate/delegatetest"
	"github.com/metacni/metacni/examples/multinet/multinet"
	"github.com/metacni/metacni/internal/nodetest"
)

// impatient is a margin that leaves a request little time.
func impatient(p *Plugin) { p.Config.Margin = multinet.Duration(requestTimeout - 100*time.Millisecond) }

// refused runs a plugin that must not start, and checks what Run says.
func (n *node) refused(x *delegatetest.Exec, dir string, edit ...func(*Plugin)) {
	n.t.Helper()
	p := n.plugin(x, append(edit, impatient, func(p *Plugin) { p.Config.StateDir = dir })...)
	ctx, cancel := context.WithCancel(n.t.Context())
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- p.Run(ctx) }()
	nodetest.Says(n.t, nodetest.Come(n.t, ended, "the second plugin has given up"), "stateDir", dir, "another nri", "of its own")
	nodetest.Equal(n.t, "calls", x.Trace(), nil)
}

// Two plugins with one state directory would detach each other's pods. The second is
// refused, whatever its name and its runtime, and the first is not affected.
func TestTwoOnOneStateDirectory(t *testing.T) {
	t.Parallel()
	n, other := newNode(t), newNode(t)
	x := plugins()
	p := n.start(x)
	s := n.sandbox("c1", "blue,red")
	n.mustRun(s)
	dir := p.Config.StateDir
	n.refused(plugins(), dir)
	n.refused(plugins(), dir, func(p *Plugin) { p.Config.Index, p.Config.Name = "91", "other" })
	other.refused(plugins(), dir) // which has no such pod
	nodetest.Equal(t, "records", p.records(), []string{"c1 added"})
	n.stop(s)
	nodetest.Equal(t, "calls", x.Trace(), []string{"ADD a net1", "ADD b net2", "DEL b net2", "DEL a net1"})
	nodetest.Equal(t, "the connection was lost", p.log.Count("not connected"), 0)
}

// A plugin that replaces another with the same state directory waits until that has
// ended, and uses its records.
func TestSuccessorWaitsForTheStateDirectory(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	first := n.start(plugins())
	s := n.sandbox("c1", "blue")
	n.mustRun(s)
	x := plugins()
	next := n.plugin(x)
	next.launch()
	first.stop()
	next.connected()
	next.pass(synchronized)
	n.stop(s)
	nodetest.Equal(t, "calls", x.Trace(), []string{"DEL a net1"})
	nodetest.Equal(t, "records", next.records(), nil)
}

// Waiting for the state directory ends with the context.
func TestWaitingForTheStateDirectoryEnds(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.start(plugins())
	p := n.plugin(plugins())
	p.launch()
	nodetest.Until(t, "it has been configured", func() bool {
		p.Plugin.mu.Lock()
		defer p.Plugin.mu.Unlock()
		return p.stage != stageConnecting
	})
	p.stop()
}

// Two plugins with a state directory each, on one runtime or two, do not touch each
// other's pods, even if one loses its connection or ends.
func TestTwoWithAStateDirectoryEach(t *testing.T) {
	t.Parallel()
	for _, runtimes := range []int{1, 2} {
		t.Run([]string{"", "one runtime", "two runtimes"}[runtimes], func(t *testing.T) {
			t.Parallel()
			nodes := []*node{newNode(t), newNode(t)}
			if runtimes == 1 {
				nodes[1] = nodes[0]
			}
			xs, ps := []*delegatetest.Exec{plugins(), plugins()}, make([]*process, 2)
			for i, n := range nodes {
				ps[i] = n.start(xs[i], func(p *Plugin) {
					p.Config.Index, p.Config.StateDir = []string{"90", "91"}[i], n.file("state", p.Config.Index+string(rune('a'+i)))
				})
			}
			for i, n := range nodes[:runtimes] {
				n.mustRun(n.sandbox("c"+string(rune('1'+i)), "blue"))
			}
			before := [][]string{xs[0].Live(), xs[1].Live()}
			for i, p := range ps {
				p.disconnect()
				ps[1-i].kick()
				p.connected()
				p.pass(synchronized)
				p.kick()
				p.pass(func(Pass) bool { return true })
			}
			ps[0].stop()
			ps[1].kick()
			ps[1].pass(func(Pass) bool { return true })
			for i := range xs {
				nodetest.Equal(t, "alive", xs[i].Live(), before[i])
				if len(xs[i].Live()) != 1 {
					t.Errorf("alive: %q", xs[i].Live())
				}
			}
		})
	}
}
