package e2e

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/metacni/metacni/examples/lab/host"
	"github.com/metacni/metacni/internal/nodetest"
)

// TestDELSparesANamespaceWithAReusedNumber: the kernel reuses the device and
// inode number of a deleted network namespace. If the new namespace is also at
// the same path, detaching the container of the old one takes nothing from the
// container of the new one.
func TestDELSparesANamespaceWithAReusedNumber(t *testing.T) {
	for name, detach := range map[string]func(n *node, old, now *pod) answer{
		"DEL":                     func(n *node, old, _ *pod) answer { return n.call("DEL", old) },
		"DEL without a namespace": func(n *node, old, _ *pod) answer { return n.call("DEL", old, withoutNetNS) },
		"GC":                      func(n *node, old, now *pod) answer { return n.call("GC", old, valid(now)) },
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			conf := n.multinet("1.1.0", n.bridge(1), n.fake("b"))
			old := n.succeeded(conf)
			now := n.pod(conf)
			now.netns = old.netns
			n.ok("ADD", now)
			n.forget()
			dry := n.operate(0, "gc", "--dry-run")
			if strings.Contains(dry.stdout, now.id) || !strings.Contains(dry.stdout, old.id) {
				t.Errorf("gc --dry-run, where only the namespace of %s is gone: %+v", old.id, dry)
			}
			if a := detach(n, old, now); a.err != nil {
				t.Errorf("%s: %s", name, a.stdout)
			}
			nodetest.Equal(t, "the other's interfaces", n.interfaces(now), []string{"eth0"})
			nodetest.Equal(t, "leases", len(n.leases()), 1)
			nodetest.Equal(t, "attached by fakes", n.live(), []string{"b@" + now.id + "@net1"})
			for _, c := range n.calls() {
				if c.Command == "DEL" && c.NetNS != "" {
					t.Errorf("the plugin was given %s", c.NetNS)
				}
			}
			n.ok("CHECK", now)
			n.answersPing(now, n.net(1)+".1")
			n.ok("DEL", now)
			n.nothingLeft()
		})
	}
}

// renumbering is held by the test that waits for a number, so that no two tests
// wait for each other's.
var renumbering sync.Mutex

// succeeded returns a container whose namespace has been deleted after its ADD.
// At the same path is a new namespace with the same numbers.
func (n *node) succeeded(conf object) *pod {
	n.Helper()
	renumbering.Lock()
	defer renumbering.Unlock()
	for range 20 {
		p := n.pod(conf)
		n.ok("ADD", p)
		numbers := n.numbers(p.netns)
		n.vanish(p)
		if n.reused(p, numbers) {
			nodetest.Equal(n, "numbers of the new namespace", n.numbers(p.netns), numbers)
			return p
		}
		n.ok("DEL", p)
	}
	n.Fatal("no namespace was given the numbers of one that has gone")
	return nil
}

// reused creates namespaces until one has the numbers want, and moves that one
// to p's path. It keeps the others until then, so that their numbers stay in
// use. It returns false if the numbers have gone to a test that runs at the
// same time.
func (n *node) reused(p *pod, want [2]uint64) bool {
	n.Helper()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for i, waited := 0, 0; i < 1000 && waited < 20; i++ {
		path, err := host.NewNS(fmt.Sprintf("%s-%d", p.id, i))
		nodetest.OK(n, err)
		defer func() { _ = host.RemoveNS(path) }()
		got := n.numbers(path)
		if got[1] > want[1] { // the kernel frees a number later
			waited++
			<-tick.C
		}
		if got != want {
			continue
		}
		n.write("", "mount")
		nodetest.OK(n, unix.Rename(n.file("mount"), p.netns))
		nodetest.OK(n, unix.Mount(path, p.netns, "", unix.MS_BIND, ""))
		return true
	}
	return false
}

// numbers returns the device and inode number of a namespace.
func (n *node) numbers(path string) [2]uint64 {
	n.Helper()
	var st unix.Stat_t
	nodetest.OK(n, unix.Stat(path, &st))
	return [2]uint64{uint64(st.Dev), st.Ino} //nolint:unconvert // not on every architecture
}
