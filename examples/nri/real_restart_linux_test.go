package main

import (
	"net"
	"os"
	"strings"
	"testing"

	"github.com/metacni/metacni/delegate/plugin"
	"github.com/metacni/metacni/examples/lab/host"
	"github.com/metacni/metacni/internal/nodetest"
)

// A runtime that is started again, as containerd is: pods that have ended while
// it was away stay in its list, with the path of a namespace that is gone, and
// there is no event of them any more.
func realRestart(t *testing.T, bin string) {
	t.Helper()
	n := newRealNode(t)
	p := n.startReal(bin)
	live, liveNS := n.realSandbox("live", "blue,red")
	dead, deadNS := n.realSandbox("dead", "blue,red")
	later, laterNS := n.realSandbox("later", "blue")
	n.mustRun(live, dead, later)
	want := n.interfaces(liveNS)
	n.Stop()
	p.disconnect()
	nodetest.OK(t, host.RemoveNS(deadNS))
	n.boot()
	p.connected()
	p.pass(synchronized)
	nodetest.Equal(t, "records", p.records(), []string{"later added", "live added"})
	nodetest.Equal(t, "leases", len(n.leases()), 3)
	nodetest.Equal(t, "live pod", n.interfaces(liveNS), want)

	// Nor is there an event of one that ends now.
	nodetest.OK(t, host.RemoveNS(laterNS))
	p.kick()
	p.pass(func(pass Pass) bool { return pass.Detached == 1 })
	nodetest.Equal(t, "leases", len(n.leases()), 2)
	nodetest.Equal(t, "live pod", n.interfaces(liveNS), want)
	n.stop(live)
	nodetest.Equal(t, "leases", n.leases(), nil)
	nodetest.Equal(t, "records", p.records(), nil)
}

// A node that is started again: the files are what is left of before, and the
// runtime lists pods of which no namespace is there, or another's in its place.
func realReboot(t *testing.T, bin string) {
	t.Helper()
	n := newRealNode(t)
	p := n.startReal(bin)
	gone, goneNS := n.realSandbox("gone", "blue,red")
	reused, reusedNS := n.realSandbox("reused", "blue,red")
	n.mustRun(gone, reused)
	p.stop()
	n.Stop()
	for _, netns := range []string{goneNS, reusedNS} {
		nodetest.OK(t, host.RemoveNS(netns))
	}
	n.boot()
	fresh, freshNS := n.realSandbox("reused", "blue") // by its path
	fresh.Id = "fresh"
	p = n.plugin(nil, realProcesses(bin))
	p.launch()
	p.connected()
	n.mustRun(fresh) // while it reconciles
	if pass := p.pass(synchronized); pass.Detached != 2 || pass.Failed != 0 {
		t.Errorf("pass %+v", pass)
	}
	nodetest.Equal(t, "records", p.records(), []string{"fresh added"})
	if ifs, leases := n.interfaces(freshNS), n.leases(); len(ifs) != 1 || len(leases) != 1 || !strings.Contains(ifs[0], leases[0]) {
		t.Errorf("interfaces %q of the new pod, leases %q", ifs, leases)
	}
	n.stop(fresh)
	nodetest.Equal(t, "leases", n.leases(), nil)
}

// Two runtimes with one of us each, and one of the two restarts.
func realTwoRuntimes(t *testing.T, bin string) {
	t.Helper()
	one, two := newRealNode(t), newRealNode(t)
	p1, p2 := one.startReal(bin), two.startReal(bin)
	s1, ns1 := one.realSandbox("c1", "blue,red")
	s2, ns2 := two.realSandbox("c2", "blue,red")
	one.mustRun(s1)
	two.mustRun(s2)
	want1, want2 := one.interfaces(ns1), two.interfaces(ns2)
	one.Stop()
	p1.disconnect()
	p2.kick()
	p2.pass(func(Pass) bool { return true })
	one.boot()
	p1.connected()
	p1.pass(synchronized)
	nodetest.Equal(t, "first runtime's pod", one.interfaces(ns1), want1)
	nodetest.Equal(t, "second runtime's pod", two.interfaces(ns2), want2)
	one.stop(s1)
	nodetest.Equal(t, "second runtime's pod", two.interfaces(ns2), want2)
	if got := len(two.leases()); got != 2 {
		t.Errorf("%d leases", got)
	}
	two.stop(s2)
	nodetest.Equal(t, "leases", two.leases(), nil)
	nodetest.Equal(t, "records", append(p1.records(), p2.records()...), nil)
}

// Two of us on one runtime: both attach what a pod selects, and neither touches
// what the other has attached, when it comes back or when it goes for good.
func realTwoOnOne(t *testing.T, bin string) {
	t.Helper()
	n := newRealNode(t)
	first := n.startReal(bin)
	second := n.startReal(bin, func(p *Plugin) { p.Config.Index, p.Config.StateDir = "91", n.file("state2") })
	s, netns := n.realSandbox("c1", "blue")
	n.mustRun(s)
	want := n.interfaces(netns)
	if len(want) != 2 {
		t.Errorf("interfaces %q", want)
	}
	for _, p := range []*process{first, second} {
		p.disconnect()
		p.connected()
		p.pass(synchronized)
	}
	second.stop()
	first.kick()
	first.pass(func(Pass) bool { return true })
	nodetest.Equal(t, "interfaces", n.interfaces(netns), want)
	second = n.startReal(bin, func(p *Plugin) { p.Config.Index, p.Config.StateDir = "91", n.file("state2") })
	n.stop(s)
	nodetest.Equal(t, "interfaces", n.interfaces(netns), nil)
	nodetest.Equal(t, "leases", n.leases(), nil)
	nodetest.Equal(t, "records", append(first.records(), second.records()...), nil)
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
	asks := "#!/bin/sh\n/usr/bin/env >" + n.file("environment") + "\necho '{\"cniVersion\":\"1.0.0\"}'\n"
	n.write(asks, "bin", "asks")
	if err := os.Chmod(n.file("bin", "asks"), 0o700); err != nil { //nolint:gosec // a program
		t.Fatal(err)
	}
	n.network("asks", "asks")
	self, err := os.Executable()
	nodetest.OK(t, err)
	nodetest.OK(t, os.Mkdir(n.file("plugins"), 0o700))
	nodetest.OK(t, os.Symlink(self, n.file("plugins", "10-networks")))
	n.write(`{"confDir":"`+n.file("net.d")+`","binDir":"`+n.file("bin")+`","stateDir":"`+n.file("state")+`"}`, "conf.d", "networks.conf")
	n.boot()
	s, _ := n.realSandbox("c1", "asks")
	n.mustRun(s)
	env, err := os.ReadFile(n.file("environment"))
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
