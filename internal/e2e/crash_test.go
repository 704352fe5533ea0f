package e2e

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestKillAtEveryStepLosesNothing kills each plugin at every step of an ADD, of
// a DEL and of the undo of an ADD. Whatever a fake has attached by then is
// recorded. The next DEL, ADD or GC waits for an orphaned fake and removes
// everything.
func TestKillAtEveryStepLosesNothing(t *testing.T) {
	for _, s := range allSubjects() {
		for _, command := range []string{"ADD", "DEL", "undo"} {
			for i, then := range []string{"DEL", "ADD", "GC"} {
				t.Run(s.name+"/"+command+"/then "+then, func(t *testing.T) {
					w := newWorld(t)
					c := &crashes{world: w, s: s, command: command, then: then, only: i + 1, p: w.pod(s.conf(w))}
					c.run()
					w.nothingLeft()
				})
			}
		}
	}
}

// crashes kills one subject at each step of a command.
type crashes struct {
	*world
	s             subject
	command, then string
	only          int // 1, 2 or 3: only each third step, unless -long
	p             *pod
}

func (c *crashes) run() {
	c.t.Helper()
	verb := c.command
	if c.command == "undo" {
		verb = "ADD"
		c.p.conf = c.s.conf(c.world, "ADD", "fail")
	}
	trials := 0
	c.before()
	c.as(c.call(verb, c.p, c.stepping(c.p, nil, false)))
	steps := c.steps(c.p)
	c.ok("DEL", c.p)
	c.has(steps)
	for i, at := range steps {
		if c.only > 0 && !*long && i%3 != c.only-1 {
			continue
		}
		for _, orphan := range []bool{false, true} {
			if at.byFake() || !orphan {
				c.try(verb, at, orphan)
				trials++
			}
		}
	}
	c.figures(fmt.Sprintf("SIGKILL of %s at every step of %s, then %s", c.s.name, c.command, c.then), trials)
}

// try kills the plugin at a step and checks what the next command does.
func (c *crashes) try(verb string, at step, orphan bool) {
	c.t.Helper()
	c.before()
	c.crash(verb, c.p, at, orphan)
	// In this order: an orphaned fake may attach something at any time.
	if live := c.leaked(c.p); len(live) > 0 && !c.recorded(c.p, c.s.state) {
		c.t.Errorf("killed at %v: %v attached, nothing recorded", at, live)
	}
	c.after(at)
	if c.t.Failed() {
		c.t.Fatalf("killed at %v (orphan: %v)", at, orphan)
	}
}

// has fails the test unless steps contain those that the test is about.
func (c *crashes) has(steps []step) {
	c.t.Helper()
	verb, kind := c.command, c.command
	if c.command == "undo" {
		verb, kind = "DEL", "ADD"
	}
	if kind == "ADD" {
		has(c.t, steps, "ADD create C@lock", "ADD flock .", "ADD create .tmp-", "ADD write .tmp-",
			"ADD fsync .tmp-", "ADD renameat .tmp-", "ADD fsync .", "ADD unflock .")
	}
	if c.command != "ADD" {
		has(c.t, steps, kind+" unlinkat C@", kind+" unlinkat C@lock")
	}
	if c.command != "undo" || len(c.s.fakes) > 1 {
		has(c.t, steps, kind+" write C@") // progress, appended to the record
	}
	has(c.t, steps, kind+" flock C@lock", kind+" unflock C@lock")
	for _, id := range c.s.fakes {
		has(c.t, steps, verb+" "+id+" start", verb+" "+id+" middle", verb+" "+id+" end")
	}
}

// before makes the state in which the plugin is killed.
func (c *crashes) before() {
	c.t.Helper()
	if err := os.RemoveAll(c.file(c.s.state)); err != nil {
		c.t.Fatal(err)
	}
	if c.command == "DEL" {
		c.ok("ADD", c.p)
	}
}

