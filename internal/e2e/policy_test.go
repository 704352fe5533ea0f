package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/metacni/metacni/internal/nodetest"
)

// policy returns a container of policy, which may not send anything to a part of the world.
func (n *node) policy() *pod {
	n.Helper()
	n.program("nft")
	return n.pod(object{
		"cniVersion": "1.1.0", "name": n.name("policy"), "type": "policy", "cniDir": n.file("state"),
		"deny": []string{"192.0.2.0/24", "2001:db8::/32"}, "delegate": n.bridge(0),
	})
}

// tables lists the tables of nftables that policy has made for p.
func (n *node) tables(p *pod) (names []string) {
	n.Helper()
	out, err := exec.CommandContext(n.Context(), n.program("nft"), "list", "tables").Output()
	nodetest.OK(n, err)
	for line := range strings.Lines(string(out)) {
		if words := strings.Fields(line); strings.HasPrefix(words[len(words)-1], "policy/"+p.id+"/") {
			names = append(names, words[len(words)-1])
		}
	}
	return names
}

// waitingNft puts an nft into the PATH that waits for the gate of the fakes before it changes
// anything, or after.
func (n *node) waitingNft(before bool) extra {
	n.Helper()
	n.mkdir("nft")
	wait := fmt.Sprintf("{ echo -n x > %s; head -c 1 < %s > /dev/null; }", n.file("fake", "ready"), n.file("fake", "gate"))
	first, last := "true", wait
	if before {
		first, last = wait, "true"
	}
	nodetest.OK(n, os.WriteFile(n.file("nft", "nft"), fmt.Appendf(nil, "#!/bin/sh\n[ \"$*\" = '-f -' ] || exec %[1]s \"$@\"\n%[2]s\n%[1]s \"$@\"\nstatus=$?\n%[3]s\nexit $status\n",
		n.program("nft"), first, last), 0o755))
	return func(env map[string]string, _ object) { env["PATH"] = n.file("nft") + ":" + n.path }
}

// A step is recorded, undone and removed with the delegates, by DEL, by GC and by "multinet gc",
// which runs policy for it. It does so after policy was killed: before its nft has changed
// something, which it may do when its parent is dead, and after. The namespace is gone.
func TestStepOfAKilledPlugin(t *testing.T) {
	for _, at := range []string{"before", "after"} {
		for _, then := range []string{"DEL", "GC", "multinet gc", "ADD"} {
			t.Run(at+"/then "+then, func(t *testing.T) {
				n := newNode(t)
				p, other := n.policy(), n.policy()
				n.ok("ADD", other)
				add := n.start("ADD", p, n.waitingNft(at == "before"))
				n.ready() // policy waits for nft
				nodetest.OK(t, add.cmd.Process.Kill())
				_ = add.cmd.Wait()
				if then != "ADD" {
					n.vanish(p)
				}
				var next *running // it waits for nft, which has the lock of the container
				switch then {
				case "DEL":
					next = n.start("DEL", p, withoutNetNS)
				case "GC":
					next = n.start("GC", p, valid(other))
				case "ADD":
					next = n.start("ADD", p)
				default:
					next = n.exec(built("multinet"), map[string]string{"PATH": n.path}, nil, "gc", "--dir", n.file("state"), "--bin-dir", n.bin)
				}
				n.open()
				_ = next.cmd.Wait()
				if next.cmd.ProcessState.ExitCode() != 0 {
					t.Fatalf("%s: %v, %s%s", then, next.cmd.ProcessState, &next.stdout, &next.stderr)
				}
				if then == "ADD" {
					nodetest.Equal(t, "tables", n.tables(p), []string{"policy/" + p.id + "/eth0"})
					n.ok("CHECK", p)
					n.ok("DEL", p)
				}
				nodetest.Equal(t, "tables", n.tables(p), nil)
				nodetest.Equal(t, "tables of the other container", n.tables(other), []string{"policy/" + other.id + "/eth0"})
				n.ok("CHECK", other)
				n.ok("DEL", other)
				nodetest.Equal(t, "tables of the other container", n.tables(other), nil)
				n.nothingLeft()
			})
		}
	}
}

// CHECK fails when somebody has removed the rules. Without nft nothing is attached.
func TestStepIsCheckedAndUndone(t *testing.T) {
	n := newNode(t)
	p := n.policy()
	n.ok("ADD", p)
	n.ok("STATUS", p)
	n.ok("CHECK", p)
	nodetest.OK(t, exec.CommandContext(t.Context(), n.program("nft"), "flush", "table", "inet", n.tables(p)[0]).Run())
	n.fails(999, "CHECK", p, []string{"policy/deny", "0 rules, want 1"})
	n.ok("DEL", p)
	noNft := func(env map[string]string, _ object) { env["PATH"] = "/absent" }
	n.fails(50, "STATUS", p, []string{"policy/deny", "nft"}, noNft)
	n.fails(999, "ADD", p, []string{"policy/deny", "nft"}, noNft)
	n.ok("DEL", p)
	nodetest.Equal(t, "tables", n.tables(p), nil)
	n.nothingLeft()
}
