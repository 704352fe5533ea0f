package e2e

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/metacni/metacni/examples/lab/host"
)

// TestDELSparesANamespaceWithAReusedNumber: the kernel reuses the device and
// inode number of a deleted network namespace. If the new namespace is also at
// the same path, detaching the container of the old one takes nothing from the
// container of the new one.
func TestDELSparesANamespaceWithAReusedNumber(t *testing.T) {
	for name, detach := range map[string]func(w *world, old, now *pod) answer{
		"DEL":                     func(w *world, old, _ *pod) answer { return w.call("DEL", old) },
		"DEL without a namespace": func(w *world, old, _ *pod) answer { return w.call("DEL", old, withoutNetNS) },
		"GC":                      func(w *world, old, now *pod) answer { return w.call("GC", old, valid(now)) },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			conf := w.multinet("1.1.0", w.bridge(1), w.fake("b"))
			old := w.succeeded(conf)
			now := w.pod(conf)
			now.netns = old.netns
			w.ok("ADD", now)
			w.forget()
			dry := w.operate("gc", "--dry-run")
			if strings.Contains(dry.stdout, now.id) || !strings.Contains(dry.stdout, old.id) {
				t.Errorf("gc --dry-run, where only the namespace of %s is gone: %+v", old.id, dry)
			}
			if a := detach(w, old, now); a.err != nil {
				t.Errorf("%s: %s", name, a.stdout)
			}
			same(t, "the other's interfaces", []string{"eth0"}, w.interfaces(now))
			same(t, "leases", 1, len(w.leases()))
			same(t, "attached by fakes", []string{"b@" + now.id + "@net1"}, w.live())
			for _, c := range w.calls() {
				if c.Command == "DEL" && c.NetNS != "" {
					t.Errorf("the plugin was given %s", c.NetNS)
				}
			}
			w.ok("CHECK", now)
			w.answersPing(now, w.net(1)+".1")
			w.ok("DEL", now)
			w.nothingLeft()
			w.figures("the number of the namespace is another container's, "+name, 1)
		})
	}
}

// renumbering is held by the test that waits for a number, so that no two tests
// wait for each other's.
var renumbering sync.Mutex

// succeeded returns a container whose namespace has been deleted after its ADD.
// At the same path is a new namespace with the same numbers.
func (w *world) succeeded(conf object) *pod {
	w.t.Helper()
	renumbering.Lock()
	defer renumbering.Unlock()
	for range 20 {
		p := w.pod(conf)
		w.ok("ADD", p)
		numbers := w.numbers(p.netns)
		w.vanish(p)
		if w.reused(p, numbers) {
			same(w.t, "numbers of the new namespace", numbers, w.numbers(p.netns))
			return p
		}
		w.ok("DEL", p)
	}
	w.t.Fatal("no namespace was given the numbers of one that has gone")
	return nil
}

// reused creates namespaces until one has the numbers want, and moves that one
// to p's path. It keeps the others until then, so that their numbers stay in
// use. It returns false if the numbers have gone to a test that runs at the
// same time.
func (w *world) reused(p *pod, want [2]uint64) bool {
	w.t.Helper()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for i, waited := 0, 0; i < 1000 && waited < 20; i++ {
		path, err := host.NewNS(fmt.Sprintf("%s-%d", p.id, i))
		if err != nil {
			w.t.Fatal(err)
		}
		defer func() { _ = host.RemoveNS(path) }()
		got := w.numbers(path)
		if got[1] > want[1] { // the kernel frees a number later
			waited++
			<-tick.C
		}
		if got != want {
			continue
		}
		w.write("", "mount")
		if err := unix.Rename(w.file("mount"), p.netns); err != nil {
			w.t.Fatal(err)
		}
		if err := unix.Mount(path, p.netns, "", unix.MS_BIND, ""); err != nil {
			w.t.Fatal(err)
		}
		return true
	}
	return false
}

// numbers returns the device and inode number of a namespace.
func (w *world) numbers(path string) [2]uint64 {
	w.t.Helper()
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		w.t.Fatal(err)
	}
	return [2]uint64{uint64(st.Dev), st.Ino} //nolint:unconvert // not on every architecture
}
