package e2e

import (
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/metacni/metacni/examples/lab/host"
	nodetest "github.com/metacni/metacni/internal/test/node"
	"github.com/metacni/metacni/scratch"
)

// TestDELSparesANamespaceWithAReusedNumber: the kernel gives a network namespace the device
// and inode number of a deleted one. If the new namespace is also at
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
			n.answersFrom(now, n.net(1)+".1")
			n.ok("DEL", now)
			n.nothingLeft()
		})
	}
}

// succeeded returns a container whose namespace has been deleted after its ADD. At the
// same path is a new namespace, and the record has the numbers of that one: the kernel
// gives them again when it likes, so that a test cannot wait for it.
func (n *node) succeeded(conf object) *pod {
	n.Helper()
	p := n.pod(conf)
	n.ok("ADD", p)
	n.vanish(p)
	_, err := host.NewNS(p.id)
	nodetest.OK(n, err)
	var now unix.Stat_t
	nodetest.OK(n, unix.Stat(p.netns, &now))

	records := scratch.Store[map[string]any]{Dir: n.file("state")}
	lock, err := records.Lock(n.Context(), p.id)
	nodetest.OK(n, err)
	defer lock.Unlock()
	r, err := records.Get(scratch.Key{Network: n.name("multi"), ContainerID: p.id, IfName: p.ifname})
	nodetest.OK(n, err)
	for _, d := range r.Value["delegates"].([]any) {
		recorded := d.(map[string]any)["netns"].(map[string]any)
		if recorded["unique"] == nil {
			n.Fatalf("recorded as %v: nothing tells the old namespace from the new one", recorded)
		}
		recorded["dev"], recorded["inode"] = now.Dev, now.Ino
	}
	nodetest.OK(n, records.Put(lock, r))
	return p
}
