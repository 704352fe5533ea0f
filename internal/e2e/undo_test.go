package e2e

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"testing"

	nodetest "github.com/metacni/metacni/internal/test/node"
)

// TestADDIsUndoneWhateverTheLastPluginDoes: whatever the last plugin of an ADD
// does instead of answering, the ADD fails and everything it attached is
// detached. A plugin that floods stderr or leaves a child that holds its pipes
// does answer.
func TestADDIsUndoneWhateverTheLastPluginDoes(t *testing.T) {
	for _, s := range subjects() {
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
					n.cure()
					n.ok("DEL", p)
				} else {
					n.fails(code, "ADD", p, []string{"fake"})
					n.nothingLeft()
					n.ok("DEL", p) // has nothing to do
					if !s.parallel {
						n.trace(want...)
					}
				}
				n.nothingLeft()
				n.orphansEnd()
			})
		}
	}
}

// TestADDIsUndoneWhenItsResultCannotBePrinted: nobody reads the result of an ADD any more.
func TestADDIsUndoneWhenItsResultCannotBePrinted(t *testing.T) {
	n := newNode(t)
	p := n.pod(n.multinet("1.0.0", n.fake("a")))
	stdin, err := json.Marshal(p.conf)
	nodetest.OK(t, err)
	unread, stdout, err := os.Pipe()
	nodetest.OK(t, errors.Join(err, unread.Close()))
	cmd := exec.CommandContext(t.Context(), built("multinet"))
	cmd.Env = []string{"CNI_COMMAND=ADD", "CNI_CONTAINERID=" + p.id, "CNI_NETNS=" + p.netns, "CNI_IFNAME=eth0", "CNI_PATH=" + n.bin}
	cmd.Stdin, cmd.Stdout = bytes.NewReader(stdin), stdout
	if err := cmd.Run(); err == nil {
		t.Error("succeeded without printing a result")
	}
	n.trace("ADD a eth0", "DEL a eth0")
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
			return []object{n.chain(1, n.bridge(1), n.with(n.behind("f", n.firewall()), object{"on": failing["on"]}))}
		},
	} {
		for fault, code := range map[string]uint{"fail": 111, "garbage": 6} {
			for how, parallel := range map[string]bool{"": false, "/parallel": true} {
				t.Run(name+"/"+fault+how, func(t *testing.T) {
					n := newNode(t)
					p := n.published(networks(n, n.fake("x", "ADD", fault))...)
					p.conf["parallel"] = parallel
					n.fails(code, "ADD", p, nil)
					n.gone(p)
					n.ok("DEL", p)
					n.gone(p)
				})
			}
		}
	}
}

// TestRulesOfAnUnfinishedADDAreRemoved: the undo of an ADD fails in firewall itself, or
// multinet is killed while a later plugin of the same chain or of a later network runs.
// The next DEL, GC or ADD waits for an orphan and removes all rules.
func TestRulesOfAnUnfinishedADDAreRemoved(t *testing.T) {
	for name, networks := range map[string]func(n *node) []object{
		"the undo fails in its own chain": func(n *node) []object {
			return []object{n.chain(1, n.bridge(1), n.behind("f", n.firewall(), "DEL", "fail"), n.fake("x", "ADD", "fail"))}
		},
		"the undo fails in an earlier network": func(n *node) []object {
			return []object{n.chain(1, n.bridge(1), n.behind("f", n.firewall(), "DEL", "fail")), n.fake("x", "ADD", "fail")}
		},
		"the undo fails two networks before": func(n *node) []object {
			return []object{n.chain(1, n.bridge(1), n.behind("f", n.firewall(), "DEL", "fail")), n.ruled(2), n.fake("x", "ADD", "fail")}
		},
		"killed in the third plugin of a chain": func(n *node) []object {
			return []object{n.ruled(1, n.fake("x", "ADD", "gate"))}
		},
		"killed in the fourth plugin of a chain": func(n *node) []object {
			return []object{n.ruled(1, n.portmap(), n.fake("x", "ADD", "gate"))}
		},
		"killed in the second network": func(n *node) []object {
			return []object{n.ruled(1, n.portmap()), n.fake("x", "ADD", "gate")}
		},
		"killed in the third plugin of the second network": func(n *node) []object {
			return []object{n.ruled(1, n.portmap()), n.ruled(2, n.fake("x", "ADD", "gate"))}
		},
		"killed in the third network": func(n *node) []object {
			return []object{n.ruled(1, n.portmap()), n.ruled(2), n.fake("x", "ADD", "gate")}
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
				n.cure()
				if name[0] == 'k' {
					n.open() // the next command waits for the orphan
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
			return []object{n.chain(1, n.single(1), n.firewall(), n.portmap()), n.fake("x", on...)}
		},
		"another chain's firewall fails": func(n *node, on ...string) []object {
			return []object{n.chain(1, n.single(1), n.firewall()), n.chain(2, n.bridge(2), n.behind("x", n.firewall(), on...))}
		},
		"the chain's last plugin fails": func(n *node, on ...string) []object {
			return []object{n.chain(1, n.single(1), n.firewall(), n.portmap(), n.fake("x", on...))}
		},
		"the plugin before firewall fails": func(n *node, on ...string) []object {
			return []object{n.chain(1, n.single(1), n.fake("x", on...), n.firewall(), n.portmap())}
		},
		"firewall itself fails": func(n *node, on ...string) []object {
			return []object{n.chain(1, n.single(1), n.behind("x", n.firewall(), on...), n.portmap())}
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
				nodetest.Equal(t, "reserved for the second", want.Leases[0], n.net(1)+".5 "+second.id+" eth0")
				if then == "DEL, the namespace gone" {
					n.vanish(first)
				}
				for range 2 {
					n.failed(again(n, first, second), 111)
					nodetest.Equal(t, "the second's, after a "+then+" that fails", n.belongings(second), want)
				}
				n.cure()
				if a := again(n, first, second); a.err != nil {
					t.Errorf("%s: %s", then, a.stdout)
				}
				nodetest.Equal(t, "the second's, after a "+then+" that succeeds", n.belongings(second), want)
				n.ok("CHECK", second)
				n.answersFrom(second, n.net(1)+".1")
				n.ok("DEL", second)
				n.gone(second)
			})
		}
	}
}
