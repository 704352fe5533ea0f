package e2e

import (
	"os"
	"testing"
)

// fallback returns a configuration of fallback with these choices.
func (w *world) fallback(version string, choices ...object) object {
	return object{
		"cniVersion": version, "name": w.name("fall"), "type": "fallback",
		"choices": choices, "cniDir": w.file("state"),
	}
}

// TestFallbackAttachesTheFirstNetworkThatWorks: the third of three choices of
// real plugins works. Nothing is left of the others, and every later command
// goes to the third.
func TestFallbackAttachesTheFirstNetworkThatWorks(t *testing.T) {
	for _, version := range versions {
		t.Run(version, func(t *testing.T) {
			w := newWorld(t)
			uplink := object{"type": "macvlan", "master": w.name("absent"), "ipam": w.bridge(3)["ipam"]}
			chain := object{"name": w.name("chain"), "cniVersion": version, "plugins": []object{w.bridge(2), w.fake("f", "ADD", "fail")}}
			p := w.pod(w.fallback(version, uplink, chain, w.bridge(1)))
			if version == "1.1.0" {
				w.ok("STATUS", p)
			}
			w.ok("ADD", p)
			w.trace("ADD f eth0", "DEL f eth0")
			r := decode(t, p, version)
			if len(r.IPs) != 1 || r.IPs[0].Address.String() != w.net(1)+".2/24" {
				t.Errorf("result %s", p.result)
			}
			same(t, "interfaces", []string{"eth0"}, w.interfaces(p))
			same(t, "ports of bridges", 1, len(w.ports()))
			same(t, "leases", 1, len(w.leases()))
			w.answersPing(p, w.net(1)+".1")
			if version != "0.3.1" {
				w.ok("CHECK", p)
			}
			if version == "1.1.0" {
				w.ok("GC", p, valid(p))
				w.ok("CHECK", p)
			}
			p.conf["choices"] = []object{uplink} // the record knows the choice
			w.ok("DEL", p)
			same(t, "interfaces after DEL", nil, w.interfaces(p))
			w.nothingLeft()
			w.ok("DEL", p, withoutNetNS)
		})
	}
}

// TestFallbackReportsWhyNothingWorks: if every choice fails, the error contains
// the reason of each, and nothing is left.
func TestFallbackReportsWhyNothingWorks(t *testing.T) {
	w := newWorld(t)
	chain := object{"name": w.name("chain"), "cniVersion": "1.0.0", "plugins": []object{w.bridge(1), w.fake("f", "ADD", "fail")}}
	p := w.pod(w.fallback("1.0.0", object{"type": "macvlan", "master": w.name("absent")}, object{"type": "not-installed"}, chain))
	w.fails(111, "ADD", p, []string{"choices[0]", "macvlan", "; choices[1]", "not-installed", "; choices[2]", "no free device"})
	same(t, "interfaces", nil, w.interfaces(p))
	w.nothingLeft()
}

// TestDELRemovesWhatAKilledFallbackAttached: fallback is killed while it
// attaches a choice. DEL waits for the plugin that continues and removes what
// it has attached.
func TestDELRemovesWhatAKilledFallbackAttached(t *testing.T) {
	for name, first := range map[string]func(w *world) []object{
		"first choice":  func(*world) []object { return nil },
		"second choice": func(w *world) []object { return []object{w.fake("a", "ADD", "fail")} },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			chain := object{"name": w.name("chain"), "cniVersion": "1.0.0", "plugins": []object{w.bridge(1), w.fake("b", "ADD", "gate")}}
			p := w.pod(w.fallback("1.0.0", append(first(w), chain, w.bridge(2))...))
			w.killed("ADD", p)
			same(t, "interfaces", []string{"eth0"}, w.interfaces(p))
			w.forget()
			del := w.start("DEL", p, withoutNetNS)
			w.waitsForLock(del)
			w.open()
			w.done(del)
			w.trace("DEL b eth0")
			same(t, "interfaces", nil, w.interfaces(p))
			w.nothingLeft()
		})
	}
}

// TestDELWaitsForTheChoicesOfFallback: a DEL that arrives while the first
// choice fails waits until the second is attached, and removes that. It does
// not run between the two and find nothing.
func TestDELWaitsForTheChoicesOfFallback(t *testing.T) {
	w := newWorld(t)
	chain := object{"name": w.name("chain"), "cniVersion": "1.0.0", "plugins": []object{w.fake("a", "ADD", "gate"), w.fake("b", "ADD", "fail")}}
	p := w.pod(w.fallback("1.0.0", chain, w.fake("c")))
	add := w.start("ADD", p)
	w.ready()
	del := w.start("DEL", p, withoutNetNS)
	w.waitsForLock(del)
	w.open()
	w.done(add)
	w.done(del)
	w.trace("ADD a eth0", "ADD b eth0", "DEL b eth0", "DEL a eth0", "ADD c eth0", "DEL c eth0")
	w.nothingLeft()
}

// TestFallbackKilledAtEveryStepLosesNothing kills fallback at every step of an
// ADD whose first choice fails, of its DEL, and of an ADD whose choices all
// fail.
func TestFallbackKilledAtEveryStepLosesNothing(t *testing.T) {
	for _, command := range []string{"ADD", "DEL", "undo"} {
		t.Run(command, func(t *testing.T) {
			w := newWorld(t)
			s := subject{name: "fallback", state: "state", fakes: []string{"b"}}
			c := &crashes{world: w, s: s, command: command, then: "DEL", p: w.pod(s.conf(w))}
			c.run()
			w.nothingLeft()
		})
	}
}

// TestFallbackStopsAtAChoiceItCannotUndo: if the undo of a choice fails, no
// other choice is tried. The record is kept until DEL succeeds.
func TestFallbackStopsAtAChoiceItCannotUndo(t *testing.T) {
	w := newWorld(t)
	p := w.pod(w.fallback("1.0.0", w.fake("a", "ADD", "fail", "DEL", "fail"), w.fake("b")))
	w.fails(111, "ADD", p, []string{"no free device", "undoing it failed as well"})
	w.trace("ADD a eth0", "DEL a eth0")
	same(t, "recorded", true, w.recorded(p, "state"))
	w.ok("DEL", p) // nothing of it is in the container
	same(t, "recorded", true, w.recorded(p, "state"))
	if err := os.WriteFile(w.file("fake", "cured"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	w.ok("DEL", p)
	w.nothingLeft()
}
