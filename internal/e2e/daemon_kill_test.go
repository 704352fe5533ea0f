package e2e

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/metacni/metacni/delegate/thick/wire"
	multinet "github.com/metacni/metacni/examples/multinet/plugin"
	nodetest "github.com/metacni/metacni/internal/test/node"
)

// TestDaemonKilledAtEveryStepLosesNothing kills the daemon at every kind of
// step of the ADDs of 16 containers, of their DELs, and of the replay of these.
// DELs sent while no daemon runs, or to the next daemon, detach all of them: a
// DEL always succeeds, and the next daemon finishes what the killed one began.
// With bridge and host-local, no interface and no address is left.
func TestDaemonKilledAtEveryStepLosesNothing(t *testing.T) {
	for _, real := range []bool{false, true} {
		for _, command := range []string{"ADD, DEL while away", "ADD, DEL afterwards", "DEL", "replay"} {
			if real && command[0] != 'A' {
				continue
			}
			t.Run(fmt.Sprintf("%s/real plugins %v", command, real), func(t *testing.T) {
				n := newNode(t)
				c := &daemonCrashes{node: n, kind: command, every: 1}
				if !*long {
					c.every = 5
				}
				if real {
					c.pods = n.newPods(4, func() object { return n.thick("1.1.0", n.bridge(1), n.bridge(2)) })
				} else {
					c.pods = n.newPods(16, func() object { return n.thick("1.1.0", n.Fake("a"), n.Fake("b")) })
				}
				c.run()
			})
		}
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
	*node
	kind  string // the commands it is killed in, and what comes next
	every int    // only every n-th kind of step is tested
	pods  []*pod
}

func (c *daemonCrashes) run() {
	c.Helper()
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
		if c.Failed() {
			c.Fatalf("killed at %v", at)
		}
	}
	// The order of what 16 containers do differs from run to run, so some steps
	// are not reached again.
	if 2*len(hit) < trials {
		c.Errorf("killed at %v only, of %v", hit, steps)
	}
}

var (
	anyID   = regexp.MustCompile(`\bn\d+c\d+\b`)
	anyHash = regexp.MustCompile(`\b[0-9a-f]{64}\b`)
)

// alike returns what steps of different containers have in common.
func alike(what string) string {
	return anyHash.ReplaceAllString(anyID.ReplaceAllString(what, "C"), "H")
}

// daemonSteps reads the log of a daemon's steps.
func (n *node) daemonSteps() []step {
	n.Helper()
	text, err := os.ReadFile(n.File("daemon.steps"))
	nodetest.OK(n, err)
	return parseSteps(string(text))
}

// stepper starts a daemon that logs its steps, and is killed at one if at is
// not nil. It may die before it is ready.
func (n *node) stepper(at *step) *daemon {
	n.Helper()
	env := map[string]string{"METACNI_STEPS": n.File("daemon.steps")}
	if at != nil {
		env["METACNI_STEPS_KILL"], env["METACNI_STEPS_NTH"] = at.what, strconv.Itoa(at.nth)
	}
	return n.startDaemon(unswept(env))
}

// sample returns one random step of each kind from a run in which nothing is
// killed.
func (c *daemonCrashes) sample() (steps []step) {
	c.Helper()
	c.before()
	d := c.stepper(nil)
	d.ready()
	from := 0
	c.Until("the queue is empty", func() bool { return len(c.queued()) == 0 })
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
	d.Kill()
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
			c.Fatalf("no step %q in %q", want, kinds)
		}
	}
	for _, k := range kinds {
		steps = append(steps, by[k][rand.IntN(len(by[k]))])
	}
	return steps
}

// before makes the state in which the daemon to be killed starts.
func (c *daemonCrashes) before() {
	c.Helper()
	c.Forget()                                               // process IDs are reused after a while
	for _, file := range []string{"daemon.steps", "state"} { // state is created only once
		nodetest.OK(c, os.RemoveAll(c.File(file)))
	}
	if strings.HasPrefix(c.kind, "ADD") {
		return
	}
	d := c.daemon(unswept(nil))
	c.allOK("ADD", c.pods)
	d.Kill()
	if c.kind == "replay" {
		for _, p := range c.pods {
			p.Conf["queuePolicy"] = "queue"
		}
		c.allOK("DEL", c.pods, withoutNetNS)
		nodetest.Equal(c, "queued", len(c.queued()), len(c.pods))
	}
}

