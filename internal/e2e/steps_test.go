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
)

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
		env["METACNI_STEPS"] = n.file(p.id + ".steps")
		if at != nil {
			env["METACNI_STEPS_KILL"] = strings.ReplaceAll(at.what, " C", " "+p.id)
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
	text, err := os.ReadFile(n.file(p.id + ".steps"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		n.Fatal(err)
	}
	_ = os.Remove(n.file(p.id + ".steps"))
	return parseSteps(strings.ReplaceAll(string(text), " "+p.id, " C"))
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
	_ = r.cmd.Wait()
	if ws, ok := r.cmd.ProcessState.Sys().(syscall.WaitStatus); !ok || ws.Signal() != syscall.SIGKILL {
		n.Fatalf("%s, to be killed at %v: %v, %s", command, at, r.cmd.ProcessState, r.stdout.text)
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
		if at.byFake() && p.conf["parallel"] == true {
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
	return slices.ContainsFunc(n.list(n.file(state)), p.isRecord)
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
	text, err := os.ReadFile(n.file("fake", "beside"))
	if err == nil {
		n.Errorf("side by side:\n%s", text)
	}
}

// leaked lists what the fakes have attached to p and not detached.
func (n *node) leaked(p *pod) (list []string) {
	n.Helper()
	for _, name := range n.live() {
		if strings.Contains(name, "@"+p.id+"@") {
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
		return n.flannel("1.1.0", n.fake("a", on...))
	}
	if s.name == "fallback" {
		return n.fallback("1.1.0", n.fake("a", "ADD", "fail"), n.fake("b", on...))
	}
	var fakes []object
	for _, id := range s.fakes {
		fakes = append(fakes, n.fake(id))
	}
	fakes[len(fakes)-1] = n.fake(s.fakes[len(fakes)-1], on...)
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
