package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestTerminatedADDIsUndoneInTime: multinet that gets SIGTERM during an ADD
// answers code 11 in time and leaves nothing, even if the plugin ignores
// SIGTERM.
func TestTerminatedADDIsUndoneInTime(t *testing.T) {
	for _, fault := range []string{"hang", "deaf"} {
		t.Run(fault, func(t *testing.T) {
			w := newWorld(t)
			p := w.pod(w.multinet("1.0.0", w.bridge(1), w.fake("b", "ADD", fault)))
			r := w.start("ADD", p)
			w.ready()
			w.terminated(r)
			w.trace("ADD b net1", "DEL b net1")
			same(t, "interfaces", nil, w.interfaces(p))
			w.nothingLeft()
			w.noPlugins()
		})
	}
}

// TestDELRemovesWhatAKilledADDAttached: multinet is killed during an ADD, and
// the plugin it ran continues. DEL waits until that plugin exits and removes
// everything.
func TestDELRemovesWhatAKilledADDAttached(t *testing.T) {
	w := newWorld(t)
	p := w.pod(w.multinet("1.0.0", w.bridge(1), w.fake("b", "ADD", "gate")))
	w.killed("ADD", p)
	same(t, "interfaces", []string{"eth0"}, w.interfaces(p))

	del := w.start("DEL", p, withoutNetNS)
	w.waitsForLock(del)
	w.trace("ADD b net1")
	w.open()
	w.done(del)
	w.trace("ADD b net1", "DEL b net1")
	same(t, "interfaces", nil, w.interfaces(p))
	w.nothingLeft()
}

// TestDELKillsAnOrphanThatHangs: like TestDELRemovesWhatAKilledADDAttached, but
// the orphan hangs. DEL waits ten seconds, kills it and continues.
func TestDELKillsAnOrphanThatHangs(t *testing.T) {
	w := newWorld(t)
	p := w.pod(w.multinet("1.0.0", w.fake("a"), w.fake("b", "ADD", "deaf")))
	w.killed("ADD", p)
	a := w.call("DEL", p)
	if a.code != 0 {
		t.Fatalf("DEL: %s", a.stdout)
	}
	if a.took < 8*time.Second {
		t.Errorf("DEL waited only %v for the orphan", a.took)
	}
	w.trace("ADD a eth0", "ADD b net1", "DEL b net1", "DEL a eth0")
	w.nothingLeft()
	w.noPlugins()
}

// TestADDFirstUndoesAnInterruptedADD: an ADD that finds the record of an
// interrupted ADD undoes that one first.
func TestADDFirstUndoesAnInterruptedADD(t *testing.T) {
	w := newWorld(t)
	p := w.pod(w.multinet("1.0.0", w.fake("a"), w.fake("b", "ADD", "gate")))
	w.killed("ADD", p)
	w.open()
	w.orphansEnd()
	w.forget()

	delete(p.conf["delegates"].([]object)[1], "on")
	w.ok("ADD", p)
	w.trace("DEL b net1", "DEL a eth0", "ADD a eth0", "ADD b net1")
	w.fails(7, "ADD", p, nil) // it is attached now
	w.ok("DEL", p)
	w.nothingLeft()
}

// TestDELWaitsForTheADDOfItsContainer: a DEL waits for the ADD of the same
// container that runs in another process. A DEL of another container does not.
func TestDELWaitsForTheADDOfItsContainer(t *testing.T) {
	w := newWorld(t)
	p := w.pod(w.multinet("1.0.0", w.fake("a", "ADD", "gate")))
	other := w.pod(w.multinet("1.0.0", w.fake("other")))
	add := w.start("ADD", p)
	w.ready()
	del := w.start("DEL", p, withoutNetNS)
	w.waitsForLock(del)
	w.ok("ADD", other)
	w.ok("DEL", other)
	w.trace("ADD a eth0", "ADD other eth0", "DEL other eth0")
	w.open()
	w.done(add)
	w.done(del)
	w.trace("ADD a eth0", "ADD other eth0", "DEL other eth0", "DEL a eth0")
	w.nothingLeft()
}

// terminated sends SIGTERM to a plugin, which must answer code 11 within five
// seconds.
func (w *world) terminated(r *running) {
	w.t.Helper()
	told := time.Now()
	w.terminate(r)
	a := w.wait(r)
	if took := time.Since(told); took > 5*time.Second {
		w.t.Errorf("answered after %v", took)
	}
	w.failed(a, 11)
}

// terminate sends SIGTERM to a plugin.
func (w *world) terminate(r *running) {
	w.t.Helper()
	if err := r.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		w.t.Fatal(err)
	}
}

// killed runs a command and kills its plugin, but not the plugins that it runs,
// once one of them hangs or waits for its gate.
func (w *world) killed(command string, p *pod) {
	w.t.Helper()
	r := w.start(command, p)
	w.ready()
	w.kill(r)
}

// kill kills a plugin, but not the plugins that it runs.
func (w *world) kill(r *running) {
	w.t.Helper()
	if err := r.cmd.Process.Kill(); err != nil {
		w.t.Fatal(err)
	}
	_ = r.cmd.Wait() // killed
}

// waitsForLock waits until a plugin that cannot get the lock of its container
// has opened the state directory.
func (w *world) waitsForLock(r *running) {
	w.t.Helper()
	w.until("DEL waits for the lock", func() bool {
		fds, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", r.cmd.Process.Pid))
		for _, fd := range fds {
			if file, _ := os.Readlink(fd); strings.HasPrefix(file, w.file("state")) {
				return true
			}
		}
		return false
	})
}

// running lists the processes of this world's fakes that have not exited.
func (w *world) running() (pids []int) {
	w.t.Helper()
	for _, c := range w.calls() {
		if c.runs() {
			pids = append(pids, c.PID)
		}
	}
	return pids
}

// orphansEnd waits until no fake of this world runs.
func (w *world) orphansEnd() {
	w.t.Helper()
	w.until("no plugin runs", func() bool { return len(w.running()) == 0 })
}

// noPlugins fails the test if a fake still runs.
func (w *world) noPlugins() {
	w.t.Helper()
	same(w.t, "running plugins", nil, w.running())
}
