package main

import (
	"net"
	"os"
	"strings"
	"testing"

	"github.com/metacni/metacni/delegate/plugin"
	"github.com/metacni/metacni/examples/lab/host"
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
	if err := host.RemoveNS(deadNS); err != nil {
		t.Fatal(err)
	}
	n.boot()
	p.connected()
	p.pass(synchronized)
	same(t, "records", []string{"later added", "live added"}, p.records())
	same(t, "leases", make([]struct{}, 3), make([]struct{}, len(n.leases())))
	same(t, "live pod", want, n.interfaces(liveNS))

	// Nor is there an event of one that ends now.
	if err := host.RemoveNS(laterNS); err != nil {
		t.Fatal(err)
	}
	p.kick()
	p.pass(func(pass Pass) bool { return pass.Detached == 1 })
	same(t, "leases", make([]struct{}, 2), make([]struct{}, len(n.leases())))
	same(t, "live pod", want, n.interfaces(liveNS))
	n.stop(live)
	same(t, "leases", nil, n.leases())
	same(t, "records", nil, p.records())
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
		if err := host.RemoveNS(netns); err != nil {
			t.Fatal(err)
		}
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
	same(t, "records", []string{"fresh added"}, p.records())
	if ifs, leases := n.interfaces(freshNS), n.leases(); len(ifs) != 1 || len(leases) != 1 || !strings.Contains(ifs[0], leases[0]) {
		t.Errorf("interfaces %q of the new pod, leases %q", ifs, leases)
	}
	n.stop(fresh)
	same(t, "leases", nil, n.leases())
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
	same(t, "first runtime's pod", want1, one.interfaces(ns1))
	same(t, "second runtime's pod", want2, two.interfaces(ns2))
	one.stop(s1)
	same(t, "second runtime's pod", want2, two.interfaces(ns2))
	if got := len(two.leases()); got != 2 {
		t.Errorf("%d leases", got)
	}
	two.stop(s2)
	same(t, "leases", nil, two.leases())
	same(t, "records", nil, append(p1.records(), p2.records()...))
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
	same(t, "interfaces", want, n.interfaces(netns))
	second = n.startReal(bin, func(p *Plugin) { p.Config.Index, p.Config.StateDir = "91", n.file("state2") })
	n.stop(s)
	same(t, "interfaces", nil, n.interfaces(netns))
	same(t, "leases", nil, n.leases())
	same(t, "records", nil, append(first.records(), second.records()...))
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
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(n.file("plugins"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(self, n.file("plugins", "10-networks")); err != nil {
		t.Fatal(err)
	}
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
		if err != nil {
			t.Fatal(err)
		}
		lines.Write(buf[:k])
	}
	for _, word := range []string{"nri[", "msg=connected", "pod=shop/web sandbox=c1"} {
		if !strings.Contains(lines.String(), word) {
			t.Errorf("the log lacks %q: %s", word, lines.String())
		}
	}
}
