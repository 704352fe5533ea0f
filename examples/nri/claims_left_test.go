package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/containerd/nri/pkg/api"

	"github.com/metacni/metacni/delegate/delegatetest"
	"github.com/metacni/metacni/internal/nodetest"
)

// sweepOften is a pause between two sweeps that a test can wait for.
const sweepOften = 5 * time.Millisecond

// lateBy is a margin that leaves a request a second and a half.
func lateBy(p *Plugin) { late(p) }

// A claim stays prepared when the plugin ends, at any time. The next one attaches and detaches
// the pod.
func TestClaimsOutliveThePlugin(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	x := plugins()
	p := c.startWith(x)
	o := c.prepared("s1", "uid-1", inline("a", ""))
	p.stop()

	p = c.startWith(x)
	s := c.pod("c1", "uid-1", "")
	c.mustRun(s)
	c.reports(o, "net1", "Ready=True")
	p.stop()
	nodetest.Equal(t, "alive", x.Live(), []string{"a c1 net1"})

	p = c.startWith(x)
	nodetest.Equal(t, "calls", x.Trace(), []string{"ADD a net1"})
	c.stop(s)
	c.reports(o, "Ready=False")
	p.stop()
	p = c.startWith(x)
	if err := c.unprepare(o); err != nil {
		t.Error(err)
	}
	nodetest.Equal(t, "calls", x.Trace(), []string{"ADD a net1", "DEL a net1"})
	nodetest.Equal(t, "prepared", c.prepares(), nil)
	nodetest.Equal(t, "records", p.records(), nil)
}

// The driver serves the kubelet while the runtime is away. The plugin connects again, however
// often that fails.
func TestClaimsWhileTheRuntimeIsAway(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	x := plugins()
	refuse, tried := make(chan bool, 1), make(chan struct{}, 1000)
	refuse <- false
	p := c.startWith(x, func(p *Plugin) {
		p.longestWait = sweepOften
		dial := p.dial
		p.dial = func(ctx context.Context, path string) (net.Conn, error) {
			r := <-refuse
			refuse <- r
			if r {
				tried <- struct{}{}
				return nil, errors.New("refused")
			}
			return dial(ctx, path)
		}
	})
	<-refuse
	refuse <- true
	p.disconnect()
	for range 20 {
		nodetest.Come(t, tried, "it tries again")
	}
	o := c.prepared("s1", "uid-1", inline("a", ""))
	<-refuse
	refuse <- false
	p.connected()
	c.mustRun(c.pod("c1", "uid-1", ""))
	c.reports(o, "net1", "Ready=True")
	p.disconnect()
	p.connected()
	if err := c.unprepare(o); err != nil {
		t.Error(err)
	}
	nodetest.Equal(t, "alive", x.Live(), nil)
}

// What is left when the kubelet releases a claim is detached, in all sandboxes, and only that.
// If that fails the claim stays, and the kubelet tries again. One network whose plugin fails
// does not keep the others attached.
func TestReleasedClaimsAreDetached(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	x := plugins()
	x.Plugins["c"] = delegatetest.Result(nil)
	good := x.Plugins["b"]
	x.Plugins["b"] = delegatetest.FailOn("DEL", 101, "not now", good)
	p := c.startWith(x)
	o := c.prepared("s1", "uid-1", inline("c", ""), inline("b", ""))
	c.mustRun(c.pod("c1", "uid-1", "blue"), c.pod("c2", "uid-1", ""), c.pod("c3", "uid-2", "blue"))
	nodetest.Says(t, c.unprepare(o), "shop/s1", "not now")
	nodetest.Equal(t, "alive", x.Live(), []string{"a c1 net1", "a c3 net1", "b c1 net3", "b c2 net2"})
	nodetest.Equal(t, "prepared", c.prepares(), []string{"uid-1_claim-s1"})
	x.Plugins["b"] = good
	c.server.Stop() // which is not needed
	if err := c.unprepare(o); err != nil {
		t.Error(err)
	}
	nodetest.Equal(t, "alive", x.Live(), []string{"a c1 net1", "a c3 net1"})
	nodetest.Equal(t, "prepared", c.prepares(), nil)
	if err := c.unprepare(o); err != nil {
		t.Errorf("again: %v", err)
	}
	p.kick()
	p.pass(func(Pass) bool { return true })
	nodetest.Equal(t, "alive", x.Live(), []string{"a c1 net1", "a c3 net1"})
}

// A DEL that fails does not keep the other networks of claims attached. What is left is
// detached when the kubelet releases the claim.
func TestStopGoesOnAfterAFailure(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	x := plugins()
	good := x.Plugins["b"]
	x.Plugins["b"] = delegatetest.FailOn("DEL", 101, "not now", good)
	p := c.startWith(x)
	o := c.prepared("s1", "uid-1", inline("a", ""), inline("b", ""))
	s := c.pod("c1", "uid-1", "blue")
	c.mustRun(s)
	c.stop(s)
	nodetest.Equal(t, "calls", x.Trace(), []string{"ADD a net1", "ADD a net2", "ADD b net3", "DEL b net3", "DEL a net2", "DEL a net1"})
	nodetest.Equal(t, "records", p.records(), []string{"c1 deleting"})
	c.reports(o, "Ready=False", "not now")
	x.Plugins["b"] = good
	if err := c.unprepare(o); err != nil {
		t.Error(err)
	}
	nodetest.Equal(t, "alive", x.Live(), nil)
	p.kick()
	p.pass(func(pass Pass) bool { return pass.Detached == 1 })
	nodetest.Equal(t, "records", p.records(), nil)
}

