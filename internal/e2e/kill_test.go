package e2e

import (
	"fmt"
	"os"
	"slices"
	"syscall"
	"testing"

	nodetest "github.com/metacni/metacni/internal/test/node"
)

// kills kills a plugin at the steps of a command, one after the other.
type kills struct {
	*node
	command string // "ADD", "DEL", or "undo": an ADD whose last plugin fails
	p       *pod
	state   string            // directory of its records
	code    uint              // what the command answers if nobody kills it; 0 is success
	last    string            // the fake that fails in an undo
	has     []string          // some step begins with each of them
	tries   func(i int) bool  // whether to kill at the i'th step
	after   func(killed bool) // detaches p, and checks that nothing is left
}

func (k *kills) run() {
	k.Helper()
	verb := map[string]string{"ADD": "ADD", "DEL": "DEL", "undo": "ADD"}[k.command]
	before := func() {
		k.Helper()
		nodetest.OK(k, os.RemoveAll(k.file(k.state))) // it is created only once
		if k.command == "DEL" {
			k.ok("ADD", k.p)
		}
	}
	before()
	if a := k.call(verb, k.p, k.stepping(k.p, nil, false)); k.code != 0 {
		k.failed(a, k.code)
	} else if a.code != 0 {
		k.Fatalf("%s: %s", verb, a.stdout)
	}
	steps := k.steps(k.p)
	if k.command == "undo" { // until then it is like any other ADD
		steps = steps[max(0, slices.Index(steps, step{"ADD " + k.last + " start", 1})):]
	}
	k.after(false)
	has(k, steps, k.has...)
	for i, at := range steps {
		if !k.tries(i) {
			continue
		}
		for _, orphan := range []bool{false, true} {
			if orphan && !at.byFake() {
				continue
			}
			before()
			k.crash(verb, k.p, at, orphan)
			// In this order: an orphaned fake may attach something at any time.
			if live := k.leaked(k.p); len(live) > 0 && !k.recorded(k.p, k.state) {
				k.Errorf("%v attached, nothing recorded", live)
			}
			k.after(true)
			if k.Failed() {
				k.Fatalf("killed at %v (orphan: %v)", at, orphan)
			}
		}
	}
}

// TestKillAtEveryStepLosesNothing kills each plugin at every step of an ADD, of
// a DEL and of the undo of an ADD. Whatever a fake has attached by then is
// recorded. The next DEL, ADD or GC waits for an orphaned fake and removes
// everything.
func TestKillAtEveryStepLosesNothing(t *testing.T) {
	added := []string{
		"ADD create C@lock", "ADD flock .", "ADD create .tmp-", "ADD write .tmp-",
		"ADD fsync .tmp-", "ADD renameat .tmp-", "ADD fsync .", "ADD unflock .", "ADD flock C@lock",
	}
	for _, s := range append(subjects(), subject{name: "fallback", state: "state", fakes: []string{"b"}}) {
		for command, wants := range map[string][]string{
			"ADD":  append(s.fakeSteps("ADD"), added...),
			"DEL":  append(s.fakeSteps("DEL"), "DEL flock C@lock", "DEL unlinkat C@", "DEL unlinkat C@lock"),
			"undo": append(s.fakeSteps("DEL"), "ADD unlinkat C@", "ADD unlinkat C@lock", "ADD unflock C@lock"),
		} {
			for i, then := range []string{"DEL", "ADD", "GC"} {
				t.Run(s.name+"/"+command+"/then "+then, func(t *testing.T) {
					n := newNode(t)
					k := &kills{node: n, command: command, p: n.pod(s.conf(n)), state: s.state, last: s.fakes[len(s.fakes)-1], has: wants}
					k.tries = func(step int) bool { return *long || step%3 == i }
					if command == "undo" {
						k.p.conf, k.code = s.conf(n, "ADD", "fail"), 111
					}
					k.after = func(bool) {
						n.cure()
						switch then {
						case "ADD": // code 7: the killed ADD was complete, only its result was lost
							if a := n.call("ADD", k.p); a.err != nil && a.err.Code != 7 {
								t.Errorf("ADD: %s", a.stdout)
							}
							if live := n.leaked(k.p); len(live) != len(s.fakes) && s.name != "fallback" {
								t.Errorf("ADD: %v attached", live)
							}
						case "GC":
							n.ok("GC", k.p, valid())
							nodetest.Equal(t, "attached after GC", n.leaked(k.p), nil)
						}
						n.ok("DEL", k.p)
						n.nothingLeft()
						n.sicken()
					}
					k.run()
				})
			}
		}
	}
}

