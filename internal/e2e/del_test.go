package e2e

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"strings"
	"testing"

	nodetest "github.com/metacni/metacni/internal/test/node"
)

// TestCHECKAndDELReplayTheADD: CHECK and DEL pass the plugins the configuration
// of ADD unchanged, including large numbers and unknown keys.
func TestCHECKAndDELReplayTheADD(t *testing.T) {
	n := newNode(t)
	conf := n.with(n.fake("a"), object{"big": json.Number("9007199254740993"), "odd": object{"é%": []any{nil, json.Number("1.50")}}})
	p := n.pod(n.multinet("1.0.0", conf))
	n.ok("ADD", p)
	p.conf["delegates"] = []object{n.fake("z")}
	n.ok("CHECK", p)
	n.ok("DEL", p)
	n.trace("ADD a eth0", "CHECK a eth0", "DEL a eth0")
	for _, c := range n.calls() {
		var keys map[string]json.RawMessage
		nodetest.OK(t, json.Unmarshal(c.Stdin, &keys))
		nodetest.Equal(t, c.Command+" big", string(keys["big"]), "9007199254740993")
		nodetest.Equal(t, c.Command+" odd", string(keys["odd"]), `{"é%":[null,1.50]}`)
		nodetest.Equal(t, c.Command+" netns", c.NetNS, p.netns)
		if c.Command != "ADD" {
			nodetest.Equal(t, c.Command+" args", c.Args, n.calls()[0].Args)
		}
	}
	n.nothingLeft()
}

// TestCHECKReportsAMissingInterface: CHECK fails if an interface has
// disappeared, or if the container is not attached.
func TestCHECKReportsAMissingInterface(t *testing.T) {
	n := newNode(t)
	p := n.pod(n.multinet("1.0.0", n.bridge(1), n.bridge(2)))
	n.ok("ADD", p)
	n.ok("CHECK", p)
	n.deleteLink(p, "net1")
	if a := n.call("CHECK", p); a.err == nil {
		t.Error("CHECK succeeded without net1")
	}
	n.ok("DEL", p)
	n.gone(p)
	if a := n.call("CHECK", p); a.err == nil {
		t.Error("CHECK of a detached container succeeded")
	}
}

// TestDELNeedsOnlyItsRecord: a DEL works from its record, whatever the runtime
// has forgotten and whatever has disappeared since ADD.
func TestDELNeedsOnlyItsRecord(t *testing.T) {
	remove := func(n *node, path string) { nodetest.OK(n, os.RemoveAll(n.file(path))) }
	for name, change := range map[string]func(n *node, p *pod){
		"namespace gone":           func(n *node, p *pod) { n.vanish(p) },
		"namespace not one":        func(_ *node, p *pod) { p.netns = "/dev/null" },
		"prevResult missing":       func(_ *node, p *pod) { p.result = nil },
		"prevResult of another":    func(_ *node, p *pod) { p.result = []byte(`{"cniVersion":"1.0.0","ips":[]}`) },
		"configuration changed":    func(n *node, p *pod) { p.conf["delegates"], p.conf["delegate"] = []object{n.fake("z")}, n.fake("z") },
		"configuration broken":     func(_ *node, p *pod) { p.conf["delegates"], p.conf["delegate"] = "none", 7 },
		"configuration removed":    func(_ *node, p *pod) { delete(p.conf, "delegates"); delete(p.conf, "delegate") },
		"annotation changed":       func(_ *node, p *pod) { p.selects("another") },
		"network's file gone":      func(n *node, _ *pod) { remove(n, "net.d") },
		"subnet file gone":         func(n *node, _ *pod) { remove(n, "subnet.env") },
		"another protocol version": func(_ *node, p *pod) { p.conf["cniVersion"] = "0.4.0" },
	} {
		for _, s := range subjects()[:2] {
			t.Run(s.name+"/"+name, func(t *testing.T) {
				n := newNode(t)
				second := n.name("second")
				n.network(second, n.with(n.fake("c"), object{"cniVersion": "1.0.0"}))
				p := n.pod(s.conf(n))
				want := s.calls("DEL")
				if s.name == "multinet" {
					p.selects(second)
					want = append([]string{"DEL c net2"}, want...)
				}
				n.ok("DEL", p) // nothing is attached yet
				n.ok("ADD", p)
				n.forget()
				change(n, p)
				n.ok("DEL", p)
				n.nothingLeft()
				for range 2 {
					n.ok("DEL", p, withoutNetNS)
				}
				n.trace(want...)
			})
		}
	}
}

// TestDELAndGCFailWhileAPluginIsMissing: while the plugin's executable is
// missing, DEL and GC fail with code 7, name it, and keep the record. Once it
// is back, the next DEL removes everything.
func TestDELAndGCFailWhileAPluginIsMissing(t *testing.T) {
	for _, s := range subjects()[:2] {
		t.Run(s.name, func(t *testing.T) {
			n := newNode(t)
			n.bin = n.file("bin")
			there, away := n.copyProgram("fake", "bin"), n.file("bin", "away")
			p := n.pod(s.conf(n))
			n.ok("ADD", p)
			n.forget()
			nodetest.OK(t, os.Rename(there, away))
			for range 3 {
				n.fails(7, "DEL", p, []string{`plugin "fake": not found in`}, withoutNetNS)
				n.fails(7, "GC", p, []string{`plugin "fake": not found in`}, valid())
			}
			nodetest.Equal(t, "attached", len(n.live()), len(s.fakes))
			nodetest.Equal(t, "recorded", n.recorded(p, s.state), true)
			nodetest.OK(t, os.Rename(away, there))
			n.ok("DEL", p, withoutNetNS)
			n.trace(s.calls("DEL")...)
			n.nothingLeft()
		})
	}
}