// trial kills the daemon at a step and reports whether it reached that step.
func (c *daemonCrashes) trial(at step) (hit bool) {
	c.Helper()
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
		c.Until("the queue is empty or the daemon dead", func() bool { return d.Over() || len(c.queued()) == 0 })
	}
	d.Kill() // if it has not reached that step
	d.wasKilled()
	hit = slices.Contains(c.daemonSteps(), step{"killed", 1})
	if next == nil {
		next = c.daemon(unswept(nil))
	}
	c.clean(fmt.Sprint(at))
	next.Kill()
	return hit
}

// add runs the ADDs during which the daemon d is killed. ADDs that lose the
// daemon fail. ADDs that have not reached it get SIGTERM, as when a node shuts
// down, or are served by the next daemon, which add then returns.
func (c *daemonCrashes) add(d *daemon) (next *daemon) {
	c.Helper()
	d.readyOrOver()
	rs := c.all("ADD", c.pods)
	acted := make(chan struct{})
	go func() {
		defer close(acted)
		<-d.Done
		if c.kind == "ADD, DEL afterwards" {
			next = c.startDaemon(unswept(nil))
			return
		}
		for _, r := range rs {
			_ = r.Cmd.Process.Signal(syscall.SIGTERM) // fails if it has exited
		}
	}()
	for _, r := range rs {
		if a := c.Wait(r); a.Err != nil {
			c.failed(a, 11)
		}
	}
	d.Kill()
	<-acted
	return next
}

// clean fails the test if anything is left.
func (c *daemonCrashes) clean(after string) {
	c.Helper()
	c.noTrace()
	if c.Failed() {
		c.Fatalf("after %s", after)
	}
}

// TestQueuedDELsWaitForOrphans: the daemon is killed while the plugins of 16
// ADDs run. They continue as orphans, and the queued DELs wait for them.
func TestQueuedDELsWaitForOrphans(t *testing.T) {
	n := newNode(t)
	pods := n.newPods(16, func() object { return n.thick("1.1.0", n.Fake("a"), n.Fake("b", "ADD", "gate")) })
	d := n.daemon(daemonConf{keys: object{"connectionLimit": 16}})
	rs := n.all("ADD", pods)
	for range pods {
		n.Ready()
	}
	d.Kill()
	for _, r := range rs {
		n.failed(n.Wait(r), 11)
	}
	for _, p := range pods {
		p.Conf["queuePolicy"] = "queue"
	}
	n.allOK("DEL", pods, withoutNetNS)
	nodetest.Equal(t, "queued", len(n.queued()), 16)
	nodetest.Equal(t, "orphans", len(n.Running()), 16)
	next := n.startDaemon(unswept(nil))
	for range pods {
		n.Open()
	}
	next.ready()
	n.noTrace()
}

// TestKilledShimEndsItsADD: a shim is killed during an ADD. The daemon notices, ends the plugin and
// undoes the ADD.
func TestKilledShimEndsItsADD(t *testing.T) {
	n := newNode(t)
	d := n.daemon(unswept(nil))
	p := n.pod(n.thick("1.1.0", n.bridge(1), n.Fake("a"), n.Fake("b", "ADD", "hang")))
	n.killed("ADD", p)
	n.Until("the daemon has noticed", func() bool { return strings.Contains(d.Log(), `"status":499`) })
	n.OrphansEnd()
	n.noTrace()
	n.ok("DEL", p)
}

// TestDELGoesOnWithoutItsShim: a shim is killed during a DEL, as by a runtime that does not wait
// longer. The daemon detaches the container all the same.
func TestDELGoesOnWithoutItsShim(t *testing.T) {
	n := newNode(t)
	n.daemon(unswept(nil))
	p := n.pod(n.thick("1.1.0", n.bridge(1), n.Fake("a"), n.Fake("b", "DEL", "gate")))
	n.ok("ADD", p)
	n.killed("DEL", p)
	n.Open()
	n.Until("the container is detached", func() bool { return !n.recorded(p, "state") })
	n.noTrace()
}

