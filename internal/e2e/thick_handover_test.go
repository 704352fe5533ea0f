package e2e

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/metacni/metacni/delegate/thick/wire"
)

// TestHandOverFailsNoCommand: daemons replace one another, each stopped once
// the next one waits, while shims ADD, CHECK and DEL all the time. The socket
// is always there, no connection is refused, and every command succeeds.
func TestHandOverFailsNoCommand(t *testing.T) {
	w := newWorld(t)
	handovers := 12
	if !*long {
		handovers = 3
	}
	d := w.daemon(daemonConf{})
	stop := make(chan struct{})
	var workers sync.WaitGroup
	var probes, calls atomic.Int64
	removed := w.removals(w.file("d"))
	workers.Go(func() { w.probe(stop, &probes) })
	for _, p := range w.newPods(6, func() object { return w.thick("1.1.0", w.fake("a")) }) {
		workers.Go(func() { w.load(p, stop, &calls) })
	}
	for range handovers {
		next := w.startDaemon(daemonConf{})
		w.until("the next daemon waits", func() bool { return next.waits() })
		before := calls.Load()
		d.signal(syscall.SIGTERM)
		d.ended()
		next.ready()
		w.until("the next daemon has served", func() bool { return calls.Load() >= before+18 || t.Failed() })
		d = next
	}
	close(stop)
	workers.Wait()
	if names := removed(); slices.Contains(names, wire.SocketName) {
		t.Errorf("the socket has vanished: removed were %q", names)
	}
	w.noTrace()
	d.signal(syscall.SIGTERM)
	d.ended()
	w.figures(fmt.Sprintf("hand over between daemons under load: %d commands, %d probes", calls.Load(), probes.Load()), handovers)
}

// waits reports whether the daemon waits for the lock of the socket.
func (d *daemon) waits() bool {
	text, err := os.ReadFile("/proc/locks")
	if err != nil {
		return false
	}
	info, err := os.Stat(d.w.socket() + ".next")
	if err != nil {
		return false
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	want := fmt.Sprintf(":%d", st.Ino)
	for line := range strings.Lines(string(text)) {
		// "1: FLOCK  ADVISORY  WRITE 1234 00:2e:5678 0 EOF"
		f := strings.Fields(line)
		if ok && len(f) > 5 && f[1] == "FLOCK" && f[4] == fmt.Sprint(d.cmd.Process.Pid) && strings.HasSuffix(f[5], want) {
			return true
		}
	}
	return false
}

// probe asks the daemon for its health until stop is closed.
func (w *world) probe(stop <-chan struct{}, probes *atomic.Int64) {
	for {
		select {
		case <-stop:
			return
		default:
		}
		if r, err := w.ask(http.MethodGet, wire.PathHealth, nil); err != nil || r.status != http.StatusOK {
			w.t.Errorf("%s: status %d, %v", wire.PathHealth, r.status, err)
			return
		}
		probes.Add(1)
	}
}

// removals watches a directory with inotify. The returned function lists the
// names that have been removed since, even if they exist again. Replacing a
// file removes no name.
func (w *world) removals(dir string) func() []string {
	w.t.Helper()
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = unix.Close(fd) })
	if _, err := unix.InotifyAddWatch(fd, dir, unix.IN_DELETE|unix.IN_MOVED_FROM); err != nil {
		w.t.Fatal(err)
	}
	return func() (names []string) {
		w.t.Helper()
		buf := make([]byte, 64<<10)
		for {
			n, err := unix.Read(fd, buf)
			if errors.Is(err, unix.EAGAIN) {
				return names
			}
			if err != nil {
				w.t.Fatal(err)
			}
			for events := buf[:n]; len(events) > 0; {
				size := int(binary.NativeEndian.Uint32(events[12:]))
				name := events[unix.SizeofInotifyEvent : unix.SizeofInotifyEvent+size]
				names = append(names, string(bytes.TrimRight(name, "\x00")))
				events = events[unix.SizeofInotifyEvent+size:]
			}
		}
	}
}

