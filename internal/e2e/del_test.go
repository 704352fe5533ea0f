package e2e

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"strings"
	"testing"

	nodetest "github.com/metacni/metacni/internal/test/node"
)

// TestCHECKAndDELReplayTheADD: CHECK and DEL pass the plugins the configuration
// of ADD unchanged, including large numbers and unknown keys.
func TestCHECKAndDELReplayTheADD(t *testing.T) {
	n := newNode(t)
	conf := n.with(n.Fake("a"), object{"big": json.Number("9007199254740993"), "odd": object{"é%": []any{nil, json.Number("1.50")}}})
	p := n.pod(n.multinet("1.0.0", conf))
	n.ok("ADD", p)
	p.Conf["delegates"] = []object{n.Fake("z")}
	n.ok("CHECK", p)
	n.ok("DEL", p)
	n.Trace("ADD a eth0", "CHECK a eth0", "DEL a eth0")
	for _, c := range n.Calls() {
		var keys map[string]json.RawMessage
		nodetest.OK(t, json.Unmarshal(c.Stdin, &keys))
		nodetest.Equal(t, c.Command+" big", string(keys["big"]), "9007199254740993")
		nodetest.Equal(t, c.Command+" odd", string(keys["odd"]), `{"é%":[null,1.50]}`)
		nodetest.Equal(t, c.Command+" netns", c.NetNS, p.NetNS)
		if c.Command != "ADD" {
			nodetest.Equal(t, c.Command+" args", c.Args, n.Calls()[0].Args)
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
	if a := n.call("CHECK", p); a.Err == nil {
		t.Error("CHECK succeeded without net1")
	}
	n.ok("DEL", p)
	n.gone(p)
	if a := n.call("CHECK", p); a.Err == nil {
		t.Error("CHECK of a detached container succeeded")
	}
}

// TestDELNeedsOnlyItsRecord: a DEL works from its record, whatever the runtime
// has forgotten and whatever has disappeared since ADD.
func TestDELNeedsOnlyItsRecord(t *testing.T) {
	remove := func(n *node, path string) { nodetest.OK(n, os.RemoveAll(n.File(path))) }
	for name, change := range map[string]func(n *node, p *pod){
		"namespace gone":           func(n *node, p *pod) { n.vanish(p) },
		"namespace not one":        func(_ *node, p *pod) { p.NetNS = "/dev/null" },
		"prevResult missing":       func(_ *node, p *pod) { p.Result = nil },
		"prevResult of another":    func(_ *node, p *pod) { p.Result = []byte(`{"cniVersion":"1.0.0","ips":[]}`) },
		"configuration changed":    func(n *node, p *pod) { p.Conf["delegates"], p.Conf["delegate"] = []object{n.Fake("z")}, n.Fake("z") },
		"configuration broken":     func(_ *node, p *pod) { p.Conf["delegates"], p.Conf["delegate"] = "none", 7 },
		"configuration removed":    func(_ *node, p *pod) { delete(p.Conf, "delegates"); delete(p.Conf, "delegate") },
		"annotation changed":       func(_ *node, p *pod) { p.selects("another") },
		"network's file gone":      func(n *node, _ *pod) { remove(n, "net.d") },
		"subnet file gone":         func(n *node, _ *pod) { remove(n, "subnet.env") },
		"another protocol version": func(_ *node, p *pod) { p.Conf["cniVersion"] = "0.4.0" },
	} {
		for _, s := range subjects()[:2] {
			t.Run(s.name+"/"+name, func(t *testing.T) {
				n := newNode(t)
				second := n.Numbered("second")
				n.network(second, n.with(n.Fake("c"), object{"cniVersion": "1.0.0"}))
				p := n.pod(s.conf(n))
				want := s.calls("DEL")
				if s.name == "multinet" {
					p.selects(second)
					want = append([]string{"DEL c net2"}, want...)
				}
				n.ok("DEL", p) // nothing is attached yet
				n.ok("ADD", p)
				n.Forget()
				change(n, p)
				n.ok("DEL", p)
				n.nothingLeft()
				for range 2 {
					n.ok("DEL", p, withoutNetNS)
				}
				n.Trace(want...)
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
			n.Bin = n.File("bin")
			there, away := n.copyProgram("fake", "bin"), n.File("bin", "away")
			p := n.pod(s.conf(n))
			n.ok("ADD", p)
			n.Forget()
			nodetest.OK(t, os.Rename(there, away))
			for range 3 {
				n.fails(7, "DEL", p, []string{`plugin "fake": not found in`}, withoutNetNS)
				n.fails(7, "GC", p, []string{`plugin "fake": not found in`}, valid())
			}
			nodetest.Equal(t, "attached", len(n.Live()), len(s.fakes))
			nodetest.Equal(t, "recorded", n.recorded(p, s.state), true)
			nodetest.OK(t, os.Rename(away, there))
			n.ok("DEL", p, withoutNetNS)
			n.Trace(s.calls("DEL")...)
			n.nothingLeft()
		})
	}
}

// TestFailedDELKeepsTheRecord: if a plugin dies, floods stdout or fails in a
// DEL, the DEL runs the others, fails and keeps the record, and the next DEL
// runs what is left. A plugin that has done its work does not fail the DEL by
// what it prints.
func TestFailedDELKeepsTheRecord(t *testing.T) {
	for _, s := range multinets() {
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
				n.Cure()
				n.ok("DEL", p)
				n.nothingLeft()
				n.OrphansEnd()
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
	if r := n.operate(0, "list"); !strings.Contains(r.Stdout, "leftover") {
		t.Errorf("list: %s", r.Stdout)
	}
	n.network("storage", n.bridge(2)) // the plugin cannot use a bridge that never had an address
	n.ok("ADD", p)
	nodetest.Equal(t, "interfaces", n.interfaces(p), []string{"eth0", "net1"})
	n.ok("CHECK", p)
	n.ok("DEL", p)
	n.operate(0, "gc", "--bin-dir", n.Bin, "--conf-dir", n.File("net.d"))
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
	p.Conf = n.with(maps.Clone(p.Conf), object{"name": n.Numbered("renamed"), "runtimeConfDir": n.File("runtime")})
	n.fails(11, "DEL", p, []string{"it is not known whether that is still configured"})
	nodetest.OK(t, os.Mkdir(n.File("runtime"), 0o700))
	n.Write(p.Conf, "runtime", "10-renamed.conf")
	n.ok("DEL", p)
	n.gone(p)
}

// TestGCRemovesOnlyStaleContainers: GC removes everything of a container that
// the runtime no longer lists, including additional networks, and nothing of
// the others. While a valid container has no record, the plugins of further networks
// are not told.
func TestGCRemovesOnlyStaleContainers(t *testing.T) {
	n := newNode(t)
	second := n.Numbered("second")
	n.network(second, n.with(n.bridge(2), object{"cniVersion": "1.1.0"}))
	conf := n.multinet("1.1.0", n.bridge(1), n.with(n.Fake("f"), object{"name": "fakes"}))
	stays, stale, stranger := n.pod(conf).selects(second), n.pod(conf).selects(second), n.pod(conf)
	n.ok("ADD", stays)
	n.ok("ADD", stale)
	nodetest.Equal(t, "leases", len(n.leases()), 4)
	n.vanish(stale)
	n.Forget()

	n.fails(7, "GC", stays, nil) // without a list
	n.fails(11, "GC", stays, []string{"fakes", second, stranger.ID + " (eth0)"}, valid(stays, stranger))
	for _, c := range n.Calls() {
		if c.Command == "GC" {
			t.Errorf("told %s", c.Stdin)
		}
	}
	n.ok("GC", stays, valid(stays))
	nodetest.Equal(t, "leases", len(n.leases()), 2)
	nodetest.Equal(t, "attached", n.Live(), []string{"f@" + stays.ID + "@net1"})
	nodetest.Equal(t, "interfaces", n.interfaces(stays), []string{"eth0", "net2"})
	n.ok("CHECK", stays)

	// The delegates get the list of what remains, with their interface names.
	var told []string
	for _, c := range n.Calls() {
		if c.Command == "GC" {
			var conf map[string]json.RawMessage
			nodetest.OK(t, json.Unmarshal(c.Stdin, &conf))
			told = append(told, string(conf["cni.dev/valid-attachments"]))
		}
	}
	nodetest.Equal(t, "told", told, []string{fmt.Sprintf(`[{"containerID":%q,"ifname":"net1"}]`, stays.ID)})
	n.ok("DEL", stays)
	n.ok("GC", stays, valid())
	n.nothingLeft()
}

// TestADDIsUndoneWhateverTheLastPluginDoes: whatever the last plugin of an ADD
// does instead of answering, the ADD fails and everything it attached is
// detached. A plugin that floods stderr or leaves a child that holds its pipes
// does answer.
func TestADDIsUndoneWhateverTheLastPluginDoes(t *testing.T) {
	for _, s := range multinets() {
		for fault, code := range map[string]uint{
			"fail": 111, "noise": 6, "two": 6, "garbage": 6, "silence": 6, "die": 999, "flood": 999,
			"flood stderr": 0, "child": 0, "daemon": 0,
		} {
			t.Run(s.name+"/"+fault, func(t *testing.T) {
				n := newNode(t)
				p := n.pod(s.conf(n, "ADD", fault))
				want := append(s.calls("ADD"), s.calls("DEL")...)
				if code == 0 {
					n.ok("ADD", p)
					n.endChildren()
					n.Cure()
					n.ok("DEL", p)
				} else {
					n.fails(code, "ADD", p, []string{"fake"})
					n.nothingLeft()
					n.ok("DEL", p) // has nothing to do
					if !s.parallel {
						n.Trace(want...)
					}
				}
				n.nothingLeft()
				n.OrphansEnd()
			})
		}
	}
}

// TestADDIsUndoneWhenItsResultCannotBePrinted: nobody reads the result of an ADD any more.
func TestADDIsUndoneWhenItsResultCannotBePrinted(t *testing.T) {
	n := newNode(t)
	p := n.pod(n.multinet("1.0.0", n.Fake("a")))
	stdin, err := json.Marshal(p.Conf)
	nodetest.OK(t, err)
	unread, stdout, err := os.Pipe()
	nodetest.OK(t, errors.Join(err, unread.Close()))
	cmd := exec.CommandContext(t.Context(), built("multinet"))
	cmd.Env = []string{"CNI_COMMAND=ADD", "CNI_CONTAINERID=" + p.ID, "CNI_NETNS=" + p.NetNS, "CNI_IFNAME=eth0", "CNI_PATH=" + n.Bin}
	cmd.Stdin, cmd.Stdout = bytes.NewReader(stdin), stdout
	if err := cmd.Run(); err == nil {
		t.Error("succeeded without printing a result")
	}
	n.Trace("ADD a eth0", "DEL a eth0")
	n.nothingLeft()
}

// TestUndoRemovesRules: an ADD of real plugins that fails leaves no interface, no address
// and no rule, whichever plugin fails. The undo passes each plugin the result that came
// before it.
func TestUndoRemovesRules(t *testing.T) {
	for name, networks := range map[string]func(n *node, failing object) []object{
		"the end of the chain": func(n *node, failing object) []object {
			return []object{n.ruled(1, n.portmap(), failing)}
		},
		"the plugin after firewall": func(n *node, failing object) []object {
			return []object{n.ruled(1, failing, n.portmap())}
		},
		"the next network": func(n *node, failing object) []object {
			return []object{n.ruled(1, n.portmap()), failing}
		},
		"the end of the next network": func(n *node, failing object) []object {
			return []object{n.ruled(1, n.portmap()), n.ruled(2, failing)}
		},
		"the network after two": func(n *node, failing object) []object {
			return []object{n.ruled(1, n.portmap()), n.ruled(2), failing}
		},
		"firewall itself, when it has made its rules": func(n *node, failing object) []object {
			return []object{n.chain(1, n.bridge(1), n.with(n.Behind("f", n.firewall()), object{"on": failing["on"]}))}
		},
	} {
		// What else a plugin may do, see TestADDIsUndoneWhateverTheLastPluginDoes.
		for fault, code := range map[string]uint{"fail": 111, "garbage": 6} {
			t.Run(name+"/"+fault, func(t *testing.T) {
				n := newNode(t)
				p := n.published(networks(n, n.Fake("x", "ADD", fault))...)
				p.Conf["parallel"] = fault == "garbage"
				n.fails(code, "ADD", p, nil)
				n.gone(p)
				n.ok("DEL", p)
				n.gone(p)
			})
		}
	}
}

// TestRulesOfAnUnfinishedADDAreRemoved: the undo of an ADD fails in firewall itself, or
// multinet is killed while a later plugin of the same chain or of a later network runs.
// The next DEL, GC or ADD waits for an orphan and removes all rules.
func TestRulesOfAnUnfinishedADDAreRemoved(t *testing.T) {
	for name, networks := range map[string]func(n *node) []object{
		"the undo fails in its own chain": func(n *node) []object {
			return []object{n.chain(1, n.bridge(1), n.Behind("f", n.firewall(), "DEL", "fail"), n.Fake("x", "ADD", "fail"))}
		},
		"the undo fails in an earlier network": func(n *node) []object {
			return []object{n.chain(1, n.bridge(1), n.Behind("f", n.firewall(), "DEL", "fail")), n.Fake("x", "ADD", "fail")}
		},
		"the undo fails two networks before": func(n *node) []object {
			return []object{n.chain(1, n.bridge(1), n.Behind("f", n.firewall(), "DEL", "fail")), n.ruled(2), n.Fake("x", "ADD", "fail")}
		},
		"killed in the third plugin of a chain": func(n *node) []object {
			return []object{n.ruled(1, n.Fake("x", "ADD", "gate"))}
		},
		"killed in the fourth plugin of a chain": func(n *node) []object {
			return []object{n.ruled(1, n.portmap(), n.Fake("x", "ADD", "gate"))}
		},
		"killed in the second network": func(n *node) []object {
			return []object{n.ruled(1, n.portmap()), n.Fake("x", "ADD", "gate")}
		},
		"killed in the third plugin of the second network": func(n *node) []object {
			return []object{n.ruled(1, n.portmap()), n.ruled(2, n.Fake("x", "ADD", "gate"))}
		},
		"killed in the third network": func(n *node) []object {
			return []object{n.ruled(1, n.portmap()), n.ruled(2), n.Fake("x", "ADD", "gate")}
		},
	} {
		for then, detach := range map[string]func(n *node, p *pod){
			"DEL":                     func(n *node, p *pod) { n.ok("DEL", p) },
			"DEL without a namespace": func(n *node, p *pod) { n.ok("DEL", p, withoutNetNS) },
			"GC":                      func(n *node, p *pod) { n.ok("GC", p, valid()) },
			"ADD":                     func(n *node, p *pod) { n.ok("ADD", p); n.ok("DEL", p) },
		} {
			t.Run(name+"/"+then, func(t *testing.T) {
				n := newNode(t)
				p := n.published(networks(n)...)
				if name[0] == 'k' {
					n.killed("ADD", p)
				} else {
					n.fails(111, "ADD", p, nil)
				}
				if len(n.rules()) == 0 {
					t.Fatal("there are no rules: this tests nothing")
				}
				n.Cure()
				if name[0] == 'k' {
					n.Open() // the next command waits for the orphan
				}
				detach(n, p)
				n.gone(p)
			})
		}
	}
}

// TestDELSparesAnAddressThatHasMoved: one plugin fails in the DEL of a
// container, the others succeed, and the address goes to a second container.
// Later DELs and GCs for the first container, whether they fail again or not,
// take nothing from the second.
func TestDELSparesAnAddressThatHasMoved(t *testing.T) {
	for name, networks := range map[string]func(n *node, on ...string) []object{
		"another network fails": func(n *node, on ...string) []object {
			return []object{n.chain(1, n.single(1), n.firewall(), n.portmap()), n.Fake("x", on...)}
		},
		"another chain's firewall fails": func(n *node, on ...string) []object {
			return []object{n.chain(1, n.single(1), n.firewall()), n.chain(2, n.bridge(2), n.Behind("x", n.firewall(), on...))}
		},
		"the chain's last plugin fails": func(n *node, on ...string) []object {
			return []object{n.chain(1, n.single(1), n.firewall(), n.portmap(), n.Fake("x", on...))}
		},
		"the plugin before firewall fails": func(n *node, on ...string) []object {
			return []object{n.chain(1, n.single(1), n.Fake("x", on...), n.firewall(), n.portmap())}
		},
		"firewall itself fails": func(n *node, on ...string) []object {
			return []object{n.chain(1, n.single(1), n.Behind("x", n.firewall(), on...), n.portmap())}
		},
	} {
		for then, again := range map[string]func(n *node, first, second *pod) answer{
			"DEL":                     func(n *node, first, _ *pod) answer { return n.call("DEL", first) },
			"DEL without a namespace": func(n *node, first, _ *pod) answer { return n.call("DEL", first, withoutNetNS) },
			"DEL, the namespace gone": func(n *node, first, _ *pod) answer { return n.call("DEL", first, withoutNetNS) },
			"GC":                      func(n *node, first, second *pod) answer { return n.call("GC", first, valid(second)) },
		} {
			t.Run(name+"/"+then, func(t *testing.T) {
				n := newNode(t)
				first, second := n.published(networks(n, "DEL", "fail")...), n.published(networks(n)...)
				n.ok("ADD", first)
				n.fails(111, "DEL", first, nil)
				n.ok("ADD", second)
				want := n.belongings(second)
				nodetest.Equal(t, "reserved for the second", want.Leases[0], n.Net(1)+".5 "+second.ID+" eth0")
				if then == "DEL, the namespace gone" {
					n.vanish(first)
				}
				for range 2 {
					n.failed(again(n, first, second), 111)
					nodetest.Equal(t, "the second's, after a "+then+" that fails", n.belongings(second), want)
				}
				n.Cure()
				if a := again(n, first, second); a.Err != nil {
					t.Errorf("%s: %s", then, a.Stdout)
				}
				nodetest.Equal(t, "the second's, after a "+then+" that succeeds", n.belongings(second), want)
				n.ok("CHECK", second)
				n.answersFrom(second, n.Net(1)+".1")
				n.ok("DEL", second)
				n.gone(second)
			})
		}
	}
}
