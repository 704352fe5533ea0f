package main

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerd/nri/pkg/api"

	"github.com/metacni/metacni/delegate/delegatetest"
	multinet "github.com/metacni/metacni/examples/multinet/plugin"
	nodetest "github.com/metacni/metacni/internal/test/node"
	"github.com/metacni/metacni/netconf/nad"
)

// The annotation of a pod selects networks by name. Nothing is attached to pods on
// the host's network, or without a selection.
func TestAnnotationSelectsNetworks(t *testing.T) {
	t.Parallel()
	n, x, p := started(t)
	onHost := n.sandbox("hostless", "blue")
	onHost.Linux.Namespaces = onHost.Linux.Namespaces[:1]
	silent := n.sandbox("silent", "")
	silent.Linux = nil
	ours := n.sandbox("ours", "blue")
	ours.Linux.Namespaces[1].Path = "/proc/self/ns/net"
	n.mustRun(n.sandbox("blank", "  "), onHost, silent, ours)
	n.stop(onHost)
	n.remove(onHost)
	p.nothingDone(x)
	both := n.sandbox("both", "blue,kube-system/red")
	n.mustRun(both)
	nodetest.Equal(t, "calls", x.Trace(), []string{"ADD a net1", "ADD b net2"})
	n.stop(both)
	nodetest.Equal(t, "alive", x.Live(), nil)
}

// If the reconciler cannot detach a pod, it logs that once, with the pod's name. The
// record has the name, because the runtime may have forgotten the pod.
func TestTheReconcilerNamesPods(t *testing.T) {
	t.Parallel()
	n, x := newNode(t)
	x.Plugins["a"] = delegatetest.FailOn("DEL", 113, "not now", x.Plugins["a"])
	p := n.start(x)
	gone := n.sandbox("gone", "blue")
	n.mustRun(gone)
	n.end(gone)
	nodetest.Equal(t, "pods failed", p.reconnect().Failed, 1)
	for range 3 {
		p.again()
	}
	line := `level=WARN msg="stale attachment cannot be removed" container=gone network=nri ifname=eth0 pod=shop/web`
	nodetest.Equal(t, "lines "+line, p.log.Count(line), 1)
}

// A pod that cannot be attached is not started. The error names the pod, the network
// and the reason.
func TestPodThatCannotBeAttachedIsRefused(t *testing.T) {
	t.Parallel()
	n, x := newNode(t)
	n.Write("net.d/absent.conf", `{"cniVersion":"1.0.0","name":"absent","type":"absent"}`)
	p := n.start(x)
	for networks, words := range map[string][]string{
		"green":     {"RunPodSandbox", `"shop/web" (c1)`, `"green"`, "net.d", "code 7"},
		"blue@eth0": {"eth0", "code 7"},
		"[{":        {nad.NetworksAnnotation, "code 6"},
		"absent":    {`"absent"`, "code 7"},
		`[{"name":"blue","mac":"02:00:00:00:00:01"}]`:    {`"blue"`, `"mac"`, "capabilities", "code 7"},
		`[{"name":"blue","default-route":["10.0.0.1"]}]`: {`"blue"`, "default-route", "code 7"},
	} {
		err := n.run(n.sandbox("c1", networks))
		if err == nil {
			t.Errorf("%s: the pod is started", networks)
			continue
		}
		nodetest.Says(t, err, words...)
	}
	nodetest.Equal(t, "lines in the log", p.log.Count("level=ERROR msg=refused"), 6)
	for _, missing := range []func(s *api.PodSandbox){
		func(s *api.PodSandbox) { s.Linux = nil },
		func(s *api.PodSandbox) { s.Linux.Namespaces = nil },
		func(s *api.PodSandbox) { s.Linux.Namespaces[1].Path = "" }, // as of a pod with a user namespace
	} { // It is not taken for a pod on the host's network.
		s := n.sandbox("c1", "blue")
		missing(s)
		nodetest.Says(t, n.run(s), `"shop/web" (c1)`, "network namespace", "no path", "code 8")
	}
	odd := n.sandbox("c1", "blue")
	odd.Name = "web;IP=10.0.0.9"
	nodetest.Says(t, n.run(odd), "more than one argument")
	bad := n.sandbox("c2", "blue")
	bad.Id = "../c2"
	nodetest.Says(t, n.run(bad), "code 4")
	n.stop(bad) // which nobody could have attached
	nodetest.Equal(t, "calls", x.Trace(), nil)
	nodetest.Equal(t, "running", n.running(), nil)
	nodetest.Equal(t, "records", p.records(), nil)
}