// A pod that was started without the plugin lacks the networks of its claims. It is attached
// under the same conditions as one that selects networks, and else the claim's status says why
// it is not.
func TestRunningPodsLackTheNetworksOfTheirClaims(t *testing.T) {
	t.Parallel()
	for _, attachRunning := range []bool{false, true} {
		t.Run(fmt.Sprintf("attachRunning=%v", attachRunning), func(t *testing.T) {
			t.Parallel()
			c := newCluster(t)
			x := plugins()
			p := c.startWith(x, func(p *Plugin) { p.Config.AttachRunning = attachRunning })
			o := c.prepared("s1", "uid-1", inline("a", ""))
			c.list(c.pod("c1", "uid-1", ""))
			c.list(c.pod("c2", "uid-2", ""))
			p.disconnect()
			p.connected()
			got := p.pass(synchronized)
			if attachRunning {
				nodetest.Equal(t, "passes", []Pass{got}, []Pass{{Synchronized: true, Attached: 1}})
				nodetest.Equal(t, "calls", x.Trace(), []string{"ADD a net1"})
				c.reports(o, "net1", "Ready=True")
				return
			}
			nodetest.Equal(t, "passes", []Pass{got}, []Pass{{Synchronized: true, Unattached: 1}})
			nodetest.Equal(t, "calls", x.Trace(), nil)
			c.reports(o, "Ready=False", "started without nri")
		})
	}
}

// A pod that the runtime has given up without an event is detached when its namespace is gone, and
// the status of its claims says so.
func TestLostPodsAreReported(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	x := plugins()
	p := c.startWith(x)
	c.other("95", "later", func(*api.PodSandbox) error { return errors.New("later is not willing") })
	o := c.prepared("s1", "uid-1", inline("a", ""))
	s := c.pod("c1", "uid-1", "")
	nodetest.Says(t, c.run(s), "later is not willing")
	c.reports(o, "net1", "Ready=True")
	c.unlink(s)
	p.kick()
	p.pass(func(pass Pass) bool { return pass.Detached == 1 })
	c.reports(o, "Ready=False")
	nodetest.Equal(t, "alive", x.Live(), nil)
}

// A plugin that is killed while it attaches a pod leaves a record. The next one completes it if
// the pod runs, with its claims, and else removes it. If the claims were released meanwhile,
// nothing is left.
func TestInterruptedADDOfClaims(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name                string
		running, unprepared bool
		calls, records      []string
	}{
		{"the pod runs", true, false, []string{"c1: DEL a net1", "c1: ADD a net1"}, []string{"c1 added"}},
		{"the pod is gone", false, false, []string{"c1: DEL a net1"}, nil},
		{"the claims were released", true, true, []string{"c1: DEL a net1"}, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t)
			x := plugins()
			x.Script = func(_ int, _ delegatetest.Call, plugin delegatetest.Plugin) delegatetest.Plugin {
				if err := os.CopyFS(c.file("left"), os.DirFS(c.file("state"))); err != nil {
					t.Error(err)
				}
				return plugin
			}
			p := c.startWith(x)
			c.prepared("s1", "uid-1", inline("a", ""))
			s := c.pod("c1", "uid-1", "")
			c.mustRun(s)
			p.stop()
			nodetest.OK(t, errors.Join(os.RemoveAll(c.file("state")), os.Rename(c.file("left"), c.file("state"))))
			if !tt.running {
				c.forget(s)
			}
			if tt.unprepared {
				_ = os.Remove(c.file("state", "claims", "uid-1_claim-s1"))
			}
			again := plugins()
			p = c.startWith(again)
			nodetest.Equal(t, "calls", byContainer(again.Calls()), tt.calls)
			nodetest.Equal(t, "errors", p.log.Count("level=ERROR"), 0)
			nodetest.Equal(t, "records", p.records(), tt.records)
		})
	}
}

// On a new node the runtime starts before the kubelet. Pods that select networks must not wait for
// it, and nri, which the runtime may start only once, must not end.
func TestTheKubeletMayComeLater(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	registry := c.file("kubelet", "plugins_registry")
	nodetest.OK(t, os.Remove(registry))
	x := plugins()
	c.start(x, c.claims)
	c.mustRun(c.pod("c1", "uid-1", "blue"))
	nodetest.OK(t, os.Mkdir(registry, 0o700))
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	poll := time.NewTicker(2 * time.Millisecond)
	defer poll.Stop()
	for {
		// The file of a socket is there before anybody listens.
		if conn, err := net.Dial("unix", filepath.Join(registry, driverName+"-reg.sock")); err == nil {
			_ = conn.Close()
			break
		}
		select {
		case <-ctx.Done():
			t.Fatal("nri does not register")
		case <-poll.C:
		}
	}
	c.register()
	o := c.prepared("s1", "uid-2", inline("b", ""))
	c.mustRun(c.pod("c2", "uid-2", ""))
	c.reports(o, "Ready=True")
	nodetest.Equal(t, "calls", x.Trace(), []string{"ADD a net1", "ADD b net1"})
}
