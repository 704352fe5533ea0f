//go:build e2e && linux

package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/containerd/nri/pkg/api"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/conform/host"
	"github.com/metacni/metacni/delegate/delegatetest"
	"github.com/metacni/metacni/delegate/plugin"
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
			x.Script = func(_ int, _ delegatetest.Invocation, plugin delegatetest.Fake) delegatetest.Fake {
				nodetest.Equal(t, "error", os.CopyFS(c.Path("left"), os.DirFS(c.Path("state"))), nil)
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
	x.Script = func(call int, _ delegatetest.Invocation, plugin delegatetest.Fake) delegatetest.Fake {
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
				nodetest.Equal(t, c.String()+" in a namespace, which may be another pod's", c.NetNS, "")
			}
			p.again()
			n.stop(live)
			nodetest.Equal(t, "alive", x.Live(), nil)
		})
	}
}

// Wherever a plugin is killed, the next one leaves nothing behind. A pod that runs
// gets all of its networks if the plugin was killed while it attached them, in the recorded
// namespace. A pod that is gone has none, be it listed or not.
func TestKilledAnywhere(t *testing.T) {
	t.Parallel()
	const adds, dels = 2, 2
	for step := 1; step <= adds+dels; step++ {
		for _, pod := range []string{"runs", "is not listed", "is listed without its namespace"} {
			t.Run(fmt.Sprintf("call %d, the pod %s", step, pod), func(t *testing.T) {
				t.Parallel()
				n, _ := newLivingNode(t)
				s := n.sandbox("c1", "blue,red")
				old := plugins()
				arrived, ended := make(chan struct{}), make(chan struct{})
				old.Script = func(call int, _ delegatetest.Invocation, plugin delegatetest.Fake) delegatetest.Fake {
					if call != step {
						return plugin
					}
					return func(ctx context.Context, c delegatetest.Invocation) ([]byte, error) {
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
				if pod != "is not listed" {
					n.list(s)
				}
				if pod == "is listed without its namespace" {
					n.unlink(s)
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
				if pod != "runs" || step > adds {
					p.wants(x, nil)
				} else {
					p.wants(x, []string{"a c1 net1", "b c1 net2"}, "c1 added")
					nodetest.Equal(t, "attached in", x.Calls()[len(x.Calls())-1].NetNS, n.Path("netns", "c1"))
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

// interrupted leaves the record of a pod whose ADD was interrupted, and has it
// run.
func (n *node) interrupted(s *api.PodSandbox) {
	n.Helper()
	x := plugins()
	arrived, ended := make(chan struct{}), make(chan struct{})
	x.Plugins["a"] = func(context.Context, delegatetest.Invocation) ([]byte, error) {
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

const requireEnv = "METACNI_E2E" // "require": no private host is a failure

// Real namespaces, bridge and host-local, on a private host.
func TestRealPlugins(t *testing.T) {
	t.Parallel()
	if bin := os.Getenv(insideEnv); bin != "" {
		t.Run("claims", func(t *testing.T) { realClaims(t, bin) })
		t.Run("launched", func(t *testing.T) { realLaunched(t, bin) })
		return
	}
	bin := t.TempDir()
	build := exec.Command("go", "build", "-buildvcs=false", "-o", bin+"/",
		"github.com/containernetworking/plugins/plugins/main/bridge", "github.com/containernetworking/plugins/plugins/ipam/host-local")
	build.Dir = "../../internal/e2e" // the module that has them as tools
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build the reference plugins: %v\n%s", err, out)
	}
	runtime.LockOSThread() // see host.Command
	defer runtime.UnlockOSThread()
	parts := ".*"
	if os.Geteuid() != 0 {
		t.Log("without claims: only root of the initial user namespace can prove that a container is dead")
		parts = "^launched$"
	}
	cmd := host.Command(t.Context(), "/proc/self/exe", "-test.run=^TestRealPlugins$/"+parts, "-test.v")
	cmd.Env = append(os.Environ(), insideEnv+"="+bin)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	var failed *exec.ExitError
	if err != nil && (!errors.As(err, &failed) || failed.ExitCode() == noHostStatus) {
		why := "needs root, or a kernel that gives user namespaces to ordinary users: " + cmp.Or(strings.TrimSpace(stderr.String()), err.Error())
		if os.Getenv(requireEnv) == "require" {
			t.Fatal(why)
		}
		t.Skip(why)
	}
	t.Logf("%s%s", out, stderr.String())
	if err != nil || !strings.Contains(string(out), "--- PASS: TestRealPlugins/launched") {
		t.Errorf("on the private host: %v", err)
	}
}

// newRealNode is a node with two real networks.
func newRealNode(t *testing.T) *node {
	t.Helper()
	n, _ := newNode(t)
	for i, name := range []string{"blue", "red"} {
		n.Write("net.d/"+name+".conf", fmt.Sprintf(`{"cniVersion":"1.0.0","name":%q,"type":"bridge","bridge":"br-%s",
			"ipam":{"type":"host-local","subnet":"10.7%d.0.0/24"}}`, name, name, i))
	}
	return n
}

// realProcesses has the plugin run processes and look into namespaces.
func realProcesses(bin string) func(*Plugin) {
	return func(p *Plugin) {
		p.Exec, p.InterfaceNames = &delegate.Process{Stderr: os.Stderr}, nil
		p.Config.BinDir, p.Env = bin, nil
	}
}

// realSandbox has a network namespace.
func (n *node) realSandbox(id, networks string) (s *api.PodSandbox, netns string) {
	n.Helper()
	netns, err := host.NewNS(id)
	nodetest.OK(n, err)
	n.Cleanup(func() { _ = host.RemoveNS(netns) })
	s = n.sandbox(id, networks)
	s.Linux.Namespaces[1].Path = netns
	return s, netns
}

// interfaces lists those of a namespace that are not lo, with their addresses.
func (n *node) interfaces(netns string) (all []string) {
	n.Helper()
	ifs, err := host.Interfaces(netns)
	nodetest.OK(n, err)
	for _, i := range ifs {
		if i.Name != "lo" {
			all = append(all, fmt.Sprint(i.Name, i.Addresses))
		}
	}
	return all
}

// leases lists the addresses that host-local has given out.
func (n *node) leases() (all []string) {
	n.Helper()
	files, err := filepath.Glob("/var/lib/cni/networks/*/10.*")
	nodetest.OK(n, err)
	for _, f := range files {
		all = append(all, filepath.Base(f))
	}
	return all
}

// A plugin that the runtime launches, with an environment of three variables and
// nowhere to write to, runs CNI plugins that find their programs, and logs.
func realLaunched(t *testing.T, _ string) {
	t.Helper()
	n := newRealNode(t)
	n.Stop()
	var log net.PacketConn
	if conn, err := net.Dial("unixgram", "/dev/log"); err == nil {
		_ = conn.Close() // the log of the real host, which nri writes to as well
	} else if log, err = net.ListenPacket("unixgram", "/run/log"); err != nil {
		t.Fatal(err)
	} else {
		defer log.Close()
	}
	asks := "#!/bin/sh\n/usr/bin/env >" + n.Path("environment") + "\necho '{\"cniVersion\":\"1.0.0\"}'\n"
	n.Write("bin/asks", asks)
	if err := os.Chmod(n.Path("bin", "asks"), 0o700); err != nil { //nolint:gosec // a program
		t.Fatal(err)
	}
	n.network("asks", "asks")
	self, err := os.Executable()
	nodetest.OK(t, err)
	nodetest.OK(t, os.Mkdir(n.Path("plugins"), 0o700))
	nodetest.OK(t, os.Symlink(self, n.Path("plugins", "10-networks")))
	n.Write("conf.d/networks.conf", `{"confDir":"`+n.Path("net.d")+`","binDir":"`+n.Path("bin")+`","stateDir":"`+n.Path("state")+`"}`)
	n.boot()
	s, _ := n.realSandbox("c1", "asks")
	n.mustRun(s)
	env, err := os.ReadFile(n.Path("environment"))
	if err != nil || !strings.Contains(string(env), "PATH="+plugin.DefaultPath) {
		t.Errorf("environment of the CNI plugin: %s %v", env, err)
	}
	if log == nil {
		return
	}
	var lines strings.Builder
	for buf := make([]byte, 1<<12); !strings.Contains(lines.String(), "msg=attached"); {
		k, _, err := log.ReadFrom(buf)
		nodetest.OK(t, err)
		lines.Write(buf[:k])
	}
	nodetest.Contains(t, "the log", lines.String(), "nri[", "msg=connected", "pod=shop/web sandbox=c1")
}

// A pod has a network that it selects, one of a definition and one that is in its claim. The
// second pod is too many for the definition's addresses. The first one's Stop is lost.
func realClaims(t *testing.T, bin string) {
	t.Helper()
	c := clusterOf(t, newRealNode(t))
	c.Write("net.d/green.conf", `{"cniVersion":"1.0.0","name":"green","type":"bridge","bridge":"br-green","ipam":{"type":"host-local","subnet":"10.75.0.0/24"}}`)
	p := c.start(nil, c.claims, realProcesses(bin))
	c.register()
	c.definition("storage", `{"type":"bridge","bridge":"br-storage","ipam":{"type":"host-local","subnet":"10.73.0.0/30"}}`)
	o := c.prepared("s1", "uid-1", defined("storage", `,"ifName":"sto0"`), realInline("10.74.0.0/24"))
	other := c.prepared("s2", "uid-2", realInline("10.74.0.0/24"), defined("storage", ""))
	s, netns := c.realSandbox("c1", "green")
	s.Uid = "uid-1"
	c.mustRun(s)
	nodetest.Equal(t, "first pod", c.interfaces(netns), []string{"net1[10.75.0.2/24]", "sto0[10.73.0.2/30]", "net3[10.74.0.2/24]"})
	c.reports(o, "sto0 [10.73.0.2/30]", "Ready=True NetworkInterfaceReady")
	second, secondNS := c.realSandbox("c2", "green")
	second.Uid = "uid-2"
	nodetest.Says(t, c.run(second), `claim "s2", request "netb"`, "no IP addresses available")
	c.reports(other, "Ready=False", "no IP addresses available")
	nodetest.Equal(t, "second pod", c.interfaces(secondNS), nil)
	nodetest.Equal(t, "leases", slices.Sorted(slices.Values(c.leases())), []string{"10.73.0.2", "10.74.0.2", "10.75.0.2"})
	p.stop()

	p = c.start(nil, c.claims, realProcesses(bin))
	c.register()
	nodetest.OK(t, c.unprepare(o))
	nodetest.Equal(t, "first pod", c.interfaces(netns), []string{"net1[10.75.0.2/24]"})
	c.stop(s)
	nodetest.Equal(t, "leases", c.leases(), nil)
	nodetest.Equal(t, "records", p.records(), nil)
}

// realInline returns parameters with a network of their own.
func realInline(subnet string) string {
	return `{"apiVersion":"cni.networking.x-k8s.io/v1alpha1","kind":"CNIConfig","config":{"cniVersion":"1.0.0","name":"own","type":"bridge","bridge":"br-own","ipam":{"type":"host-local","subnet":"` + subnet + `"}}}`
}