// after runs the next command and then DEL, and fails the test if anything is
// left.
func (c *crashes) after(at step) {
	c.t.Helper()
	switch c.then {
	case "ADD":
		cured := c.p.conf
		c.p.conf = c.s.conf(c.world)
		// Code 7: the killed ADD was complete, only its result was lost.
		a := c.call("ADD", c.p)
		if a.err != nil && a.err.Code != 7 {
			c.t.Errorf("ADD: %s", a.stdout)
		}
		if live := c.leaked(c.p); len(live) != len(c.s.fakes) {
			c.t.Errorf("ADD: exit status %d with %v attached", a.code, live)
		}
		c.p.conf = cured
	case "GC":
		c.ok("GC", c.p, valid())
		same(c.t, fmt.Sprintf("attached after %v and GC", at), nil, c.leaked(c.p))
	}
	c.ok("DEL", c.p)
	c.clean(c.p, c.s.state)
}

// as fails the test unless the command ended as intended: an undo needs an ADD
// that fails.
func (c *crashes) as(a answer) {
	c.t.Helper()
	if (a.code == 0) == (c.command == "undo") {
		c.t.Fatalf("exit status %d: %s", a.code, a.stdout)
	}
}

// figures logs a row of the table in README.md. A leak, a panic or a false
// success has already failed the test.
func (w *world) figures(fault string, trials int) {
	w.t.Helper()
	if !w.t.Failed() {
		w.t.Logf("figures: %s: %d trials", fault, trials)
	}
}

// TestKillAtAnyTimeLosesNothing kills the plugins a thousand times at random
// times in ADD and in DEL. The next DEL removes everything.
func TestKillAtAnyTimeLosesNothing(t *testing.T) {
	kills := 250
	if !*long {
		kills = 25
	}
	for _, s := range subjects() {
		for _, command := range []string{"ADD", "DEL"} {
			t.Run(s.name+"/"+command, func(t *testing.T) {
				w := newWorld(t)
				p := w.pod(s.conf(w))
				windows := make(map[string]int)
				limit := 20 * time.Millisecond // latest time of a kill, adapted to the command
				killed := 0
				for trial := 0; killed < kills; trial++ {
					if trial == 20*kills {
						t.Fatalf("only %d of %d were killed", killed, trial)
					}
					if command == "DEL" {
						w.ok("ADD", p)
					}
					window := w.killAtRandom(command, p, limit)
					windows[window]++
					if window == "after its end" {
						limit -= limit / 20
					} else {
						limit += limit / 60
						killed++
					}
					if live := w.leaked(p); len(live) > 0 && !w.recorded(p, s.state) {
						t.Fatalf("killed %s: %v attached, nothing recorded", window, live)
					}
					w.ok("DEL", p)
					w.clean(p, s.state)
					if t.Failed() {
						t.Fatalf("killed %s", window)
					}
				}
				// A fake works for a short time only, so these kills may miss it.
				// TestKillAtEveryStepLosesNothing does not.
				before, later := windows["before the first plugin"], windows["in a plugin"]+windows["between or after plugins"]
				if (before == 0 || later == 0) && *long {
					t.Errorf("never killed before the first plugin, or never after: %v", windows)
				}
				w.figures(fmt.Sprintf("SIGKILL of %s at random times in %s, then DEL %v", s.name, command, windows), killed)
				w.nothingLeft()
			})
		}
	}
}

// killAtRandom kills a command at a random time before limit, and returns where
// the log says that was.
func (w *world) killAtRandom(command string, p *pod, limit time.Duration) (window string) {
	w.t.Helper()
	r := w.start(command, p, w.stepping(p, nil, false))
	timer := time.AfterFunc(rand.N(limit), func() { _ = r.cmd.Process.Signal(syscall.SIGKILL) })
	_ = r.cmd.Wait()
	timer.Stop()
	ws, ok := r.cmd.ProcessState.Sys().(syscall.WaitStatus)
	if !ok || ws.Signaled() && ws.Signal() != syscall.SIGKILL {
		w.t.Fatalf("%s: %v", command, r.cmd.ProcessState)
	}
	if !ws.Signaled() {
		w.steps(p)
		return "after its end"
	}
	window = "before the first plugin"
	for _, s := range w.steps(p) {
		switch {
		case s.byFake():
			window = "in a plugin"
			if strings.HasSuffix(s.what, " end") {
				window = "between or after plugins"
			}
		}
	}
	return window
}
