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
func (w *world) stepping(p *pod, at *step, orphan bool) extra {
	w.steps(p) // drop what an orphan has logged since
	return func(env map[string]string, _ object) {
		env["METACNI_STEPS"] = w.file(p.id + ".steps")
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
func (w *world) steps(p *pod) (list []step) {
	w.t.Helper()
	text, err := os.ReadFile(w.file(p.id + ".steps"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		w.t.Fatal(err)
	}
	_ = os.Remove(w.file(p.id + ".steps"))
	seen := make(map[string]int)
	for line := range strings.Lines(string(text)) {
		_, what, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		what = strings.ReplaceAll(what, " "+p.id, " C")
		seen[what]++
		list = append(list, step{what, seen[what]})
	}
	return list
}

// crash runs a command that is killed at a step. It fails the test unless the
// log of steps shows that the command was killed exactly there.
func (w *world) crash(command string, p *pod, at step, orphan bool) {
	w.t.Helper()
	r := w.start(command, p, w.stepping(p, &at, orphan))
	_ = r.cmd.Wait()
	if ws, ok := r.cmd.ProcessState.Sys().(syscall.WaitStatus); !ok || ws.Signal() != syscall.SIGKILL {
		w.t.Fatalf("%s, to be killed at %v: %v, %s", command, at, r.cmd.ProcessState, r.stdout.text)
	}
	steps := w.steps(p)
	killed := slices.Index(steps, step{"killed", 1})
	if killed < 0 {
		w.t.Fatalf("%s was not killed at %v: %v", command, at, steps)
	}
	// The plugin and a fake that it runs take steps at the same time.
	before := slices.Index(steps[:killed], at)
	if before < 0 {
		w.t.Fatalf("%s was killed after %v, not %v", command, steps[:killed], at)
	}
	for _, s := range steps[before+1:] {
		alike := s.byFake() == at.byFake()
		if at.byFake() && p.conf["parallel"] == true {
			alike = s.byFake() && s.fake() == at.fake() // the other fakes continue
		}
		if s.what != "killed" && alike && (!at.byFake() || !orphan) {
			w.t.Errorf("%s was killed at %v, and then came to %v", command, at, s)
		}
	}
}

// recorded reports whether p has a record, in whatever state.
func (w *world) recorded(p *pod, state string) bool {
	w.t.Helper()
	return slices.ContainsFunc(w.list(w.file(state)), p.isRecord)
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
func (w *world) neverBeside() {
	w.t.Helper()
	text, err := os.ReadFile(w.file("fake", "beside"))
	if err == nil {
		w.t.Errorf("side by side:\n%s", text)
	}
}

// leaked lists what the fakes have attached to p and not detached.
func (w *world) leaked(p *pod) (list []string) {
	w.t.Helper()
	for _, name := range w.live() {
		if strings.Contains(name, "@"+p.id+"@") {
			list = append(list, name)
		}
	}
	return list
}

// clean fails the test if anything of p is left.
func (w *world) clean(p *pod, state string) {
	w.t.Helper()
	same(w.t, "attached by fakes", nil, w.leaked(p))
	var left []string
	for _, name := range w.list(w.file(state)) {
		if strings.HasPrefix(name, p.id+"/") || strings.HasPrefix(name, p.id+"@") || name == p.id {
			left = append(left, name)
		}
	}
	same(w.t, "records", nil, left)
	w.neverBeside()
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
	}
}

// allSubjects returns the subjects and multinet with "parallel".
func allSubjects() []subject {
	return append(subjects(), subject{name: "multinet parallel", state: "state", fakes: []string{"a", "b", "c"}, parallel: true})
}

// conf returns s's configuration. on lists the faults of the last fake.
func (s subject) conf(w *world, on ...string) object {
	w.t.Helper()
	if s.name == "flannel" {
		w.subnetEnvOK()
		return w.flannel("1.1.0", w.fake("a", on...))
	}
	if s.name == "fallback" {
		return w.fallback("1.1.0", w.fake("a", "ADD", "fail"), w.fake("b", on...))
	}
	var fakes []object
	for _, id := range s.fakes {
		fakes = append(fakes, w.fake(id))
	}
	fakes[len(fakes)-1] = w.fake(s.fakes[len(fakes)-1], on...)
	conf := w.multinet("1.1.0", fakes...)
	if s.parallel {
		w.parallel(conf, fakes...)
	}
	return conf
}

// calls returns the calls of the fakes in one command, as w.trace takes them.
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
