//go:build e2e && linux

package main

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/nri/pkg/api"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/plugin"
	"github.com/metacni/metacni/examples/lab/host"
	nodetest "github.com/metacni/metacni/internal/test/node"
)

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
		p.Config.BinDir, p.Env = bin, plugin.WithPath(nil)
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
	for _, word := range []string{"nri[", "msg=connected", "pod=shop/web sandbox=c1"} {
		if !strings.Contains(lines.String(), word) {
			t.Errorf("the log lacks %q: %s", word, lines.String())
		}
	}
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
