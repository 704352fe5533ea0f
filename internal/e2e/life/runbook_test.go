package life

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// A runbook has an action in each line: a verb and its arguments. See the table in README.md.
// Lines that are impossible by then, such as those about a container that is not there, do
// nothing, so that each line can be left out.

func lines(text string) (list []string) {
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
			list = append(list, line)
		}
	}
	return list
}

// A writer writes a runbook.
type writer struct {
	*rand.Rand
	lines []string
	made  int      // containers
	live  []string // those that live
	dead  []string
}

// generate returns the runbook of a seed.
func generate(seed uint64, steps int) []string {
	w := &writer{Rand: rand.New(rand.NewPCG(seed, 44))}
	if w.IntN(4) == 0 {
		w.say("scan")
	}
	if w.IntN(2) == 0 {
		w.say("reuse")
	}
	thick := w.IntN(3) == 0
	if thick {
		w.say("daemon")
	}
	w.begin("")
	w.begin("")
	for len(w.lines) < steps {
		if w.next(); thick && w.IntN(10) == 0 {
			w.say("daemon")
		}
	}
	return w.lines
}

func (w *writer) say(format string, args ...any) {
	w.lines = append(w.lines, fmt.Sprintf(format, args...))
}

func pick[T any](w *writer, of ...T) T { return of[w.IntN(len(of))] }

// begin starts a container, at the path of a dead one if old is not empty, and attaches it.
func (w *writer) begin(old string) {
	w.made++
	c := fmt.Sprintf("c%d", w.made)
	w.say("%s", strings.TrimSpace(fmt.Sprintf("start %s %s %s", c, pick(w, "process", "thread", "descriptor", "mount", "socket"), old)))
	w.live = append(w.live, c)
	w.say("%s", w.add(c))
	if w.IntN(2) == 0 {
		w.say("%s", w.add(c))
	}
}

func (w *writer) add(c string) string {
	return fmt.Sprintf("add %s %s %s", c, w.ifname(), pick(w, "name", "name", "holder", "agent"))
}

func (w *writer) del(c string) string {
	return fmt.Sprintf("del %s %s %s", c, w.ifname(), pick(w, "path", "path", "nothing"))
}

func (w *writer) ifname() string { return pick(w, "eth0", "eth0", "eth1") }

func (w *writer) sweep() string {
	return "sweep " + pick(w, "here", "here", "here", "mount", "pid", "user", "nobody", "uncapped")
}

func (w *writer) gc() string {
	return "gc " + pick(w, "mna", "mnb") + " " + pick(w, "living", "living", "all", w.any())
}

// any returns a container, of which the living are more likely.
func (w *writer) any() string {
	if len(w.live) > 0 && (len(w.dead) == 0 || w.IntN(4) > 0) {
		return pick(w, w.live...)
	}
	if len(w.dead) > 0 {
		return pick(w, w.dead...)
	}
	return "c1"
}

// command returns a command of the runtime or an operator that can meet others.
func (w *writer) command(c string) string {
	switch w.IntN(8) {
	case 0, 1, 2:
		return w.add(c)
	case 3, 4:
		return w.del(c)
	case 5:
		return "check " + c + " " + w.ifname()
	case 6:
		return w.gc()
	default:
		return w.sweep()
	}
}

// killed returns a command that is killed at a step of multinet, before or after one of its
// plugins, or at a time.
func (w *writer) killed(c string) string {
	command := pick(w, w.add, w.del)(c)
	verb := strings.ToUpper(command[:3])
	at := pick(w, "write .tmp-", "fsync .tmp-", "renameat .tmp-", "fsync .", "flock C@lock", "unflock C@lock", "unlinkat C@lock", "fake start", "fake middle", "fake end", "")
	if at == "" {
		return fmt.Sprintf("%s kill %dms", command, w.IntN(200))
	}
	nth, orphan := 1+w.IntN(2), ""
	if strings.HasPrefix(at, "fake") {
		nth, orphan = 1, pick(w, "", " orphan")
	}
	return fmt.Sprintf("%s kill %d %s %s%s", command, nth, verb, strings.ReplaceAll(at, "C@", c+"@"), orphan)
}

