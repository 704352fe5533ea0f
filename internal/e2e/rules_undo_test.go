package e2e

import (
	"testing"
)

// TestUndoRemovesRules: an ADD that fails leaves no rule, whichever plugin
// fails. The undo passes each plugin the result that came before it.
func TestUndoRemovesRules(t *testing.T) {
	for name, networks := range map[string]func(w *world, failing object) []object{
		"the end of the chain": func(w *world, failing object) []object {
			return []object{w.ruled(1, w.portmap(), failing)}
		},
		"the plugin after firewall": func(w *world, failing object) []object {
			return []object{w.ruled(1, failing, w.portmap())}
		},
		"the next network": func(w *world, failing object) []object {
			return []object{w.ruled(1, w.portmap()), failing}
		},
		"the end of the next network": func(w *world, failing object) []object {
			return []object{w.ruled(1, w.portmap()), w.ruled(2, failing)}
		},
		"the network after two": func(w *world, failing object) []object {
			return []object{w.ruled(1, w.portmap()), w.ruled(2), failing}
		},
		"firewall itself, when it has made its rules": func(w *world, failing object) []object {
			return []object{w.chain(1, w.bridge(1), w.with(w.behind("f", w.firewall()), object{"on": failing["on"]}))}
		},
	} {
		for _, fault := range []string{"fail", "garbage"} {
			for _, parallel := range []bool{false, true} {
				label := name + "/" + fault
				if parallel {
					label += "/parallel"
				}
				t.Run(label, func(t *testing.T) {
					w := newWorld(t)
					w.needsRules()
					p := w.published(networks(w, w.fake("x", "ADD", fault))...)
					p.conf["parallel"] = parallel
					code := map[string]uint{"fail": 111, "garbage": 6}[fault]
					w.fails(code, "ADD", p, nil)
					w.gone(p)
					w.ok("DEL", p)
					w.gone(p)
					w.figures("an ADD of bridge, firewall and portmap that fails: "+label, 1)
				})
			}
		}
	}
}

// TestDELRemovesRulesAfterAFailedUndo: if the undo fails in firewall itself, a
// later DEL removes the rules.
func TestDELRemovesRulesAfterAFailedUndo(t *testing.T) {
	for name, networks := range map[string]func(w *world, wall object) []object{
		"in its own chain": func(w *world, wall object) []object {
			return []object{w.chain(1, w.bridge(1), wall, w.fake("x", "ADD", "fail"))}
		},
		"in an earlier network": func(w *world, wall object) []object {
			return []object{w.chain(1, w.bridge(1), wall), w.fake("x", "ADD", "fail")}
		},
		"two networks before": func(w *world, wall object) []object {
			return []object{w.chain(1, w.bridge(1), wall), w.ruled(2), w.fake("x", "ADD", "fail")}
		},
	} {
		for _, then := range detaches {
			t.Run(name+"/"+then, func(t *testing.T) {
				w := newWorld(t)
				w.needsRules()
				p := w.published(networks(w, w.behind("f", w.firewall(), "DEL", "fail"))...)
				w.fails(111, "ADD", p, nil)
				if len(w.rules()) == 0 {
					t.Fatal("the undo has removed the rules: this tests nothing")
				}
				w.cure()
				w.detach(then, p)
				w.gone(p)
				w.figures("the undo fails in firewall, "+name+", then "+then, 1)
			})
		}
	}
}

// TestKilledADDLeavesNoRules: multinet is killed while a plugin runs. The next
// DEL, GC or ADD removes the rules of the earlier plugins of the same chain and
// of earlier networks.
func TestKilledADDLeavesNoRules(t *testing.T) {
	for name, networks := range map[string]func(w *world, waiting object) []object{
		"the third plugin of a chain": func(w *world, waiting object) []object {
			return []object{w.ruled(1, waiting)}
		},
		"the fourth plugin of a chain": func(w *world, waiting object) []object {
			return []object{w.ruled(1, w.portmap(), waiting)}
		},
		"the second network": func(w *world, waiting object) []object {
			return []object{w.ruled(1, w.portmap()), waiting}
		},
		"the third plugin of the second network": func(w *world, waiting object) []object {
			return []object{w.ruled(1, w.portmap()), w.ruled(2, waiting)}
		},
		"the third network": func(w *world, waiting object) []object {
			return []object{w.ruled(1, w.portmap()), w.ruled(2), waiting}
		},
	} {
		for _, then := range detaches {
			t.Run(name+"/"+then, func(t *testing.T) {
				w := newWorld(t)
				w.needsRules()
				p := w.published(networks(w, w.fake("x", "ADD", "gate"))...)
				w.killed("ADD", p)
				if len(w.rules()) == 0 {
					t.Fatal("there are no rules: this tests nothing")
				}
				w.cure()
				w.open() // the next command waits for the orphan
				w.detach(then, p)
				w.gone(p)
				w.figures("SIGKILL of multinet in "+name+", then "+then, 1)
			})
		}
	}
}