// crashParts is the number of nodes that share the steps of one command and
// run in parallel.
const crashParts = 4

// TestKillAtEveryStepWithRealPluginsLosesNothing kills multinet at every step
// of an ADD, of a DEL and of the undo of an ADD, and before, during and after
// each of its plugins: bridge, portmap and firewall in one network, bridge and
// firewall in another, each with host-local. The next DEL leaves no interface,
// no reserved address, no rule and no record. An orphaned plugin never runs
// beside another, and what it does is removed as well.
func TestKillAtEveryStepWithRealPluginsLosesNothing(t *testing.T) {
	for command, want := range map[string]string{"ADD": "ADD fire2 end", "DEL": "DEL bridge1 end", "undo": "DEL bridge1 end"} {
		for part := range crashParts {
			t.Run(fmt.Sprintf("%s/%d", command, part), func(t *testing.T) {
				n := newNode(t)
				// A fake in front of each plugin logs its steps.
				networks := []object{
					n.chain(1,
						n.behind("bridge1", n.with(n.bridge(1), object{"ipMasq": true})),
						n.behind("ports1", n.portmap()),
						n.behind("fire1", n.firewall())),
					n.chain(2,
						n.behind("bridge2", n.with(n.bridge(2), object{"ipMasq": true})),
						n.behind("fire2", n.firewall())),
				}
				k := &kills{node: n, command: command, state: "state", last: "z", has: []string{want}, tries: shared(part)}
				if command == "undo" {
					networks, k.code = append(networks, n.fake("z", "ADD", "fail")), 111
				}
				k.p = n.published(networks...)
				k.after = func(bool) {
					n.ok("DEL", k.p)
					n.gone(k.p)
				}
				k.run()
			})
		}
	}
}

// shared reports which steps are those of a part.
func shared(part int) func(i int) bool {
	return func(i int) bool { return i%crashParts == part && (*long || i/crashParts%4 == part) }
}

// TestKilledDELSparesAnAddressThatHasMoved kills multinet at every step of a DEL and of
// the undo of an ADD in which firewall fails, and before, during and after each plugin.
// If the address is free afterwards, a second container gets it. The next DEL of the first
// container takes nothing from the second: no rule, no address, no interface.
func TestKilledDELSparesAnAddressThatHasMoved(t *testing.T) {
	for _, command := range []string{"DEL", "undo"} {
		for part := range crashParts {
			t.Run(fmt.Sprintf("%s/%d", command, part), func(t *testing.T) {
				n := newNode(t)
				networks := []object{n.chain(1, n.behind("bridge1", n.single(1)), n.behind("fire1", n.firewall(), "DEL", "fail"))}
				if command == "undo" {
					networks = append(networks, n.fake("z", "ADD", "fail"))
				}
				first, second := n.published(networks...), n.published(n.chain(1, n.single(1), n.firewall()))
				moved := false
				k := &kills{node: n, command: command, p: first, state: "state", code: 111, last: "z", has: []string{"DEL fire1", "DEL bridge1 end"}, tries: shared(part)}
				k.after = func(killed bool) {
					n.call("CHECK", first) // waits for an orphan
					a := n.call("ADD", second)
					n.cure()
					if a.code == 0 {
						moved = moved || killed
						second.result = a.stdout
						want := n.belongings(second)
						n.ok("DEL", first)
						nodetest.Equal(t, "the second's", n.belongings(second), want)
						n.ok("CHECK", second)
						n.ok("DEL", second)
					}
					n.ok("DEL", first)
					n.gone(first)
					n.sicken()
				}
				k.run()
				if !moved && *long {
					t.Error("the address was never free")
				}
			})
		}
	}
}

