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

// A step is one that a plugin, or a fake that it runs, says in the log of
// steps that it is about to take: see Step in internal/durable and in fake.
type step struct {
	what string // with C for the container's ID
	nth  int    // which of those that are called the same
}

func (s step) String() string { return fmt.Sprintf("%s (%d)", s.what, s.nth) }

// byFake reports whether it is a fake's step.
func (s step) byFake() bool {
	return slices.Contains([]string{"start", "middle", "end"}, s.what[strings.LastIndexByte(s.what, ' ')+1:])
}

// fake returns which fake's step it is.
func (s step) fake() string { return strings.Fields(s.what)[1] }

// stepping makes a plugin log its steps, and be killed at one if at is not nil.
// A fake at whose step that is dies as well, unless it is to live on.
func (w *world) stepping(p *pod, at *step, orphan bool) extra {
	w.steps(p) // what an orphan has added since
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

// steps reads, and removes, the log of p's steps.
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

// crash runs a command that is killed at a step, and proves from the log of
// steps that it was killed there and nowhere else.
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
	// What the plugin does while a fake runs, it does at the same time.
	before := slices.Index(steps[:killed], at)
	if before < 0 {
		w.t.Fatalf("%s was killed after %v, not %v", command, steps[:killed], at)
	}
	for _, s := range steps[before+1:] {
		alike := s.byFake() == at.byFake()
		if at.byFake() && p.conf["parallel"] == true {
			alike = s.byFake() && s.fake() == at.fake() // others go on
		}
		if s.what != "killed" && alike && (!at.byFake() || !orphan) {
			w.t.Errorf("%s was killed at %v, and then came to %v", command, at, s)
		}
	}
}

// recorded reports whether there is a record of p, whatever it says.
func (w *world) recorded(p *pod, state string) bool {
	w.t.Helper()
	return slices.ContainsFunc(w.list(w.file(state)), p.isRecord)
}

// has fails the test unless a step begins with each of whats: else the crashes
// would not be where the test says.
func has(t testing.TB, steps []step, whats ...string) {
	t.Helper()
	for _, what := range whats {
		if !slices.ContainsFunc(steps, func(s step) bool { return strings.HasPrefix(s.what, what) }) {
			t.Fatalf("no step %q in %v", what, steps)
		}
	}
}

// neverBeside fails the test where two fakes worked on one container at once.
func (w *world) neverBeside() {
	w.t.Helper()
	text, err := os.ReadFile(w.file("fake", "beside"))
	if err == nil {
		w.t.Errorf("side by side:\n%s", text)
	}
}

// leaked lists what the fakes have attached to p, and counts it as a leak.
func (w *world) leaked(p *pod) (list []string) {
	w.t.Helper()
	for _, name := range w.live() {
		if strings.Contains(name, "@"+p.id+"@") {
			list = append(list, name)
		}
	}
	return list
}

// clean fails the test where p has left anything.
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

// A subject is a meta-plugin under test, with fakes a, b and c, or the first of
// them.
type subject struct {
	name     string
	state    string // its directory of records
	fakes    []string
	parallel bool // b and c side by side
}

func subjects() []subject {
	return []subject{
		{name: "multinet", state: "state", fakes: []string{"a", "b"}},
		{name: "flannel", state: "flannel", fakes: []string{"a"}},
	}
}

// allSubjects are subjects, and multinet with "parallel".
func allSubjects() []subject {
	return append(subjects(), subject{name: "multinet parallel", state: "state", fakes: []string{"a", "b", "c"}, parallel: true})
}

// conf is s's configuration, in which something goes wrong with the last fake.
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

// calls is what the fakes are called for in one command, as w.trace wants it.
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