// TestFailedDELKeepsTheRecord: if a plugin dies, floods stdout or fails in a
// DEL, the DEL runs the others, fails and keeps the record, and the next DEL
// runs what is left. A plugin that has done its work does not fail the DEL by
// what it prints.
func TestFailedDELKeepsTheRecord(t *testing.T) {
	for _, s := range subjects() {
		for fault, code := range map[string]uint{
			"fail": 111, "die": 999, "flood": 999, "noise": 0, "two": 0, "flood stderr": 0, "child": 0, "daemon": 0,
		} {
			t.Run(s.name+"/"+fault, func(t *testing.T) {
				n := newNode(t)
				p := n.pod(s.conf(n, "DEL", fault))
				n.ok("ADD", p)
				if code == 0 {
					n.ok("DEL", p)
				} else {
					n.fails(code, "DEL", p, []string{"fake"})
					nodetest.Equal(t, "recorded", n.recorded(p, s.state), true)
					nodetest.Equal(t, "attached", len(n.leaked(p)), 1)
				}
				n.endChildren()
				n.cure()
				n.ok("DEL", p)
				n.nothingLeft()
				n.orphansEnd()
			})
		}
	}
}

// TestImpossibleNetworkHoldsUpNoDEL: a network whose IPAM plugin does not exist fails in
// ADD and in every DEL. Its container can be deleted all the same, and attached again once
// the network is mended. What is left stays recorded until gc finds the mended definition.
func TestImpossibleNetworkHoldsUpNoDEL(t *testing.T) {
	n := newNode(t)
	impossible := n.with(n.bridge(1), object{"ipam": object{"type": "absent"}})
	n.network("storage", impossible)
	p := n.pod(n.multinet("1.1.0", n.bridge(0))).selects("storage")
	n.fails(999, "ADD", p, []string{`"storage"`, "absent"})
	n.ok("DEL", p)
	n.ok("DEL", p)
	if r := n.operate(0, "list"); !strings.Contains(r.stdout, "leftover") {
		t.Errorf("list: %s", r.stdout)
	}
	n.network("storage", n.bridge(2)) // the plugin cannot use a bridge that never had an address
	n.ok("ADD", p)
	nodetest.Equal(t, "interfaces", n.interfaces(p), []string{"eth0", "net1"})
	n.ok("CHECK", p)
	n.ok("DEL", p)
	n.operate(0, "gc", "--bin-dir", n.bin, "--conf-dir", n.file("net.d"))
	n.nothingLeft()
}

// TestRecordsAreFoundAfterARename: a DEL after the configuration was renamed removes
// everything once the runtime's directory shows that it was, and an ADD after somebody has removed the interface attaches anew.
func TestRecordsAreFoundAfterARename(t *testing.T) {
	n := newNode(t)
	p := n.pod(n.multinet("1.1.0", n.chain(0, n.bridge(0), n.firewall()), n.bridge(1)))
	n.ok("ADD", p)
	n.fails(7, "ADD", p, []string{"already added"})
	n.deleteLink(p, "eth0")
	n.ok("ADD", p)
	nodetest.Equal(t, "interfaces", n.interfaces(p), []string{"eth0", "net1"})
	p.conf = n.with(maps.Clone(p.conf), object{"name": n.name("renamed"), "runtimeConfDir": n.file("runtime")})
	n.fails(11, "DEL", p, []string{"it is not known whether that is still configured"})
	nodetest.OK(t, os.Mkdir(n.file("runtime"), 0o700))
	n.write(p.conf, "runtime", "10-renamed.conf")
	n.ok("DEL", p)
	n.gone(p)
}

// TestGCRemovesOnlyStaleContainers: GC removes everything of a container that
// the runtime no longer lists, including additional networks, and nothing of
// the others. While a valid container has no record, the plugins of further networks
// are not told.
func TestGCRemovesOnlyStaleContainers(t *testing.T) {
	n := newNode(t)
	second := n.name("second")
	n.network(second, n.with(n.bridge(2), object{"cniVersion": "1.1.0"}))
	conf := n.multinet("1.1.0", n.bridge(1), n.with(n.fake("f"), object{"name": "fakes"}))
	stays, stale, stranger := n.pod(conf).selects(second), n.pod(conf).selects(second), n.pod(conf)
	n.ok("ADD", stays)
	n.ok("ADD", stale)
	nodetest.Equal(t, "leases", len(n.leases()), 4)
	n.vanish(stale)
	n.forget()

	n.fails(7, "GC", stays, nil) // without a list
	n.fails(11, "GC", stays, []string{"fakes", second, stranger.id + " (eth0)"}, valid(stays, stranger))
	for _, c := range n.calls() {
		if c.Command == "GC" {
			t.Errorf("told %s", c.Stdin)
		}
	}
	n.ok("GC", stays, valid(stays))
	nodetest.Equal(t, "leases", len(n.leases()), 2)
	nodetest.Equal(t, "attached", n.live(), []string{"f@" + stays.id + "@net1"})
	nodetest.Equal(t, "interfaces", n.interfaces(stays), []string{"eth0", "net2"})
	n.ok("CHECK", stays)

	// The delegates get the list of what remains, with their interface names.
	var told []string
	for _, c := range n.calls() {
		if c.Command == "GC" {
			var conf map[string]json.RawMessage
			nodetest.OK(t, json.Unmarshal(c.Stdin, &conf))
			told = append(told, string(conf["cni.dev/valid-attachments"]))
		}
	}
	nodetest.Equal(t, "told", told, []string{fmt.Sprintf(`[{"containerID":%q,"ifname":"net1"}]`, stays.id)})
	n.ok("DEL", stays)
	n.ok("GC", stays, valid())
	n.nothingLeft()
}