// load lets shims attach, check and detach p until stop is closed.
func (w *world) load(p *pod, stop <-chan struct{}, calls *atomic.Int64) {
	for {
		for _, command := range []string{"ADD", "CHECK", "DEL"} {
			a := w.call(command, p)
			if a.code != 0 {
				w.t.Errorf("%s %s: %s", command, p.id, a.stdout)
				return
			}
			if command == "ADD" {
				p.result = a.stdout
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

// TestStoppingDaemonFinishesOrUndoesEveryADD: a daemon that gets SIGTERM
// finishes a short ADD. It undoes one that takes too long and answers its shim
// with code 11. Until it exits it serves DELs and refuses new ADDs.
func TestStoppingDaemonFinishesOrUndoesEveryADD(t *testing.T) {
	w := newWorld(t)
	d := w.daemon(daemonConf{keys: object{"drainTimeout": "6s", "connectionLimit": 8}})
	there := w.pod(w.thick("1.1.0", w.fake("there")))
	w.ok("ADD", there)
	short := w.pod(w.thick("1.1.0", w.bridge(1), w.fake("short", "ADD", "gate")))
	long := w.pod(w.thick("1.1.0", w.bridge(1), w.fake("long", "ADD", "hang")))
	late := w.pod(w.thick("1.1.0", w.fake("late")))
	shorts, longs := w.start("ADD", short), w.start("ADD", long)
	w.ready()
	w.ready()
	d.signal(syscall.SIGTERM)
	w.draining()
	w.open()
	w.done(shorts)
	refused, err := w.ask(http.MethodPost, wire.PathCNI, w.request("ADD", late, nil))
	if err != nil {
		t.Fatal(err)
	}
	refused.says(t, http.StatusServiceUnavailable, 11)
	if refused.header.Get("Retry-After") == "" {
		t.Error("the answer has no Retry-After")
	}
	w.fails(50, "STATUS", there, nil)
	w.ok("DEL", there)
	same(t, "queued", nil, w.queued())
	w.failed(w.wait(longs), 11)
	d.ended()
	if _, err := os.Lstat(w.socket()); err == nil {
		t.Error("the socket is still there")
	}
	same(t, "attached", []string{"short@" + short.id + "@net1"}, w.live())

	w.fails(50, "STATUS", short, nil) // no daemon runs
	w.ok("DEL", short)
	same(t, "queued", nil, w.queued())
	same(t, "attached", nil, w.live())
	w.daemon(daemonConf{})
	w.noTrace()
	w.figures("SIGTERM of the daemon while ADDs run: a short one, one that hangs, one to come", 3)
}

// draining waits until the daemon takes no more ADDs.
func (w *world) draining() {
	w.t.Helper()
	w.until("the daemon drains", func() bool {
		r, err := w.ask(http.MethodGet, wire.PathReady, nil)
		return err == nil && r.status == http.StatusServiceUnavailable
	})
}

// TestSecondSignalEndsTheDaemonAtOnce: the second signal ends a daemon as if it
// were killed. The next daemon and a DEL remove everything it left.
func TestSecondSignalEndsTheDaemonAtOnce(t *testing.T) {
	w := newWorld(t)
	d := w.daemon(daemonConf{})
	p := w.pod(w.thick("1.1.0", w.fake("a"), w.fake("b", "ADD", "gate")))
	r := w.start("ADD", p)
	w.ready()
	d.signal(syscall.SIGTERM)
	w.draining()
	w.until("the daemon has ended", func() bool { // signals within a second count once
		_ = d.cmd.Process.Signal(syscall.SIGTERM) // fails if it has exited
		return d.over()
	})
	w.failed(w.wait(r), 11)
	if code := d.cmd.ProcessState.ExitCode(); code != 1 || !strings.Contains(d.log.String(), "ended without waiting") {
		t.Errorf("the daemon: %v\n%s", d.cmd.ProcessState, d.log.String())
	}
	same(t, "recorded", true, w.recorded(p, "state"))
	w.open()
	w.daemon(daemonConf{})
	w.ok("DEL", p, withoutNetNS)
	w.noTrace()
	w.figures("a second SIGTERM of the daemon while an ADD runs", 1)
}

// TestDELCancelsTheADDOfItsContainer: a DEL that arrives during the ADD of its
// container does not wait for the plugin. The ADD is undone and answers code
// 11.
func TestDELCancelsTheADDOfItsContainer(t *testing.T) {
	w := newWorld(t)
	w.daemon(daemonConf{})
	p := w.pod(w.thick("1.1.0", w.bridge(1), w.fake("b", "ADD", "gate")))
	other := w.pod(w.thick("1.1.0", w.fake("other")))
	add := w.start("ADD", p)
	w.ready()
	w.ok("ADD", other)
	w.ok("DEL", p, withoutNetNS)
	w.failed(w.wait(add), 11)
	same(t, "attached", 1, len(w.live()))
	same(t, "interfaces", nil, w.interfaces(p))
	w.ok("DEL", p)
	w.ok("DEL", other)
	for i, want := range []string{"ADD b net1", "ADD other eth0", "DEL b net1"} {
		if calls := w.calls(); i >= len(calls) || calls[i].Command+" "+calls[i].ID+" "+calls[i].IfName != want {
			t.Errorf("call %d is not %q", i, want)
		}
	}
	w.noTrace()
	w.figures("DEL while the ADD of its container hangs, through the daemon", 1)
}

// TestManyContainersAtOnceThroughShims attaches, checks and detaches 64
// containers at the same time, each through a shim of its own.
func TestManyContainersAtOnceThroughShims(t *testing.T) {
	const count = 64
	w := newWorld(t)
	w.daemon(daemonConf{})
	pods := w.newPods(count, func() object { return w.thick("1.1.0", w.fake("a"), w.fake("b")) })
	for i, command := range []string{"ADD", "CHECK", "DEL", "DEL"} {
		w.allOK(command, pods)
		same(t, "attached after "+command, []int{2 * count, 2 * count, 0, 0}[i], len(w.live()))
	}
	w.noTrace()
	w.figures(fmt.Sprintf("%d containers at once through shims: ADD, CHECK, DEL, DEL", count), count)
}

// TestDELOvertakesAFloodOfADDs: 200 ADDs arrive at the same time and are
// served, a few at a time. A DEL and a STATUS do not wait for them, and the
// daemon keeps little more than the requests in memory.
func TestDELOvertakesAFloodOfADDs(t *testing.T) {
	const flood = 200
	w := newWorld(t)
	d := w.daemon(daemonConf{keys: object{"connectionLimit": 4}})
	there := w.pod(w.thick("1.1.0", w.fake("there")))
	w.ok("ADD", there)
	before := w.memory(d.cmd.Process.Pid, "VmRSS:")
	gate := w.newPods(4, func() object { return w.thick("1.1.0", w.fake("gate", "ADD", "gate")) })
	pods := append(gate, w.newPods(flood-4, func() object { return w.thick("1.1.0", w.fake("a")) })...)
	send := func(command string) (wait func()) {
		var wg sync.WaitGroup
		for _, p := range pods {
			body := w.request(command, p, nil)
			wg.Go(func() {
				if r, err := w.ask(http.MethodPost, wire.PathCNI, body); err != nil || r.status != http.StatusOK {
					t.Errorf("%s: status %d, %v: %s", command, r.status, err, r.body)
				}
			})
			if command == "ADD" && len(p.conf["delegates"].([]object)[0]["on"].(object)) > 0 {
				w.ready()
			}
		}
		return wg.Wait
	}
	wait := send("ADD")
	w.until("all requests are there", func() bool {
		r, err := w.ask(http.MethodGet, "/metrics", nil)
		return err == nil && strings.Contains(string(r.body), fmt.Sprintf(`multinetd_operations_queued{lane="add"} %d`, flood-4))
	})
	waiting := w.memory(d.cmd.Process.Pid, "VmRSS:")
	w.ok("STATUS", there)
	w.ok("DEL", there)
	for range gate {
		w.open()
	}
	wait()
	same(t, "attached", flood, len(w.live()))
	send("DEL")()
	w.noTrace()
	w.figures(fmt.Sprintf("%d requests at once; the daemon's memory: %d kB before, %d kB while they wait, %d kB at most (race detector: %v)",
		flood, before, waiting, w.memory(d.cmd.Process.Pid, "VmHWM:"), raced), flood)
}