// TestHandOverFailsNoCommand: daemons replace one another, each stopped once
// the next one waits, while shims ADD, CHECK and DEL all the time. The socket
// is always there, no connection is refused, and every command succeeds.
func TestHandOverFailsNoCommand(t *testing.T) {
	n := newNode(t)
	handovers := 12
	if !*long {
		handovers = 3
	}
	d := n.daemon(daemonConf{})
	stop := make(chan struct{})
	var workers sync.WaitGroup
	var probes, calls atomic.Int64
	removed := n.removals(n.File("d"))
	workers.Go(func() { n.probe(stop, &probes) })
	for _, p := range n.newPods(6, func() object { return n.thick("1.1.0", n.Fake("a")) }) {
		workers.Go(func() { n.load(p, stop, &calls) })
	}
	for range handovers {
		next := n.startDaemon(daemonConf{})
		n.Until("the next daemon waits", func() bool { return next.waits() })
		before := calls.Load()
		d.signal(syscall.SIGTERM)
		d.ended()
		next.ready()
		n.Until("the next daemon has served", func() bool { return calls.Load() >= before+18 || t.Failed() })
		d = next
	}
	close(stop)
	workers.Wait()
	if names := removed(); slices.Contains(names, multinet.SocketName) {
		t.Errorf("the socket has vanished: removed were %q", names)
	}
	n.noTrace()
	d.signal(syscall.SIGTERM)
	d.ended()
}

