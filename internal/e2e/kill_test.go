package e2e

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"
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
		nodetest.OK(k, os.RemoveAll(k.File(k.state))) // it is created only once
		if k.command == "DEL" {
			k.ok("ADD", k.p)
		}
	}
	before()
	if a := k.call(verb, k.p, k.stepping(k.p, nil, false)); k.code != 0 {
		k.failed(a, k.code)
	} else if a.Code != 0 {
		k.Fatalf("%s: %s", verb, a.Stdout)
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
						k.p.Conf, k.code = s.conf(n, "ADD", "fail"), 111
					}
					k.after = func(bool) {
						n.Cure()
						switch then {
						case "ADD": // code 7: the killed ADD was complete, only its result was lost
							if a := n.call("ADD", k.p); a.Err != nil && a.Err.Code != 7 {
								t.Errorf("ADD: %s", a.Stdout)
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
						n.Sicken()
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
						n.Behind("bridge1", n.with(n.bridge(1), object{"ipMasq": true})),
						n.Behind("ports1", n.portmap()),
						n.Behind("fire1", n.firewall())),
					n.chain(2,
						n.Behind("bridge2", n.with(n.bridge(2), object{"ipMasq": true})),
						n.Behind("fire2", n.firewall())),
				}
				k := &kills{node: n, command: command, state: "state", last: "z", has: []string{want}, tries: shared(part)}
				if command == "undo" {
					networks, k.code = append(networks, n.Fake("z", "ADD", "fail")), 111
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
				networks := []object{n.chain(1, n.Behind("bridge1", n.single(1)), n.Behind("fire1", n.firewall(), "DEL", "fail"))}
				if command == "undo" {
					networks = append(networks, n.Fake("z", "ADD", "fail"))
				}
				first, second := n.published(networks...), n.published(n.chain(1, n.single(1), n.firewall()))
				moved := false
				k := &kills{node: n, command: command, p: first, state: "state", code: 111, last: "z", has: []string{"DEL fire1", "DEL bridge1 end"}, tries: shared(part)}
				k.after = func(killed bool) {
					n.call("CHECK", first) // waits for an orphan
					a := n.call("ADD", second)
					n.Cure()
					if a.Code == 0 {
						moved = moved || killed
						second.Result = a.Stdout
						want := n.belongings(second)
						n.ok("DEL", first)
						nodetest.Equal(t, "the second's", n.belongings(second), want)
						n.ok("CHECK", second)
						n.ok("DEL", second)
					}
					n.ok("DEL", first)
					n.gone(first)
					n.Sicken()
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
	for _, s := range multinets() {
		for _, command := range []string{"ADD", "DEL"} {
			for _, fault := range []string{"hang", "deaf", "family"} {
				t.Run(s.name+"/"+command+"/"+fault, func(t *testing.T) {
					n := newNode(t)
					p := n.pod(s.conf(n, command, fault))
					if command == "DEL" {
						n.ok("ADD", p)
					}
					r := n.start(command, p)
					n.Ready() // for family, the child reports it
					nodetest.OK(t, r.Cmd.Process.Signal(syscall.SIGTERM))
					n.failed(n.Wait(r), 11)
					n.OrphansEnd()
					if command == "ADD" {
						n.nothingLeft()
					} else {
						nodetest.Equal(t, "recorded", n.recorded(p, s.state), true)
					}
					n.Cure()
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
	for _, s := range multinets() {
		for _, command := range []string{"ADD", "DEL"} {
			t.Run(s.name+"/"+command, func(t *testing.T) {
				n := newNode(t)
				p := n.pod(s.conf(n, command, "family"))
				orphans := 2
				if s.parallel {
					p.Conf["delegates"].([]object)[1]["on"], orphans = object{command: "deaf"}, 3
				}
				if command == "DEL" {
					n.ok("ADD", p)
				}
				r := n.start(command, p)
				for range orphans - 1 { // the parent of the child does not say that it is ready
					n.Ready()
				}
				r.Kill()
				n.Until("only the orphans run", func() bool { return len(n.Running()) == orphans })
				lock, err := os.Open(n.File(s.state, p.ID+"@lock"))
				nodetest.OK(t, err)
				defer lock.Close()
				bystander := n.bystander(lock)

				n.Cure()
				n.ok("DEL", p, withoutNetNS)
				if nodetest.Ended(bystander, "") {
					t.Error("DEL has killed another process")
				}
				n.nothingLeft() // and no two ran at the same time
				n.OrphansEnd()
			})
		}
	}
}

// TestDELSparesADaemonOfTheNetwork: a plugin of an ADD starts a daemon for all containers, which
// inherits the container's lock, and hangs. While multinet lives, DEL answers 11. When it is killed,
// DEL kills the plugin and not the daemon, and nobody waits for the daemon ever after.
func TestDELSparesADaemonOfTheNetwork(t *testing.T) {
	for _, s := range multinets()[:1] {
		t.Run(s.name, func(t *testing.T) {
			n := newNode(t)
			p := n.pod(s.conf(n, "ADD", "service"))
			r := n.start("ADD", p)
			n.Ready() // says the daemon
			n.Until("the last plugin and its daemon are left", func() bool { return len(n.Running()) == 2 })
			n.failed(n.call("DEL", p), 11)
			nodetest.Equal(t, "running", len(n.Running()), 2)

			r.Kill()
			n.Cure()
			n.ok("DEL", p, withoutNetNS)
			n.Until("the plugin is dead", func() bool { return len(n.Running()) == 1 })
			n.nothingLeft() // and no two ran at the same time
			n.ok("ADD", p)
			n.ok("DEL", p)
			n.nothingLeft()
			n.Until("only the daemon is left", func() bool { return len(n.Running()) == 1 })
			n.endChildren()
		})
	}
}

// A step is one entry in the log of steps: what a plugin, or a fake that it
// runs, is about to do. See Step in internal/durable and step in fake.
type step struct {
	what string // the container's ID is replaced by C
	nth  int    // counts the steps with the same text, from 1
}

func (s step) String() string { return fmt.Sprintf("%s (%d)", s.what, s.nth) }

// byFake reports whether a fake took the step.
func (s step) byFake() bool {
	return slices.Contains([]string{"start", "middle", "end"}, s.what[strings.LastIndexByte(s.what, ' ')+1:])
}

// fake returns the ID of the fake that took the step.
func (s step) fake() string { return strings.Fields(s.what)[1] }

// stepping makes a plugin log its steps. If at is not nil, the plugin is killed
// there. If that is a fake's step, the fake dies with the plugin unless orphan
// is set.
func (n *node) stepping(p *pod, at *step, orphan bool) extra {
	n.steps(p) // drop what an orphan has logged since
	return func(env map[string]string, _ object) {
		env["METACNI_STEPS"] = n.File(p.ID + ".steps")
		if at != nil {
			env["METACNI_STEPS_KILL"] = strings.ReplaceAll(at.what, " C", " "+p.ID)
			env["METACNI_STEPS_NTH"] = strconv.Itoa(at.nth)
		}
		if orphan {
			env["METACNI_STEPS_ORPHAN"] = "1"
		}
	}
}

// steps reads and removes the log of p's steps.
func (n *node) steps(p *pod) (list []step) {
	n.Helper()
	text, err := os.ReadFile(n.File(p.ID + ".steps"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		n.Fatal(err)
	}
	_ = os.Remove(n.File(p.ID + ".steps"))
	return parseSteps(strings.ReplaceAll(string(text), " "+p.ID, " C"))
}

// parseSteps parses a log of steps: in each line the process and what it is about to do.
func parseSteps(text string) (list []step) {
	seen := make(map[string]int)
	for line := range strings.Lines(text) {
		_, what, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		seen[what]++
		list = append(list, step{what, seen[what]})
	}
	return list
}

// crash runs a command that is killed at a step. It fails the test unless the
// log of steps shows that the command was killed exactly there.
func (n *node) crash(command string, p *pod, at step, orphan bool) {
	n.Helper()
	r := n.start(command, p, n.stepping(p, &at, orphan))
	if a := r.Wait(); a.Code != -1 {
		n.Fatalf("%s, to be killed at %v: %v, %s", command, at, r.Cmd.ProcessState, a.Stdout)
	}
	steps := n.steps(p)
	killed := slices.Index(steps, step{"killed", 1})
	if killed < 0 {
		n.Fatalf("%s was not killed at %v: %v", command, at, steps)
	}
	// The plugin and a fake that it runs take steps at the same time.
	before := slices.Index(steps[:killed], at)
	if before < 0 {
		n.Fatalf("%s was killed after %v, not %v", command, steps[:killed], at)
	}
	for _, s := range steps[before+1:] {
		alike := s.byFake() == at.byFake()
		if at.byFake() && p.Conf["parallel"] == true {
			alike = s.byFake() && s.fake() == at.fake() // the other fakes continue
		}
		if s.what != "killed" && alike && (!at.byFake() || !orphan) {
			n.Errorf("%s was killed at %v, and then came to %v", command, at, s)
		}
	}
}

// recorded reports whether p has a record, in whatever state.
func (n *node) recorded(p *pod, state string) bool {
	n.Helper()
	return slices.ContainsFunc(n.List(n.File(state)), p.isRecord)
}

// has fails the test unless for each of whats some step begins with it.
// Otherwise the crashes would not cover what the test claims.
func has(t testing.TB, steps []step, whats ...string) {
	t.Helper()
	for _, what := range whats {
		if !slices.ContainsFunc(steps, func(s step) bool { return strings.HasPrefix(s.what, what) }) {
			t.Fatalf("no step %q in %v", what, steps)
		}
	}
}

// neverBeside fails the test if two fakes worked on one container at the same
// time.
func (n *node) neverBeside() {
	n.Helper()
	text, err := os.ReadFile(n.File("fake", "beside"))
	if err == nil {
		n.Errorf("side by side:\n%s", text)
	}
}

// leaked lists what the fakes have attached to p and not detached.
func (n *node) leaked(p *pod) (list []string) {
	n.Helper()
	for _, name := range n.Live() {
		if strings.Contains(name, "@"+p.ID+"@") {
			list = append(list, name)
		}
	}
	return list
}

// A subject is a meta-plugin under test. Its delegates are some of the fakes a,
// b and c.
type subject struct {
	name     string
	state    string // directory of its records
	fakes    []string
	parallel bool // b and c run in parallel
}

func subjects() []subject {
	return []subject{
		{name: "multinet", state: "state", fakes: []string{"a", "b"}},
		{name: "flannel", state: "flannel", fakes: []string{"a"}},
		{name: "multinet parallel", state: "state", fakes: []string{"a", "b", "c"}, parallel: true},
	}
}

// multinets are for what all meta-plugins of the SDK do alike.
func multinets() []subject {
	all := subjects()
	return []subject{all[0], all[2]}
}

// fakeSteps returns the steps of all fakes in one command.
func (s subject) fakeSteps(command string) (list []string) {
	for _, id := range s.fakes {
		list = append(list, command+" "+id+" start", command+" "+id+" middle", command+" "+id+" end")
	}
	return list
}

// conf returns s's configuration. on lists the faults of the last fake.
func (s subject) conf(n *node, on ...string) object {
	n.Helper()
	if s.name == "flannel" {
		n.subnetEnv()
		return n.flannel("1.1.0", n.Fake("a", on...))
	}
	if s.name == "fallback" {
		return n.fallback("1.1.0", n.Fake("a", "ADD", "fail"), n.Fake("b", on...))
	}
	var fakes []object
	for _, id := range s.fakes {
		fakes = append(fakes, n.Fake(id))
	}
	fakes[len(fakes)-1] = n.Fake(s.fakes[len(fakes)-1], on...)
	conf := n.multinet("1.1.0", fakes...)
	if s.parallel {
		n.parallel(conf, fakes...)
	}
	return conf
}

// calls returns the calls of the fakes in one command, as n.trace takes them.
func (s subject) calls(command string) (list []string) {
	for i, id := range s.fakes {
		ifname := "eth0"
		if i > 0 {
			ifname = fmt.Sprintf("net%d", i)
		}
		list = append(list, command+" "+id+" "+ifname)
	}
	if command == "DEL" {
		slices.Reverse(list)
	}
	return list
}
