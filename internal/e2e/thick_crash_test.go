package e2e

import (
	"fmt"
	"math/rand/v2"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// TestDaemonKilledAtEveryStepLosesNothing kills the daemon at every kind of
// step of the ADDs of 16 containers, of their DELs, and of the replay of these.
// DELs sent while no daemon runs, or to the next daemon, detach all of them: a
// DEL always succeeds, and the next daemon finishes what the killed one began.
func TestDaemonKilledAtEveryStepLosesNothing(t *testing.T) {
	for _, command := range []string{"ADD, DEL while away", "ADD, DEL afterwards", "DEL", "replay"} {
		t.Run(command, func(t *testing.T) {
			w := newWorld(t)
			c := &daemonCrashes{world: w, kind: command, plugins: "fakes", every: 1}
			if !*long {
				c.every = 5
			}
			c.pods = w.newPods(16, func() object { return w.thick("1.1.0", w.fake("a"), w.fake("b")) })
			c.run()
		})
	}
}

// TestDaemonKilledWithRealPluginsLosesNothing does the same with bridge and
// host-local: no interface and no address is left.
func TestDaemonKilledWithRealPluginsLosesNothing(t *testing.T) {
	for _, command := range []string{"ADD, DEL while away", "ADD, DEL afterwards"} {
		t.Run(command, func(t *testing.T) {
			w := newWorld(t)
			c := &daemonCrashes{world: w, kind: command, plugins: "bridge and host-local", every: 3}
			n := 16
			if !*long {
				c.every, n = 6, 4
			}
			c.pods = w.newPods(n, func() object { return w.thick("1.1.0", w.bridge(1), w.bridge(2)) })
			c.run()
		})
	}
}

// unswept configures a daemon that does not sweep, so that only requests cause
// steps.
func unswept(env map[string]string) daemonConf {
	return daemonConf{env: env, keys: object{"sweepInterval": "0s"}}
}

// daemonCrashes kills the daemon of many containers at one step after the
// other.
type daemonCrashes struct {
	*world
	kind    string // the commands it is killed in, and what comes next
	plugins string
	every   int // only every n-th kind of step is tested
	pods    []*pod
}

func (c *daemonCrashes) run() {
	c.t.Helper()
	trials, hit := 0, map[string]int{}
	steps := c.sample()
	for i, at := range steps {
		if i%c.every != 0 {
			continue
		}
		trials++
		if c.trial(at) {
			hit[alike(at.what)]++
		}
		if c.t.Failed() {
			c.t.Fatalf("killed at %v", at)
		}
	}
	// The order of what 16 containers do differs from run to run, so some steps
	// are not reached again.
	if 2*len(hit) < trials {
		c.t.Errorf("killed at %v only, of %v", hit, steps)
	}
	c.figures(fmt.Sprintf("SIGKILL of the daemon at steps of %s, %d containers with %s, kinds of steps: %d", c.kind, len(c.pods), c.plugins, len(hit)), trials)
}

var (
	anyID   = regexp.MustCompile(`\bw\d+c\d+\b`)
	anyHash = regexp.MustCompile(`\b[0-9a-f]{64}\b`)
)

// alike returns what steps of different containers have in common.
func alike(what string) string {
	return anyHash.ReplaceAllString(anyID.ReplaceAllString(what, "C"), "H")
}

// daemonSteps reads the log of a daemon's steps.
func (w *world) daemonSteps() (list []step) {
	w.t.Helper()
	text, err := os.ReadFile(w.file("daemon.steps"))
	if err != nil {
		w.t.Fatal(err)
	}
	seen := map[string]int{}
	for line := range strings.Lines(string(text)) {
		_, what, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		seen[what]++
		list = append(list, step{what, seen[what]})
	}
	return list
}

// stepper starts a daemon that logs its steps, and is killed at one if at is
// not nil. It may die before it is ready.
func (w *world) stepper(at *step) *daemon {
	w.t.Helper()
	env := map[string]string{"METACNI_STEPS": w.file("daemon.steps")}
	if at != nil {
		env["METACNI_STEPS_KILL"], env["METACNI_STEPS_NTH"] = at.what, strconv.Itoa(at.nth)
	}
	return w.startDaemon(unswept(env))
}

// sample returns one random step of each kind from a run in which nothing is
// killed.
func (c *daemonCrashes) sample() (steps []step) {
	c.t.Helper()
	c.before()
	d := c.stepper(nil)
	d.ready()
	from := 0
	c.until("the queue is empty", func() bool { return len(c.queued()) == 0 })
	if c.kind != "replay" {
		from = len(c.daemonSteps())
		if c.kind != "DEL" {
			c.allOK("ADD", c.pods)
		} else {
			c.allOK("DEL", c.pods)
		}
	}
	all := c.daemonSteps()[from:]
	if strings.HasPrefix(c.kind, "ADD") {
		c.allOK("DEL", c.pods)
	}
	d.kill()
	c.clean("nothing")
	var kinds []string
	by := map[string][]step{}
	for _, s := range all {
		k := alike(s.what)
		if by[k] == nil {
			kinds = append(kinds, k)
		}
		by[k] = append(by[k], s)
	}
	wants := []string{" flock C@lock", " unflock C@lock"}
	switch c.kind {
	case "replay":
		wants = append(wants, " flock .", " unlinkat H.json")
	case "DEL":
		wants = append(wants, " unlinkat C@lock")
	default:
		wants = append(wants, " fsync .tmp-", " renameat .tmp-")
	}
	for _, want := range wants {
		if by[want] == nil {
			c.t.Fatalf("no step %q in %q", want, kinds)
		}
	}
	for _, k := range kinds {
		steps = append(steps, by[k][rand.IntN(len(by[k]))])
	}
	return steps
}

// before makes the state in which the daemon to be killed starts.
func (c *daemonCrashes) before() {
	c.t.Helper()
	c.forget()                                               // process IDs are reused after a while
	for _, file := range []string{"daemon.steps", "state"} { // state is created only once
		if err := os.RemoveAll(c.file(file)); err != nil {
			c.t.Fatal(err)
		}
	}
	if strings.HasPrefix(c.kind, "ADD") {
		return
	}
	d := c.daemon(unswept(nil))
	c.allOK("ADD", c.pods)
	d.kill()
	if c.kind == "replay" {
		for _, p := range c.pods {
			p.conf["queuePolicy"] = "queue"
		}
		c.allOK("DEL", c.pods, withoutNetNS)
		same(c.t, "queued", len(c.pods), len(c.queued()))
	}
}

// trial kills the daemon at a step and reports whether it reached that step.
func (c *daemonCrashes) trial(at step) (hit bool) {
	c.t.Helper()
	c.before()
	d := c.stepper(&at)
	var next *daemon
	switch c.kind {
	case "ADD, DEL while away", "ADD, DEL afterwards":
		next = c.add(d)
		if c.kind == "ADD, DEL while away" {
			c.allOK("DEL", c.pods, withoutNetNS)
		} else {
			next.ready()
			c.allOK("DEL", c.pods, withoutNetNS)
		}
	case "DEL":
		d.readyOrOver()
		c.allOK("DEL", c.pods)
	case "replay":
		c.until("the queue is empty or the daemon dead", func() bool { return d.over() || len(c.queued()) == 0 })
	}
	d.kill() // if it has not reached that step
	d.wasKilled()
	hit = slices.Contains(c.daemonSteps(), step{"killed", 1})
	if next == nil {
		next = c.daemon(unswept(nil))
	}
	c.clean(fmt.Sprint(at))
	next.kill()
	return hit
}

// add runs the ADDs during which the daemon d is killed. ADDs that lose the
// daemon fail. ADDs that have not reached it get SIGTERM, as when a node shuts
// down, or are served by the next daemon, which add then returns.
func (c *daemonCrashes) add(d *daemon) (next *daemon) {
	c.t.Helper()
	d.readyOrOver()
	rs := c.all("ADD", c.pods)
	acted := make(chan struct{})
	go func() {
		defer close(acted)
		<-d.done
		if c.kind == "ADD, DEL afterwards" {
			next = c.startDaemon(unswept(nil))
			return
		}
		for _, r := range rs {
			_ = r.cmd.Process.Signal(syscall.SIGTERM) // fails if it has exited
		}
	}()
	for _, r := range rs {
		if a := c.wait(r); a.err != nil {
			c.failed(a, 11)
		}
	}
	d.kill()
	<-acted
	return next
}

// clean fails the test if anything is left.
func (c *daemonCrashes) clean(after string) {
	c.t.Helper()
	c.noTrace()
	if c.t.Failed() {
		c.t.Fatalf("after %s", after)
	}
}

// TestQueuedDELsWaitForOrphans: the daemon is killed while the plugins of 16
// ADDs run. They continue as orphans, and the queued DELs wait for them.
func TestQueuedDELsWaitForOrphans(t *testing.T) {
	w := newWorld(t)
	pods := w.newPods(16, func() object { return w.thick("1.1.0", w.fake("a"), w.fake("b", "ADD", "gate")) })
	d := w.daemon(daemonConf{keys: object{"connectionLimit": 16}})
	rs := w.all("ADD", pods)
	for range pods {
		w.ready()
	}
	d.kill()
	for _, r := range rs {
		w.failed(w.wait(r), 11)
	}
	for _, p := range pods {
		p.conf["queuePolicy"] = "queue"
	}
	w.allOK("DEL", pods, withoutNetNS)
	same(t, "queued", 16, len(w.queued()))
	same(t, "orphans", 16, len(w.running()))
	next := w.startDaemon(unswept(nil))
	for range pods {
		w.open()
	}
	next.ready()
	w.noTrace()
	w.figures("SIGKILL of the daemon while plugins of 16 ADDs run, DELs queued", 16)
}

// TestKilledShimEndsItsCommand: a shim is killed during an ADD or a DEL. The
// daemon notices and ends the plugin. The ADD is undone; the next DEL finishes
// the interrupted one.
func TestKilledShimEndsItsCommand(t *testing.T) {
	for _, command := range []string{"ADD", "DEL"} {
		t.Run(command, func(t *testing.T) {
			w := newWorld(t)
			d := w.daemon(unswept(nil))
			p := w.pod(w.thick("1.1.0", w.bridge(1), w.fake("a"), w.fake("b", command, "hang")))
			if command == "DEL" {
				w.ok("ADD", p)
			}
			w.killed(command, p)
			w.until("the daemon has noticed", func() bool {
				return strings.Contains(d.log.String(), `"status":499`)
			})
			w.noPlugins()
			if command == "ADD" {
				w.noTrace()
			} else {
				same(t, "recorded", true, w.recorded(p, "state"))
				w.cure()
			}
			w.ok("DEL", p)
			w.noTrace()
			w.figures("SIGKILL of the shim in "+command, 1)
		})
	}
}