// waits reports whether the daemon waits for the lock of the socket.
func (d *daemon) waits() bool {
	text, err := os.ReadFile("/proc/locks")
	if err != nil {
		return false
	}
	info, err := os.Stat(d.n.socket() + ".next")
	if err != nil {
		return false
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	want := fmt.Sprintf(":%d", st.Ino)
	for line := range strings.Lines(string(text)) {
		// "1: FLOCK  ADVISORY  WRITE 1234 00:2e:5678 0 EOF"
		f := strings.Fields(line)
		if ok && len(f) > 5 && f[1] == "FLOCK" && f[4] == fmt.Sprint(d.Cmd.Process.Pid) && strings.HasSuffix(f[5], want) {
			return true
		}
	}
	return false
}

// probe asks the daemon for its health until stop is closed.
func (n *node) probe(stop <-chan struct{}, probes *atomic.Int64) {
	for {
		select {
		case <-stop:
			return
		default:
		}
		if r, err := n.ask(http.MethodGet, wire.PathHealth, nil); err != nil || r.Status != http.StatusOK {
			n.Errorf("%s: status %d, %v", wire.PathHealth, r.Status, err)
			return
		}
		probes.Add(1)
	}
}

// removals watches a directory with inotify. The returned function lists the
// names that have been removed since, even if they exist again. Replacing a
// file removes no name.
func (n *node) removals(dir string) func() []string {
	n.Helper()
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	nodetest.OK(n, err)
	n.Cleanup(func() { _ = unix.Close(fd) })
	if _, err := unix.InotifyAddWatch(fd, dir, unix.IN_DELETE|unix.IN_MOVED_FROM); err != nil {
		n.Fatal(err)
	}
	return func() (names []string) {
		n.Helper()
		buf := make([]byte, 64<<10)
		for {
			size, err := unix.Read(fd, buf)
			if errors.Is(err, unix.EAGAIN) {
				return names
			}
			nodetest.OK(n, err)
			for events := buf[:size]; len(events) > 0; {
				size := int(binary.NativeEndian.Uint32(events[12:]))
				name := events[unix.SizeofInotifyEvent : unix.SizeofInotifyEvent+size]
				names = append(names, string(bytes.TrimRight(name, "\x00")))
				events = events[unix.SizeofInotifyEvent+size:]
			}
		}
	}
}

// load lets shims attach, check and detach p until stop is closed.
func (n *node) load(p *pod, stop <-chan struct{}, calls *atomic.Int64) {
	for {
		for _, command := range []string{"ADD", "CHECK", "DEL"} {
			a := n.call(command, p)
			if a.Code != 0 {
				n.Errorf("%s %s: %s", command, p.ID, a.Stdout)
				return
			}
			if command == "ADD" {
				p.Result = a.Stdout
			}
			calls.Add(1)
		}
		select {
		case <-stop:
			return
		default:
		}
	}
}

// TestDELCancelsTheADDOfItsContainer: a DEL that arrives while the daemon attaches its
// container, or one more network to it, does not wait for the plugin. The ADD is undone and
// answers code 11.
func TestDELCancelsTheADDOfItsContainer(t *testing.T) {
	n := newNode(t)
	n.daemon(daemonConf{keys: object{"binDir": n.Bin}})
	p := n.pod(n.thick("1.1.0", n.bridge(1), n.Fake("b", "ADD", "gate")))
	other := n.pod(n.thick("1.1.0", n.Fake("other")))
	add := n.start("ADD", p)
	n.Ready()
	n.ok("ADD", other)
	n.ok("DEL", p, withoutNetNS)
	n.failed(n.Wait(add), 11)
	nodetest.Equal(t, "interfaces", n.interfaces(p), nil)
	n.Trace("ADD b net1", "ADD other eth0", "DEL b net1")

	more := *other
	more.Conf, more.IfName = n.with(n.Fake("h", "ADD", "gate"), object{"name": "fakes", "cniVersion": "1.1.0"}), "more0"
	answered := make(chan reply, 1)
	go func() { answered <- n.post(wire.PathAttach, n.request("ADD", &more, nil)) }()
	n.Ready()
	n.ok("DEL", other, withoutNetNS)
	r := <-answered
	r.says(t, http.StatusInternalServerError, 11)
	n.ok("DEL", p)
	n.noTrace()
}

// limitTasks lets d and its plugins have at most so many tasks, threads included, as a kubelet does.
func (d *daemon) limitTasks(most int) {
	d.n.Helper()
	parent := "/sys/fs/cgroup/pids" // of version 1
	if _, err := os.Stat(parent); err != nil {
		parent = "/sys/fs/cgroup"
	}
	dir := filepath.Join(parent, fmt.Sprintf("metacni-%d", d.Cmd.Process.Pid))
	if err := os.Mkdir(dir, 0o700); err != nil {
		d.n.Skipf("no cgroup can be made: %v", err)
	}
	d.n.Cleanup(func() { nodetest.OK(d.n, os.Remove(dir)) })
	for file, value := range map[string]int{"pids.max": most, "cgroup.procs": d.Cmd.Process.Pid} {
		if err := os.WriteFile(filepath.Join(dir, file), []byte(strconv.Itoa(value)), 0); err != nil {
			d.n.Skipf("no cgroup limits processes: %v", err)
		}
	}
	d.n.Cleanup(d.Kill)
}

// TestDaemonStaysBelowTheTasksOfItsPod: 200 containers are detached at once, and then as many
// networks of others hang as the daemon runs at once.
func TestDaemonStaysBelowTheTasksOfItsPod(t *testing.T) {
	n := newNode(t)
	d := n.daemon(unswept(map[string]string{"GOMAXPROCS": "2"})) // with more, more DELs have a turn
	d.limitTasks(512)
	pods := n.newPods(200, func() object { return n.thick("1.0.0", n.bridge(0)) })
	for some := range slices.Chunk(pods, 20) { // many at once may wait for their turns too long
		n.allOK("ADD", some)
	}
	n.allOK("DEL", pods)
	n.noTrace()

	pods = n.newPods(110, func() object { return n.thick("1.0.0", n.Fake("a", "DEL", "gate")) })
	for some := range slices.Chunk(pods, 20) { // many at once may wait for their turns too long
		n.allOK("ADD", some)
	}
	dels := n.all("DEL", pods)
	for range pods {
		n.Ready()
	}
	n.ok("ADD", n.pod(n.thick("1.0.0", n.bridge(0))))
	for range pods {
		n.Open()
	}
	for i, c := range dels {
		n.succeeds("DEL", pods[i], c)
	}
}
