package e2e

import (
	"fmt"
	"os"
	"slices"
	"testing"
)

// TestKillAtEveryStepWithRealPluginsLosesNothing kills multinet at every step
// of an ADD, of a DEL and of the undo of an ADD, and before, during and after
// each of its plugins: bridge, portmap and firewall in one network, bridge and
// firewall in another, each with host-local. The next DEL leaves no interface,
// no reserved address, no rule and no record. An orphaned plugin never runs
// beside another, and what it does is removed as well.
func TestKillAtEveryStepWithRealPluginsLosesNothing(t *testing.T) {
	for _, command := range []string{"ADD", "DEL", "undo"} {
		for part := range crashParts {
			t.Run(fmt.Sprintf("%s/%d", command, part), func(t *testing.T) {
				w := newWorld(t)
				w.needsRules()
				w.killReal(command, part)
			})
		}
	}
}

// crashParts is the number of worlds that share the steps of one command and
// run in parallel.
const crashParts = 4

// killReal tests every crashParts'th step from the one with the number part.
func (w *world) killReal(command string, part int) {
	w.t.Helper()
	verb := command
	p := w.published(w.steppingNetworks()...)
	if command == "undo" {
		verb = "ADD"
		nets := p.conf["delegates"].([]object)
		p.conf["delegates"] = append(nets, w.fake("z", "ADD", "fail"))
	}
	before := func() {
		w.t.Helper()
		if err := os.RemoveAll(w.file("state")); err != nil { // it is created only once
			w.t.Fatal(err)
		}
		if command == "DEL" {
			w.ok("ADD", p)
		}
	}
	before()
	if a := w.call(verb, p, w.stepping(p, nil, false)); (a.code == 0) == (command == "undo") {
		w.t.Fatalf("%s: exit status %d: %s", command, a.code, a.stdout)
	}
	steps := w.steps(p)
	if command == "undo" { // until its ADD fails it is like any other
		steps = steps[max(0, slices.Index(steps, step{"ADD z start", 1})):]
	}
	w.ok("DEL", p)
	w.gone(p)
	has(w.t, steps, map[string]string{"ADD": "ADD fire2 end", "DEL": "DEL bridge1 end", "undo": "DEL bridge1 end"}[command])

	trials := 0
	for i, at := range steps {
		if i%crashParts != part || !*long && i/crashParts%4 != part {
			continue
		}
		before()
		// An orphaned fake runs its plugin afterwards.
		orphan := at.byFake() && i%2 == 0
		w.crash(verb, p, at, orphan)
		trials++
		w.ok("DEL", p)
		w.gone(p)
		if w.t.Failed() {
			w.t.Fatalf("killed at %v (orphan: %v)", at, orphan)
		}
	}
	w.figures("SIGKILL of multinet at every step of "+command+", with bridge, host-local, firewall and portmap, then DEL", trials)
}

// steppingNetworks returns two networks of real plugins. A fake in front of
// each plugin logs its steps.
func (w *world) steppingNetworks() []object {
	w.t.Helper()
	return []object{
		w.chain(1,
			w.behind("bridge1", w.with(w.bridge(1), object{"ipMasq": true})),
			w.behind("ports1", w.portmap()),
			w.behind("fire1", w.firewall())),
		w.chain(2,
			w.behind("bridge2", w.with(w.bridge(2), object{"ipMasq": true})),
			w.behind("fire2", w.firewall())),
	}
}