// Attachments are recorded by sandbox, because a pod may have several. Interface
// names and arguments are the usual ones.
func TestAttachmentsBelongToSandboxes(t *testing.T) {
	t.Parallel()
	n, x := newNode(t)
	n.Write("net.d/mac.conf", `{"cniVersion":"1.0.0","name":"mac","type":"a","capabilities":{"mac":true},"args":{"cni":{"old":1}}}`)
	p := n.start(x, func(p *Plugin) {
		p.InterfaceNames = func(string) ([]string, error) { return []string{"lo", "eth0", "net2"}, nil }
	})
	first := n.sandbox("c1", "blue,red,blue@data0")
	second := n.sandbox("c2", `[{"name":"mac","mac":"02:00:00:00:00:01","cni-args":{"new":2}}]`) // of the same pod
	n.mustRun(first, second)
	nodetest.Equal(t, "calls", x.Trace(), []string{"ADD a net1", "ADD b net3", "ADD a data0", "ADD a net1"})
	nodetest.Equal(t, "records", p.records(), []string{"c1 added", "c2 added"})
	calls := x.Calls()
	if c := calls[0]; c.ContainerID != "c1" || c.NetNS != n.Path("netns", "c1") ||
		c.Args != "IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web;K8S_POD_INFRA_CONTAINER_ID=c1;K8S_POD_UID=uid-1" ||
		c.Path != n.Path("bin") {
		t.Errorf("call: %+v", c)
	}
	conf := nodetest.Stdin(t, calls[3])
	if !reflect.DeepEqual(conf["runtimeConfig"], map[string]any{"mac": "02:00:00:00:00:01"}) ||
		!reflect.DeepEqual(conf["args"], map[string]any{"cni": map[string]any{"old": 1.0, "new": 2.0}}) {
		t.Errorf("configuration: %s", calls[3].Stdin)
	}
	n.stop(first)
	nodetest.Equal(t, "alive", x.Live(), []string{"a c2 net1"})
	n.stop(second)
	nodetest.Equal(t, "alive", x.Live(), nil)
	nodetest.Equal(t, "the log says which interfaces a pod has got", p.log.Count("data0") > 0, true)
}

// The answer comes before the deadline, by the margin.
func TestAnswerComesBeforeTheDeadline(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		for _, tt := range []struct{ timeout, margin, want time.Duration }{
			{2 * time.Second, 0, 1700 * time.Millisecond},
			{200 * time.Millisecond, 0, -100 * time.Millisecond}, // no time at all
			{2 * time.Second, time.Second, time.Second},
			{0, time.Second, silentTimeout - time.Second}, // no deadline
		} {
			ctx, cancel := context.WithTimeout(t.Context(), tt.timeout)
			if tt.timeout == 0 {
				ctx = t.Context()
			}
			conf := Config{Margin: multinet.Duration(tt.margin)}
			nodetest.Equal(t, fmt.Sprintf("%+v: answer after", tt), time.Until(conf.answerBy(ctx)), tt.want)
			cancel()
		}
	})
}

// A deadline is the time at which requests must be answered: each value is for one of them.
type deadline chan time.Time

func (d deadline) set(p *Plugin) { p.clock = d }

