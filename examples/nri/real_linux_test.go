package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/containerd/nri/pkg/api"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/plugin"
	"github.com/metacni/metacni/examples/lab/host"
	"github.com/metacni/metacni/examples/multinet/multinet"
	"github.com/metacni/metacni/internal/nodetest"
)

const (
	requireEnv   = "METACNI_E2E"        // "require": no private host is a failure
	insideEnv    = "METACNI_NRI_INSIDE" // directory of real plugins, on a private host
	noHostStatus = 77
)

// Real namespaces, bridge and host-local, on a private host.
func TestRealPlugins(t *testing.T) {
	t.Parallel()
	if bin := os.Getenv(insideEnv); bin != "" {
		t.Run("life", func(t *testing.T) { realLife(t, bin) })
		t.Run("missed stop", func(t *testing.T) { realMissedStop(t, bin) })
		t.Run("failure", func(t *testing.T) { realFailure(t, bin) })
		t.Run("too slow", func(t *testing.T) { realTooSlow(t, bin) })
		t.Run("restart", func(t *testing.T) { realRestart(t, bin) })
		t.Run("reboot", func(t *testing.T) { realReboot(t, bin) })
		t.Run("claims", func(t *testing.T) { realClaims(t, bin) })
		t.Run("two runtimes", func(t *testing.T) { realTwoRuntimes(t, bin) })
		t.Run("two on one runtime", func(t *testing.T) { realTwoOnOne(t, bin) })
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
	cmd := host.Command(t.Context(), "/proc/self/exe", "-test.run=^TestRealPlugins$", "-test.v")
	cmd.Env = append(os.Environ(), insideEnv+"="+bin)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	var failed *exec.ExitError
	if err != nil && (!errors.As(err, &failed) || failed.ExitCode() == noHostStatus) {
		why := "needs root, or a kernel that gives user namespaces to ordinary users: " + cmpString(stderr.String(), err.Error())
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

// cmpString is the first of them that is not empty, without its line end.
func cmpString(s ...string) string {
	for _, s := range s {
		if s = strings.TrimSpace(s); s != "" {
			return s
		}
	}
	return ""
}

// newRealNode is a node with two real networks.
func newRealNode(t *testing.T) *node {
	t.Helper()
	n := newNode(t)
	for i, name := range []string{"blue", "red"} {
		n.write(fmt.Sprintf(`{"cniVersion":"1.0.0","name":%q,"type":"bridge","bridge":"br-%s",
			"ipam":{"type":"host-local","subnet":"10.7%d.0.0/24"}}`, name, name, i), "net.d", name+".conf")
	}
	return n
}

// startReal starts a plugin that runs processes and looks into namespaces.
func (n *node) startReal(bin string, edit ...func(*Plugin)) *process {
	n.t.Helper()
	return n.start(nil, append(edit, realProcesses(bin))...)
}

// realProcesses has the plugin run processes and look into namespaces.
func realProcesses(bin string) func(*Plugin) {
	return func(p *Plugin) {
		p.Exec, p.InterfaceNames = &delegate.Process{Stderr: os.Stderr}, nil
		p.Config.BinDir, p.Env = bin, plugin.WithPath(nil)
	}
}

// realSandbox has a network namespace.
func (n *node) realSandbox(id, networks string) (s *api.PodSandbox, netns string) {
	n.t.Helper()
	netns, err := host.NewNS(id)
	nodetest.OK(n.t, err)
	n.t.Cleanup(func() { _ = host.RemoveNS(netns) })
	s = n.sandbox(id, networks)
	s.Linux.Namespaces[1].Path = netns
	return s, netns
}

// interfaces lists those of a namespace that are not lo, with their addresses.
func (n *node) interfaces(netns string) (all []string) {
	n.t.Helper()
	ifs, err := host.Interfaces(netns)
	nodetest.OK(n.t, err)
	for _, i := range ifs {
		if i.Name != "lo" {
			all = append(all, fmt.Sprint(i.Name, i.Addresses))
		}
	}
	return all
}

// leases lists the addresses that host-local has given out.
func (n *node) leases() (all []string) {
	n.t.Helper()
	files, err := filepath.Glob("/var/lib/cni/networks/*/10.*")
	nodetest.OK(n.t, err)
	for _, f := range files {
		all = append(all, filepath.Base(f))
	}
	return all
}

func realLife(t *testing.T, bin string) {
	t.Helper()
	n := newRealNode(t)
	p := n.startReal(bin)
	s1, ns1 := n.realSandbox("c1", "blue,red@data0")
	s2, ns2 := n.realSandbox("c2", "blue")
	began := time.Now()
	n.mustRun(s1, s2)
	t.Logf("figures: three networks of two pods in %v", time.Since(began).Round(time.Millisecond))
	nodetest.Equal(t, "first pod", n.interfaces(ns1), []string{"net1[10.70.0.2/24]", "data0[10.71.0.2/24]"})
	nodetest.Equal(t, "second pod", n.interfaces(ns2), []string{"net1[10.70.0.3/24]"})
	nodetest.Says(t, n.run(func() *api.PodSandbox { s, _ := n.realSandbox("c3", "blue@lo"); return s }()), "loopback")
	s1.Linux = nil // containerd does not say it at Stop
	began = time.Now()
	n.stop(s1)
	t.Logf("figures: two networks removed in %v", time.Since(began).Round(time.Millisecond))
	nodetest.Equal(t, "first pod", n.interfaces(ns1), nil)
	nodetest.Equal(t, "leases", n.leases(), []string{"10.70.0.3"})
	n.stop(s2)
	n.remove(s1)
	n.remove(s2)
	nodetest.Equal(t, "second pod", n.interfaces(ns2), nil)
	nodetest.Equal(t, "leases", n.leases(), nil)
	nodetest.Equal(t, "records", p.records(), nil)
}

func realMissedStop(t *testing.T, bin string) {
	t.Helper()
	n := newRealNode(t)
	p := n.startReal(bin)
	s, netns := n.realSandbox("c1", "blue,red")
	other, otherNS := n.realSandbox("c2", "blue")
	n.mustRun(s, other)
	p.stop()
	nodetest.OK(t, host.RemoveNS(netns))
	n.forget(s)
	p = n.startReal(bin)
	nodetest.Equal(t, "records", p.records(), []string{"c2 added"})
	if got := n.leases(); len(got) != 1 {
		t.Errorf("leases %q", got)
	}
	if got := n.interfaces(otherNS); len(got) != 1 {
		t.Errorf("interfaces of the other pod: %q", got)
	}
	n.stop(other)
	nodetest.Equal(t, "leases", n.leases(), nil)
}

func realFailure(t *testing.T, bin string) {
	t.Helper()
	n := newRealNode(t)
	p := n.startReal(bin)
	n.write(`{"cniVersion":"1.0.0","name":"tiny","type":"bridge","bridge":"br-tiny",
		"ipam":{"type":"host-local","subnet":"10.79.0.0/30"}}`, "net.d", "tiny.conf")
	first, _ := n.realSandbox("c1", "tiny")
	n.mustRun(first)
	s, netns := n.realSandbox("c2", "blue,tiny,red")
	err := n.run(s)
	if err == nil {
		t.Error("the pod is started")
	}
	nodetest.Says(t, err, `"tiny"`, "bridge", "no IP addresses available")
	nodetest.Equal(t, "interfaces", n.interfaces(netns), nil)
	nodetest.Equal(t, "leases", n.leases(), []string{"10.79.0.2"})
	nodetest.Equal(t, "records", p.records(), []string{"c1 added"})
	n.stop(first)
	nodetest.Equal(t, "leases", n.leases(), nil)
}

// A plugin that hangs, with a child, does not take the pod's start beyond its
// time; what came before it is undone.
func realTooSlow(t *testing.T, bin string) {
	t.Helper()
	n := newRealNode(t)
	hang := "#!/bin/sh\n[ \"$CNI_COMMAND\" = ADD ] && { sleep 1000 & sleep 1000; }\nexit 0\n"
	nodetest.OK(t, os.WriteFile(filepath.Join(bin, "hang"), []byte(hang), 0o700))
	n.network("slow", "hang")
	p := n.startReal(bin, func(p *Plugin) { p.Config.Margin = multinet.Duration(requestTimeout - 3*time.Second) })
	s, netns := n.realSandbox("c1", "blue,slow")
	nodetest.Says(t, n.run(s), "code 11")
	nodetest.Equal(t, "running", n.running(), nil)
	p.work.running.Wait()
	nodetest.Equal(t, "interfaces", n.interfaces(netns), nil)
	nodetest.Equal(t, "leases", n.leases(), nil)
	nodetest.Equal(t, "records", p.records(), nil)
	again, _ := n.realSandbox("c2", "blue")
	n.mustRun(again)
	n.stop(again)
}
