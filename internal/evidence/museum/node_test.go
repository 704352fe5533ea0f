package museum

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/metacni/metacni/examples/lab/host"
	"github.com/metacni/metacni/internal/hosttest"
	nodetest "github.com/metacni/metacni/internal/test/node"
)

// object is a JSON object.
type object = map[string]any

// nodes counts the nodes, so that no two share an address or a name.
var nodes atomic.Int32

// A node is the part of the private host on which one script runs with one subject: a
// directory, and names and addresses with its number.
type node struct {
	testing.TB
	subject subject
	id      int
	dir     string
	pods    int
	lost    []string // what the script has found lost
	daemon  *daemon  // nil if the subject has none, or it is not running
	alone   bool     // whether the script holds cacheDisk
}

func newNode(t *testing.T, s subject) *node {
	t.Helper()
	n := &node{TB: t, subject: s, id: int(nodes.Add(1))}
	n.dir = fmt.Sprintf("/run/m%d", n.id)
	nodetest.OK(t, errors.Join(os.MkdirAll(n.file("fake/live"), 0o700), os.MkdirAll(n.file("net.d"), 0o700)))
	for _, fifo := range []string{"ready", "gate"} {
		nodetest.OK(t, unix.Mkfifo(n.file("fake", fifo), 0o600))
	}
	t.Cleanup(n.killFakes)
	return n
}

// file returns a path in the node's directory.
func (n *node) file(elem ...string) string {
	return filepath.Join(append([]string{n.dir}, elem...)...)
}

// A pod is one attachment as the runtime knows it.
type pod struct {
	id, netns, ifname string
	networks          []object // the first is the cluster's; a runtime without a meta-plugin knows no other
	ports             int      // a port of the host that is published, or 0
	gone              bool     // whether the namespace has gone
	result            json.RawMessage
}

// pod returns a new container with a network namespace.
func (n *node) pod(networks ...object) *pod {
	n.Helper()
	n.pods++
	id := fmt.Sprintf("m%dc%dx", n.id, n.pods)
	netns, err := host.NewNS(id)
	nodetest.OK(n, err)
	p := &pod{id: id, netns: netns, ifname: "eth0", networks: networks}
	if n.subject.cnitool() {
		p.id = cnitoolID(netns)
	}
	n.Cleanup(func() { _ = host.RemoveNS(netns) })
	return p
}

// vanish removes the namespace of p, as a reboot or a killed container does.
func (n *node) vanish(p *pod) {
	n.Helper()
	nodetest.OK(n, host.RemoveNS(p.netns))
	p.gone = true
}

// network returns the node's i'th network.
func (n *node) network(i int, plugins ...object) object {
	return object{"cniVersion": "1.1.0", "name": fmt.Sprintf("museum%d-%d", n.id, i), "plugins": plugins}
}

// bridge returns a bridge with addresses of host-local in the node's i'th subnet.
func (n *node) bridge(i, bits int) object {
	return object{
		"type": "bridge", "bridge": fmt.Sprintf("mus%d-%d", n.id, i), "isGateway": true,
		"ipam": object{"type": "host-local", "subnet": fmt.Sprintf("%s0/%d", n.subnet(i), bits)},
	}
}

// subnet is how the addresses in the node's i'th subnet begin, of four.
func (n *node) subnet(i int) string { return fmt.Sprintf("10.%d.%d.", n.id/64, n.id%64*4+i) }

// fake returns a plugin that attaches nothing and has faults, given as pairs of command and
// fault (see internal/test/process/fake).
func (n *node) fake(faults ...string) object {
	on := object{}
	for i := 0; i < len(faults); i += 2 {
		on[faults[i]] = faults[i+1]
	}
	return object{"type": "fake", "id": "fake", "dir": n.file("fake"), "on": on, "code": 111}
}

// behind returns a fake that lets plugin do its work.
func (n *node) behind(plugin object, faults ...string) object {
	conf := n.fake(faults...)
	conf["inner"] = built(fmt.Sprint(plugin["type"]))
	for k, v := range plugin {
		if k != "type" {
			conf[k] = v
		}
	}
	return conf
}

// cure ends the faults of all fakes.
func (n *node) cure() {
	n.Helper()
	nodetest.OK(n, os.WriteFile(n.file("fake", "cured"), nil, 0o600))
}

// fifo opens a FIFO of the fakes for reading and writing, so that opening never blocks.
func (n *node) fifo(name string, use func(*os.File) error) {
	n.Helper()
	f, err := os.OpenFile(n.file("fake", name), os.O_RDWR, 0)
	nodetest.OK(n, err)
	n.Cleanup(func() { _ = f.Close() })
	nodetest.OK(n, errors.Join(f.SetDeadline(time.Now().Add(2*time.Minute)), use(f)))
}