// during is p, whose request is late as soon as it does its command.
func (d deadline) during(command string, p delegatetest.Fake) delegatetest.Fake {
	return func(ctx context.Context, c delegatetest.Invocation) ([]byte, error) {
		if c.Command == command {
			d <- time.Time{}
		}
		return p(ctx, c)
	}
}

// stuck is p that does its command when the gate is open, whatever its context.
func stuck(command string, gate <-chan struct{}, p delegatetest.Fake) delegatetest.Fake {
	return func(ctx context.Context, c delegatetest.Invocation) ([]byte, error) {
		if c.Command == command {
			<-gate
		}
		return p(ctx, c)
	}
}

// failing is p, but its command fails as long as it is broken.
func failing(command string, broken *atomic.Bool, p delegatetest.Fake) delegatetest.Fake {
	return func(ctx context.Context, c delegatetest.Invocation) ([]byte, error) {
		if c.Command == command && broken.Load() {
			return nil, errors.New("not now")
		}
		return p(ctx, c)
	}
}

// startStuck starts the plugin with a fake that is stuck in command until open is called. What
// the plugin waits for is late then.
func (n *node) startStuck(x *delegatetest.Exec, typ, command string) (p *process, late deadline, open func()) {
	gate, open := n.gate()
	late = make(deadline)
	x.Plugins[typ] = late.during(command, stuck(command, gate, x.Plugins[typ]))
	return n.start(x, late.set), late, open
}

// An ADD that takes too long is answered with an error before the deadline, so that
// the pod is not started. Undoing goes on, and the record stays until it has
// succeeded. The runtime keeps the plugin.
func TestLateADDIsAnErrorBeforeTheDeadline(t *testing.T) {
	t.Parallel()
	n, x := newNode(t)
	p, _, open := n.startStuck(x, "b", "ADD")
	nodetest.Says(t, n.run(n.sandbox("c1", "blue,red")), `"shop/web" (c1)`, `network "red" (net2)`, `plugin "b"`,
		"within the runtime's timeout", "plugin_request_timeout", "nri_plugin_request_timeout", "code 11")
	nodetest.Equal(t, "running", n.running(), nil)
	nodetest.Equal(t, "records", p.records(), []string{"c1 planned"})
	nodetest.Equal(t, "alive", x.Live(), []string{"a c1 net1", "b c1 net2"})
	n.mustRun(n.sandbox("c2", "blue")) // meanwhile
	open()
	p.stop() // which waits
	nodetest.Equal(t, "alive", x.Live(), []string{"a c2 net1"})
	nodetest.Equal(t, "records", p.records(), []string{"c2 added"})
	nodetest.Equal(t, "the connection was lost", p.log.Count("not connected"), 0)
}

// If an ADD succeeds just at its deadline, the answer and the record agree.
func TestAnswerAndRecordAgree(t *testing.T) {
	t.Parallel()
	n, x := newNode(t)
	x.Script = func(call int, _ delegatetest.Invocation, plugin delegatetest.Fake) delegatetest.Fake {
		return delegatetest.SlowOn("ADD", time.Duration(call%16)*time.Millisecond, plugin)
	}
	p := n.configured(x, func(p *Plugin) { p.Config.Margin = multinet.Duration(1) })
	var attached []string
	for i := range 100 {
		s := n.sandbox(fmt.Sprintf("c%03d", i), "blue")
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		if err := p.RunPodSandbox(ctx, s); err == nil {
			attached = append(attached, s.GetId()+" added")
		}
		cancel()
	}
	p.running.Wait()
	nodetest.Equal(t, "records", p.records(), attached)
	nodetest.Equal(t, "alive", len(x.Live()), len(attached))
	t.Logf("figures: %d of 100 attached in time", len(attached))
}