// spoil writes two commands that meet a spoilt disk. If a plugin fails too, it is not even noted what
// a DEL has released: then another container comes before they are repeated.
func (w *writer) spoil() {
	commands := []string{w.command(w.any()), w.command(w.any())}
	broken := w.IntN(2) == 0
	w.say("disk %s", pick(w, "full", "read-only"))
	if broken {
		w.say("plugin fails")
	}
	w.lines = append(w.lines, commands...)
	w.say("disk mended")
	if broken {
		w.say("plugin works")
		w.begin("")
		w.lines = append(w.lines, commands...)
	}
}

// kill lets a container end.
func (w *writer) kill(c string) {
	w.say("end %s", c)
	w.dead = append(w.dead, c)
	w.live = slices.DeleteFunc(w.live, func(other string) bool { return other == c })
}

// next writes an action, or a few that belong together.
func (w *writer) next() {
	if len(w.live) == 0 || len(w.live) < 6 && w.IntN(8) == 0 {
		old := ""
		if len(w.dead) > 0 && w.IntN(2) == 0 {
			old = pick(w, w.dead...)
		}
		w.begin(old)
		return
	}
	c, ifname := pick(w, w.live...), pick(w, "eth0", "eth1", "net1")
	switch k := w.IntN(100); {
	case k < 30:
		w.say("%s", w.command(w.any()))
	case k < 38:
		w.say("%s", w.killed(w.any()))
	case k < 43:
		w.say("race %s | %s", w.command(c), w.command(w.any()))
	case k < 60:
		w.say("%s %s %s", pick(w, "rename", "move", "delete", "recreate", "altname"), c, ifname)
	case k < 62:
		w.say("swap %s %s %s", c, pick(w, "eth0", "net1"), "eth1")
	case k < 66:
		w.say("unname %s", c)
	case k < 70:
		w.say("%s %s", pick(w, "agent", "agent", "agent", "handover"), c)
	case k < 75:
		w.kill(c)
	case k < 76:
		w.say("reboot %s", pick(w, "same", "other"))
		w.dead, w.live = append(w.dead, w.live...), nil
	case k < 81:
		w.spoil()
	case k < 84:
		w.say("plugin %s", pick(w, "fails", "works"))
	case k < 85:
		w.say("rename-network")
	case k < 89:
		w.say("clash %s", c)
	case k < 93:
		w.say("%s", pick(w, "install", "install", "adopt"))
	case k < 95:
		w.say("uninstall %s", pick(w, "leave", "detach"))
	case k < 96:
		w.say("forget %s", w.any())
	default:
		w.say("%s", pick(w, "doctor", "list"))
	}
}

// atMost is how many runbooks shrink plays.
const atMost = 150

// shrink leaves out actions, and commands of races, as long as what is wrong stays wrong. It
// returns the runbook, and what is wrong after it.
func shrink(ctx context.Context, bin string, runbook []string, o outcome) (short []string, wrong string) {
	short, wrong = runbook[:min(o.At, len(runbook))], o.Wrong
	played := 0
	// try takes a shorter runbook if it will do.
	try := func(less ...string) bool {
		if played++; played > atMost {
			return false
		}
		now := play(ctx, bin, less)
		if now.broken != nil || now.Wrong == "" || now.kind() != o.kind() {
			return false
		}
		short, wrong = less[:min(now.At, len(less))], now.Wrong
		return true
	}
	for size := max(1, len(short)/2); size > 0; size /= 2 {
		for again := true; again; {
			again = false
			for i := len(short) - size; i >= 0; i -= size {
				again = try(slices.Delete(slices.Clone(short), i, i+size)...) && size == 1 || again
				i = min(i, len(short))
			}
		}
	}
	for i := range short {
		if race, ok := strings.CutPrefix(short[i], "race "); ok {
			for command := range strings.SplitSeq(race, " | ") {
				if less := slices.Clone(short); i < len(less) {
					less[i] = command
					if try(less...) {
						break
					}
				}
			}
		}
	}
	return short, wrong
}

func TestASeedRepeatsTheChoices(t *testing.T) {
	t.Parallel()
	verbs := make(map[string]bool)
	for s := range uint64(100) {
		runbook := generate(s, 60)
		if !slices.Equal(runbook, generate(s, 60)) {
			t.Fatalf("two runbooks of seed %d", s)
		}
		for _, line := range runbook {
			verbs[strings.Fields(line)[0]] = true
		}
	}
	for verb := range new(node).verbs() {
		if !verbs[verb] {
			t.Errorf("no seed below 100 has %s", verb)
		}
	}
	if len(verbs) != len(new(node).verbs()) {
		t.Errorf("not all verbs are known: %v", verbs)
	}
}
