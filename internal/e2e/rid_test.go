package e2e

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/metacni/metacni/examples/lab/host"
	nodetest "github.com/metacni/metacni/internal/test/node"
)

// A guest is the first process of a container. For the runtime the path of the container's network
// namespace is that of the process, in /proc, and a mount keeps the namespace.
type guest struct {
	*pod
	mount string
	leave io.Closer // makes the process unshare its network namespace
}

func (n *node) guest(p *pod) *guest {
	n.Helper()
	cmd := exec.CommandContext(n.Context(), "sh", "-c", "read x; exec "+n.program("unshare")+" --net sleep infinity")
	leave, err := cmd.StdinPipe()
	nodetest.OK(n, err)
	nodetest.OK(n, host.Do(p.netns, cmd.Start))
	n.Cleanup(func() { _ = cmd.Wait() })
	g := &guest{p, p.netns, leave}
	p.netns = fmt.Sprintf("/proc/%d/ns/net", cmd.Process.Pid)
	return g
}

// in calls do in the container's network namespace.
func (n *node) in(g *guest, do func(eth0 netlink.Link) error) {
	n.Helper()
	nodetest.OK(n, host.Do(g.mount, func() error {
		l, err := netlink.LinkByName("eth0")
		if err == nil {
			err = do(l)
		}
		return err
	}))
}

// ways are what a container may do to be rid of what the host has for it.
func ways() map[string]func(n *node, g *guest) {
	unshare := func(n *node, g *guest) {
		was, err := os.Readlink(g.netns)
		nodetest.OK(n, err)
		nodetest.OK(n, g.leave.Close())
		n.until("the process is in another namespace", func() bool {
			now, err := os.Readlink(g.netns)
			return err == nil && now != was
		})
	}
	return map[string]func(n *node, g *guest){
		"unshare": unshare,
		"unshare and delete": func(n *node, g *guest) {
			unshare(n, g)
			n.in(g, netlink.LinkDel) // the host has no end of it any more
		},
		"rename": func(n *node, g *guest) {
			n.in(g, func(l netlink.Link) error {
				nodetest.OK(n, netlink.LinkSetDown(l))
				return netlink.LinkSetName(l, "mine")
			})
		},
		"move": func(n *node, g *guest) {
			elsewhere, err := os.Open(n.pod(nil).netns)
			nodetest.OK(n, err)
			defer elsewhere.Close()
			n.in(g, func(l netlink.Link) error { return netlink.LinkSetNsFd(l, int(elsewhere.Fd())) })
		},
		"delete": func(n *node, g *guest) { n.in(g, netlink.LinkDel) },
	}
}

// A container cannot rid itself of a step of its network: the rules of policy, and the networks
// between which default-route has chosen, with their addresses. It unshares the namespace of the
// process by which the runtime knows it, and renames, moves or deletes its interface. Then there
// are sweeps, a CHECK, ADDs of another network, of another container and of the same network
// again. Until its DEL all is there, and nothing after it.
func TestContainerCannotRidItselfOfAStep(t *testing.T) {
	for step, attach := range map[string]func(n *node, i int) *pod{
		"policy": func(n *node, i int) *pod {
			p := n.policy()
			p.conf["name"], p.conf["delegate"] = n.name(fmt.Sprintf("policy%d-", i)), n.bridge(i)
			return p
		},
		"default-route": func(n *node, i int) *pod {
			n.network("exit", n.with(n.routeless(2), object{"cniVersion": "1.0.0"}))
			p := n.pod(n.multinet("1.1.0", n.bridge(i)))
			p.conf["name"] = n.name(fmt.Sprintf("multi%d-", i))
			return p.selects(fmt.Sprintf(`[{"name": "exit", "interface": "exit%d", "default-route": ["%s.1"]}]`, i, n.net(2)))
		},
	} {
		for way, do := range ways() {
			for _, scan := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s/%s/scan %t", step, way, scan), func(t *testing.T) {
					if scan {
						needsScan(t)
					}
					n := newNode(t)
					n.scan = scan
					g, other := n.guest(attach(n, 1)), attach(n, 1)
					more := *attach(n, 3)
					more.id, more.netns, more.ifname = g.id, g.netns, "eth1"
					n.ok("ADD", g.pod)
					before := n.kept(g, step, way)
					do(n, g)

					n.operate(-1, "gc", "--bin-dir", n.bin)
					n.call("CHECK", g.pod)
					n.call("ADD", &more)
					n.ok("ADD", other)
					n.operate(-1, "gc", "--bin-dir", n.bin)
					nodetest.Equal(t, "kept", n.kept(g, step, way), before)
					if !strings.HasSuffix(way, "delete") { // then nothing is left that could be used
						n.fails(7, "ADD", g.pod, nil)
					}
					n.operate(-1, "gc", "--bin-dir", n.bin)
					nodetest.Equal(t, "kept in the end", n.kept(g, step, way), before)

					for _, p := range []*pod{other, &more, g.pod} {
						n.ok("DEL", p)
					}
					nodetest.OK(t, host.RemoveNS(g.mount))
					nodetest.Equal(t, "tables", n.tables(), nil)
					nodetest.Equal(t, "leases", n.leases(), nil)
					nodetest.Equal(t, "state", n.state(), nil)
				})
			}
		}
	}
}

// kept returns what the host has for the container of g, and the default routes that are there.
func (n *node) kept(g *guest, step, way string) (all []string) {
	n.Helper()
	for _, lease := range n.leases() {
		if words := strings.Fields(lease); slices.Contains(words, g.id) && !slices.Contains(words, "eth1") && !slices.Contains(words, "exit3") {
			all = append(all, lease)
		}
	}
	if n.recorded(g.pod, "state") {
		all = append(all, "record")
	}
	if step == "policy" {
		all = append(all, n.nft("list", "table", "inet", g.table()))
	} else if way == "unshare" { // the others take the route with the interface
		inside := *g.pod
		inside.netns = g.mount
		all = append(all, n.defaultRoutes(&inside)...)
	}
	return all
}