// TestTerminationLeavesNoProcess: SIGTERM while a plugin hangs in ADD or DEL,
// with or without ignoring SIGTERM, alone or with a child: the command answers
// code 11, and no process is left. The ADD is undone, the DEL can be
// repeated.
func TestTerminationLeavesNoProcess(t *testing.T) {
	for _, s := range subjects() {
		for _, command := range []string{"ADD", "DEL"} {
			for _, fault := range []string{"hang", "deaf", "family"} {
				t.Run(s.name+"/"+command+"/"+fault, func(t *testing.T) {
					n := newNode(t)
					p := n.pod(s.conf(n, command, fault))
					if command == "DEL" {
						n.ok("ADD", p)
					}
					r := n.start(command, p)
					n.ready() // for family, the child reports it
					nodetest.OK(t, r.cmd.Process.Signal(syscall.SIGTERM))
					n.failed(n.wait(r), 11)
					n.orphansEnd()
					if command == "ADD" {
						n.nothingLeft()
					} else {
						nodetest.Equal(t, "recorded", n.recorded(p, s.state), true)
					}
					n.cure()
					n.ok("DEL", p)
					n.nothingLeft()
				})
			}
		}
	}
}

// TestDELKillsOrphansAndNobodyElse: multinet is killed in ADD or DEL, and its plugins
// hang: one with a child, or two that run in parallel. The next DEL waits for them, kills
// their whole process groups, and only then runs a plugin. It kills no process that merely
// has the lock's file open.
func TestDELKillsOrphansAndNobodyElse(t *testing.T) {
	for _, s := range subjects() {
		for _, command := range []string{"ADD", "DEL"} {
			t.Run(s.name+"/"+command, func(t *testing.T) {
				n := newNode(t)
				p := n.pod(s.conf(n, command, "family"))
				orphans := 2
				if s.parallel {
					p.conf["delegates"].([]object)[1]["on"], orphans = object{command: "deaf"}, 3
				}
				if command == "DEL" {
					n.ok("ADD", p)
				}
				r := n.start(command, p)
				for range orphans - 1 { // the parent of the child does not say that it is ready
					n.ready()
				}
				n.kill(r)
				n.until("only the orphans run", func() bool { return len(n.running()) == orphans })
				lock, err := os.Open(n.file(s.state, p.id+"@lock"))
				nodetest.OK(t, err)
				defer lock.Close()
				bystander := n.bystander(lock)

				n.cure()
				n.ok("DEL", p, withoutNetNS)
				if f := stat(bystander); f == nil || f[0] == "Z" {
					t.Error("DEL has killed another process")
				}
				n.nothingLeft() // and no two ran at the same time
				n.orphansEnd()
			})
		}
	}
}

// TestDELSparesADaemonOfTheNetwork: a plugin of an ADD starts a daemon for all containers, which
// inherits the container's lock, and hangs. While multinet lives, DEL answers 11. When it is killed,
// DEL kills the plugin and not the daemon, and nobody waits for the daemon ever after.
func TestDELSparesADaemonOfTheNetwork(t *testing.T) {
	for _, s := range subjects() {
		t.Run(s.name, func(t *testing.T) {
			n := newNode(t)
			p := n.pod(s.conf(n, "ADD", "service"))
			r := n.start("ADD", p)
			n.ready() // says the daemon
			n.until("the last plugin and its daemon are left", func() bool { return len(n.running()) == 2 })
			n.failed(n.call("DEL", p), 11)
			nodetest.Equal(t, "running", len(n.running()), 2)

			n.kill(r)
			n.cure()
			n.ok("DEL", p, withoutNetNS)
			n.until("the plugin is dead", func() bool { return len(n.running()) == 1 })
			n.nothingLeft() // and no two ran at the same time
			n.ok("ADD", p)
			n.ok("DEL", p)
			n.nothingLeft()
			n.until("only the daemon is left", func() bool { return len(n.running()) == 1 })
			n.endChildren()
		})
	}
}
