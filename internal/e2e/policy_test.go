package e2e

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/metacni/metacni/delegate/conform/host"
	nodetest "github.com/metacni/metacni/internal/test/node"
	"github.com/metacni/metacni/internal/test/process"
	"github.com/metacni/metacni/scratch"
)

// policy returns a container of policy, which may not send anything to the node's second
// range of addresses.
func (n *node) policy() *pod {
	n.Helper()
	n.program("nft")
	return n.pod(object{
		"cniVersion": "1.1.0", "name": n.Numbered("policy"), "type": "policy", "cniDir": n.File("state"),
		"deny": []string{n.Net(2) + ".0/24", "2001:db8::/32"}, "delegate": n.bridge(1),
	})
}

// nft runs nft on the host.
func (n *node) nft(args ...string) string {
	n.Helper()
	out, err := exec.CommandContext(n.Context(), n.program("nft"), args...).Output()
	nodetest.OK(n, err)
	return string(out)
}

// tables lists the containers of this node for which policy has made tables of nftables.
func (n *node) tables() (containers []string) {
	n.Helper()
	for _, m := range regexp.MustCompile(`table inet policy-[a-z2-7]{16} \{\s+comment "([^"]*)"`).FindAllStringSubmatch(n.nft("list", "ruleset"), -1) {
		if strings.HasPrefix(m[1], fmt.Sprintf("n%dc", n.ID)) {
			containers = append(containers, m[1])
		}
	}
	slices.Sort(containers)
	return containers
}

// table is the name of the table that policy makes for p.
func (p *pod) table() string {
	return scratch.Key{Network: fmt.Sprint(p.Conf["name"]), ContainerID: p.ID, IfName: p.IfName}.Tag("policy-")
}

// waitingNft puts an nft into the PATH that waits for the gate of the fakes before it changes
// anything, or after.
func (n *node) waitingNft(before bool) extra {
	n.Helper()
	n.Mkdir("nft")
	wait := fmt.Sprintf("{ echo -n x > %s; head -c 1 < %s > /dev/null; }", n.File("fake", "ready"), n.File("fake", "gate"))
	first, last := "true", wait
	if before {
		first, last = wait, "true"
	}
	nodetest.OK(n, os.WriteFile(n.File("nft", "nft"), fmt.Appendf(nil, "#!/bin/sh\n[ \"$*\" = '-f -' ] || exec %[1]s \"$@\"\n%[2]s\n%[1]s \"$@\"\nstatus=$?\n%[3]s\nexit $status\n",
		n.program("nft"), first, last), 0o755))
	return func(env map[string]string, _ object) { env["PATH"] = n.File("nft") + ":" + process.Path }
}

// free waits until nobody has the lock of p's container.
func (n *node) free(p *pod) {
	n.Helper()
	n.Until("the container is free", func() bool {
		f, err := os.Open(n.File("state", p.ID+"@lock"))
		nodetest.OK(n, err)
		defer f.Close()
		return unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil
	})
}