// An ADD that ends with its context is undone in the same way. One that cannot be
// undone stays recorded, for the next pass.
func TestFailedUndoStaysRecorded(t *testing.T) {
	t.Parallel()
	n, x := newNode(t)
	var broken atomic.Bool
	broken.Store(true)
	x.Plugins["a"] = failing("DEL", &broken, x.Plugins["a"])
	late := make(deadline)
	x.Plugins["b"] = late.during("ADD", delegatetest.HangOn("ADD", x.Plugins["b"]))
	p := n.start(x, late.set)
	nodetest.Says(t, n.run(n.sandbox("c1", "blue,red")), errLate.Msg)
	p.running.Wait() // for the ADD to end, and the undo to fail
	_, known := p.pods.get("c1")
	nodetest.Equal(t, "the runtime has the pod", known, false)
	nodetest.Equal(t, "records", p.records(), []string{"c1 leftover"})
	p.again(func(pass Pass) bool { return pass.Failed == 1 })
	nodetest.Equal(t, "records", p.records(), []string{"c1 leftover"})
	broken.Store(false)
	p.again(func(pass Pass) bool { return pass.Detached == 1 })
	p.wants(x, nil)
}

// What Stop could not detach is detached by Remove, or by a sweep.
func TestRemoveOrSweepAfterFailedStop(t *testing.T) {
	t.Parallel()
	n, x := newNode(t)
	good := x.Plugins["a"]
	fails := make(chan error, 3)
	x.Plugins["a"] = func(ctx context.Context, c delegatetest.Invocation) ([]byte, error) {
		if c.Command == "DEL" {
			if err := <-fails; err != nil {
				return nil, err
			}
		}
		return good(ctx, c)
	}
	p := n.start(x)
	s := n.sandbox("c1", "blue,red")
	other := n.sandbox("c2", "blue")
	n.mustRun(s, other)
	fails <- errors.New("not now")
	n.stop(s)
	nodetest.Equal(t, "alive", x.Live(), []string{"a c1 net1", "a c2 net1"}) // b was tried all the same
	nodetest.Equal(t, "records", p.records(), []string{"c1 deleting", "c2 added"})
	nodetest.Equal(t, "complaints", p.log.Count("not now"), 1)
	fails <- nil
	n.remove(s)
	nodetest.Equal(t, "records", p.records(), []string{"c2 added"})
	fails <- errors.New("not now")
	fails <- errors.New("not now")
	fails <- nil
	// Its namespace is still there, but the runtime has said enough.
	nodetest.OK(t, n.StopPodSandbox(t.Context(), &api.StopPodSandboxRequest{Pod: other}))
	n.remove(other)
	p.again(func(pass Pass) bool { return pass.Detached == 1 })
	p.wants(x, nil)
}

// A Stop whose DEL takes too long is answered in time, and the DEL goes on.
func TestStopIsAnsweredInTime(t *testing.T) {
	t.Parallel()
	n, x := newNode(t)
	p, _, open := n.startStuck(x, "a", "DEL")
	s := n.sandbox("c1", "blue,red")
	n.mustRun(s)
	n.stop(s)
	nodetest.Equal(t, "records", p.records(), []string{"c1 deleting"})
	open()
	n.remove(s) // waits for the other
	p.stop()
	p.wants(x, nil)
	nodetest.Equal(t, "the connection was lost", p.log.Count("not connected"), 0)
}

// A Stop that comes while the ADD is being undone waits for that.
func TestStopWaitsForUndo(t *testing.T) {
	t.Parallel()
	n, x := newNode(t)
	p, late, open := n.startStuck(x, "b", "ADD")
	s := n.sandbox("c1", "blue,red")
	nodetest.Says(t, n.run(s), errLate.Msg)
	go func() { late <- time.Time{} }()
	n.stop(s) // does not wait longer than it may
	open()
	p.running.Wait()
	p.wants(x, nil)
	nodetest.Equal(t, "errors", p.log.Count("level=ERROR"), 1) // that the pod is refused
}
