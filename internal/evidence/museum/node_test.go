package museum

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/metacni/metacni/delegate/conform/host"
	nodetest "github.com/metacni/metacni/internal/test/node"
	"github.com/metacni/metacni/internal/test/process"
)

type object = process.Object

// A node is the part of the private host on which one script runs with one subject.
type node struct {
	*process.Node
	subject subject
	lost    []string         // what the script has found lost
	daemon  *process.Process // nil if the subject has none, or it is not running
	alone   bool             // whether the script holds cacheDisk
}

func newNode(t *testing.T, s subject) *node {
	t.Helper()
	n := &node{Node: process.NewNode(t, "/run"), subject: s}
	t.Cleanup(func() { // what the subject has left behind
		for _, pid := range n.Running() {
			_ = unix.Kill(pid, unix.SIGKILL)
		}
	})
	return n
}

// A pod is one attachment as the runtime knows it.
type pod struct {
	process.Pod
	networks []object // the first is the cluster's; a runtime without a meta-plugin knows no other
	ports    int      // a port of the host that is published, or 0
	gone     bool     // whether the namespace has gone
}

// pod returns a new container with a network namespace.
func (n *node) pod(networks ...object) *pod {
	n.Helper()
	p := &pod{Pod: *n.Pod(nil), networks: networks}
	p.ID += "x" // then no ID begins with another
	if n.subject.cnitool() {
		p.ID = cnitoolID(p.NetNS)
	}
	return p
}

// vanish removes the namespace of p, as a reboot or a killed container does.
func (n *node) vanish(p *pod) {
	n.Helper()
	nodetest.OK(n, host.RemoveNS(p.NetNS))
	p.gone = true
}

// network returns the node's i'th network.
func (n *node) network(i int, plugins ...object) object {
	return object{"cniVersion": "1.1.0", "name": fmt.Sprintf("museum%d-%d", n.ID, i), "plugins": plugins}
}

// bridge returns a bridge with addresses of host-local in the node's i'th subnet.
func (n *node) bridge(i, bits int) object {
	conf := n.Bridge(i)
	conf["ipam"].(object)["subnet"] = fmt.Sprintf("%s0/%d", n.subnet(i), bits)
	return conf
}

// subnet is how the addresses in the node's i'th subnet begin.
func (n *node) subnet(i int) string { return n.Net(i) + "." }

// fake returns a plugin that attaches nothing and has faults.
func (n *node) fake(faults ...string) object { return n.Fake("fake", faults...) }

// behind returns a fake that lets plugin do its work.
func (n *node) behind(plugin object, faults ...string) object {
	return n.Behind("fake", plugin, faults...)
}

// A command is one that the runtime has started.
type command struct {
	*process.Command
	stdout []byte // when it has ended
	ended  func() // called when it has ended
}

// exec starts a program with exactly env and stdin.
func (n *node) exec(env map[string]string, stdin []byte, path string, args ...string) *command {
	n.Helper()
	return &command{Command: n.Exec(path, env, stdin, args...), ended: func() {}}
}

// wait returns whether the command has succeeded.
func (c *command) wait() error {
	defer c.ended()
	a := c.Wait()
	if c.stdout = a.Stdout; a.Code != 0 {
		return fmt.Errorf("exit status %d: %s%s", a.Code, a.Stdout, a.Stderr)
	}
	return nil
}

// kill kills the subject, but not the plugins that it runs, as a runtime does at its deadline.
func (c *command) kill() {
	c.Kill()
	c.ended()
}

// run runs a command for p.
func (n *node) run(name string, p *pod) error {
	n.Helper()
	c := n.start(name, p)
	err := c.wait()
	if name == "ADD" && err == nil {
		p.Result = c.stdout
	}
	n.Logf("%s %s %s: %v", n.subject.name, name, p.ID, err)
	return err
}

// ok runs a command that succeeds before anything can be lost.
func (n *node) ok(name string, p *pod) {
	n.Helper()
	if err := n.run(name, p); err != nil {
		n.Fatalf("%s: %v", name, err)
	}
}

// fails runs a command that fails, because a plugin does.
func (n *node) fails(name string, p *pod) {
	n.Helper()
	if n.run(name, p) == nil {
		n.lose("%s reports success", name)
	}
}

// must runs a command on which the answer depends.
func (n *node) must(name string, p *pod) {
	n.Helper()
	if n.run(name, p) != nil {
		n.lose("%s fails", name)
	}
}

// lose notes once what is lost.
func (n *node) lose(format string, args ...any) {
	if what := fmt.Sprintf(format, args...); !slices.Contains(n.lost, what) {
		n.lost = append(n.lost, what)
	}
}

// leases returns the addresses that host-local has reserved for p.
func (n *node) leases(p *pod) (list []string) {
	n.Helper()
	for _, dir := range append(glob(fmt.Sprintf("/var/lib/cni/networks/museum%d-*", n.ID)), glob(n.File("leases", "*"))...) {
		for _, path := range glob(dir + "/10.*") {
			if owner, err := os.ReadFile(path); err == nil && strings.HasPrefix(string(owner), p.ID) {
				list = append(list, filepath.Base(path))
			}
		}
	}
	return list
}

func glob(pattern string) []string {
	paths, _ := filepath.Glob(pattern) // the pattern is right
	return paths
}

// interfaces returns the names of p's interfaces but lo.
func (n *node) interfaces(p *pod) []string {
	n.Helper()
	return process.Interfaces(n, p.NetNS)
}

// state returns the files of the subject's state about p.
func (n *node) state(p *pod) (paths []string) {
	n.Helper()
	defer n.lockCache()()
	err := filepath.WalkDir(n.subject.state(n), func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() && strings.Contains(filepath.Base(path), p.ID) && !strings.HasSuffix(path, "lock") {
			paths = append(paths, path)
		}
		return nil // a missing directory, or one that goes away
	})
	nodetest.OK(n, err)
	return paths
}

// left notes what is left of p: addresses, interfaces, rules about these addresses, and files.
func (n *node) left(p *pod, addresses ...string) {
	n.Helper()
	n.leftNetwork(p, addresses...)
	if len(n.state(p)) > 0 {
		n.lose("file left")
	}
}

// leftNetwork notes what is left of p but files.
func (n *node) leftNetwork(p *pod, addresses ...string) {
	n.Helper()
	n.leftAddress(p)
	if !p.gone && len(n.interfaces(p)) > 0 {
		n.lose("interface left")
	}
	if len(n.Rules(append(addresses, p.ID)...)) > 0 {
		n.lose("rules left")
	}
}

// leftAddress notes if an address of p is left.
func (n *node) leftAddress(p *pod) {
	n.Helper()
	if len(n.leases(p)) > 0 {
		n.lose("address left")
	}
}