// ready waits until a fake hangs or waits for its gate, and open opens the gate.
func (n *node) ready() {
	n.Helper()
	n.fifo("ready", func(f *os.File) error { _, err := f.Read(make([]byte, 1)); return err })
}

func (n *node) open() {
	n.Helper()
	n.fifo("gate", func(f *os.File) error { _, err := f.WriteString("x"); return err })
}

// fakes returns the processes of the fakes that run.
func (n *node) fakes() (pids []int) {
	n.Helper()
	text, err := os.ReadFile(n.file("fake", "log"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	nodetest.OK(n, err)
	for line := range bytes.Lines(text) {
		var c struct {
			PID     int
			Started string
		}
		if !bytes.HasSuffix(line, []byte("\n")) {
			break // it is being written
		}
		nodetest.OK(n, json.Unmarshal(line, &c))
		if !nodetest.Ended(c.PID, c.Started) {
			pids = append(pids, c.PID)
		}
	}
	return pids
}

// A command is one that the runtime has started.
type command struct {
	cmd            *exec.Cmd
	stdout, stderr bytes.Buffer
	ended          func() // called when it has ended
}

// exec starts a program with exactly env and stdin.
func (n *node) exec(env map[string]string, stdin []byte, path string, args ...string) *command {
	n.Helper()
	ctx, cancel := context.WithTimeout(n.Context(), 2*time.Minute) // no runtime waits for longer
	n.Cleanup(cancel)
	c := &command{cmd: exec.CommandContext(ctx, path, args...), ended: func() {}}
	for _, k := range slices.Sorted(maps.Keys(env)) {
		c.cmd.Env = append(c.cmd.Env, k+"="+env[k])
	}
	c.cmd.Stdin, c.cmd.Stdout, c.cmd.Stderr = bytes.NewReader(stdin), &c.stdout, &c.stderr
	c.cmd.WaitDelay = time.Second // a plugin that the subject has left behind holds the pipes
	nodetest.OK(n, c.cmd.Start())
	return c
}

// wait returns whether the command has succeeded.
func (c *command) wait() error {
	defer c.ended()
	err := c.cmd.Wait()
	if failed := (*exec.ExitError)(nil); errors.As(err, &failed) {
		return fmt.Errorf("%w: %s%s", err, c.stdout.String(), c.stderr.String())
	}
	return nil // or a plugin that was left behind holds the pipes
}

// kill kills the subject, but not the plugins that it runs, as a runtime does at its deadline.
func (n *node) kill(c *command) {
	n.Helper()
	nodetest.OK(n, c.cmd.Process.Kill())
	_ = c.wait() // killed
}

// run runs a command for p.
func (n *node) run(name string, p *pod) error {
	n.Helper()
	c := n.start(name, p)
	err := c.wait()
	if name == "ADD" && err == nil {
		p.result = bytes.Clone(c.stdout.Bytes())
	}
	n.Logf("%s %s %s: %v", n.subject.name, name, p.id, err)
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
	for _, dir := range append(glob(fmt.Sprintf("/var/lib/cni/networks/museum%d-*", n.id)), glob(n.file("leases", "*"))...) {
		for _, path := range glob(dir + "/10.*") {
			if owner, err := os.ReadFile(path); err == nil && strings.HasPrefix(string(owner), p.id) {
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
	return hosttest.Interfaces(n, p.netns)
}

// rules returns the rules for p: those with its ID or one of these addresses of it.
func (n *node) rules(p *pod, addresses ...string) (list []string) {
	n.Helper()
	words := append([]string{p.id}, addresses...)
	for _, table := range []string{"filter", "nat"} {
		cmd := exec.CommandContext(n.Context(), "iptables-save", "-t", table)
		cmd.Env = []string{"PATH=" + systemPath}
		text, err := cmd.Output()
		nodetest.OK(n, err)
		for line := range strings.Lines(string(text)) {
			fields := strings.FieldsFunc(line, func(c rune) bool { return strings.ContainsRune(" \n:/\\\"", c) })
			if slices.ContainsFunc(words, func(w string) bool { return slices.Contains(fields, w) }) {
				list = append(list, strings.TrimSpace(line))
			}
		}
	}
	return list
}

// state returns the files of the subject's state about p.
func (n *node) state(p *pod) (paths []string) {
	n.Helper()
	defer n.lockCache()()
	err := filepath.WalkDir(n.subject.state(n), func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() && strings.Contains(filepath.Base(path), p.id) && !strings.HasSuffix(path, "lock") {
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
	if len(n.rules(p, addresses...)) > 0 {
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