// A step is recorded, undone and removed with the delegates, by DEL, by GC and by "multinet gc",
// which runs policy for it. It does so after policy was killed: before its nft has changed
// something, which it does when its parent is dead, or never; and after. The nft has inherited
// the lock of the container: the next command waits for it, and kills it if it hangs. "multinet
// gc" kills it too, and does not wait for long. The namespace is gone.
func TestStepOfAKilledPlugin(t *testing.T) {
	for _, at := range []string{"before", "hangs", "after"} {
		for then, start := range map[string]func(n *node, p, other *pod) *process.Command{
			"DEL": func(n *node, p, _ *pod) *process.Command { return n.start("DEL", p, withoutNetNS) },
			"GC":  func(n *node, p, other *pod) *process.Command { return n.start("GC", p, valid(other)) },
			"ADD": func(n *node, p, _ *pod) *process.Command { return n.start("ADD", p) },
			"multinet gc": func(n *node, _, _ *pod) *process.Command {
				return n.Exec(built("multinet"), map[string]string{"PATH": process.Path}, nil, "gc", "--dir", n.File("state"), "--bin-dir", n.Bin)
			},
		} {
			t.Run(at+"/then "+then, func(t *testing.T) {
				n := newNode(t)
				p, other := n.policy(), n.policy()
				n.ok("ADD", other)
				add := n.start("ADD", p, n.waitingNft(at != "after"))
				n.Ready() // policy waits for nft
				add.Kill()
				if then != "ADD" {
					n.vanish(p)
				}
				if then == "multinet gc" && at != "hangs" { // it leaves who is busy for the next time
					n.Open()
					n.free(p)
				}
				next := start(n, p, other)
				if then != "multinet gc" && at != "hangs" {
					n.Open()
				}
				if a := next.Wait(); a.Code != 0 {
					t.Fatalf("%s: %d, %s%s", then, a.Code, a.Stdout, a.Stderr)
				}
				if then == "ADD" {
					nodetest.Equal(t, "tables", n.tables(), slices.Sorted(slices.Values([]string{other.ID, p.ID})))
					n.ok("CHECK", p)
					n.ok("DEL", p)
				}
				nodetest.Equal(t, "tables", n.tables(), []string{other.ID})
				n.ok("CHECK", other)
				n.ok("DEL", other)
				nodetest.Equal(t, "tables", n.tables(), nil)
				n.nothingLeft()
			})
		}
	}
}

// The rules drop what they say. CHECK fails when somebody has removed them. Without nft nothing
// is attached.
func TestStepIsCheckedAndUndone(t *testing.T) {
	n := newNode(t)
	p := n.policy()
	far := n.pod(n.multinet("1.1.0", n.bridge(2)))
	n.ok("ADD", far)
	n.ok("ADD", p)
	n.ok("STATUS", p)
	n.ok("CHECK", p)
	n.answersFrom(p, n.Net(1)+".1")
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if _, err := host.Reach(ctx, p.NetNS, netip.MustParseAddr(n.Net(2)+".2")); err == nil {
		t.Error("reaches what is denied")
	}
	n.nft("flush", "table", "inet", p.table())
	n.answersFrom(p, n.Net(2)+".2")
	n.fails(999, "CHECK", p, []string{"policy/deny", "0 nft rules, want 1"})
	n.ok("DEL", p)
	noNft := func(env map[string]string, _ object) { env["PATH"] = "/absent" }
	n.fails(50, "STATUS", p, []string{"policy/deny", "nft"}, noNft)
	n.fails(999, "ADD", p, []string{"policy/deny", "nft"}, noNft)
	n.ok("DEL", p)
	n.ok("DEL", far)
	nodetest.Equal(t, "tables", n.tables(), nil)
	n.nothingLeft()
}

// The rules of an interface whose name means something to nft are its own.
func TestStepOfAnInterfaceWithAnyName(t *testing.T) {
	n := newNode(t)
	p := n.policy()
	n.ok("ADD", p)
	for _, name := range []string{"eth0#", "a;b", `"$(x)`, "abcdefghijklmno"} {
		odd := *p
		odd.IfName = name
		n.ok("ADD", &odd)
		nodetest.Equal(t, "tables", n.tables(), []string{p.ID, p.ID})
		n.ok("CHECK", &odd)
		n.ok("DEL", &odd)
		nodetest.Equal(t, "tables", n.tables(), []string{p.ID})
		n.ok("CHECK", p)
	}
	n.ok("DEL", p)
	nodetest.Equal(t, "tables", n.tables(), nil)
	n.nothingLeft()
}

// Containers that come and go at once have the rules of their own.
func TestStepsOfContainersAtOnce(t *testing.T) {
	n := newNode(t)
	pods := n.newPods(4, func() object { return n.policy().Conf })
	n.ok("ADD", pods[0]) // then the bridge keeps its address, which CHECK compares
	n.allOK("ADD", pods[1:])
	nodetest.Equal(t, "tables", len(n.tables()), len(pods))
	n.allOK("CHECK", pods)
	n.allOK("DEL", pods[1:])
	nodetest.Equal(t, "tables", n.tables(), []string{pods[0].ID})
	n.ok("CHECK", pods[0])
	n.ok("DEL", pods[0])
	nodetest.Equal(t, "tables", n.tables(), nil)
	n.nothingLeft()
}
