package process

import (
	"bytes"
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

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/metacni/metacni/delegate/conform/host"
	"github.com/metacni/metacni/internal/dump"
	nodetest "github.com/metacni/metacni/internal/test/node"
)

// Object is a JSON object.
type Object = map[string]any

// Path is the PATH of plugins, which run iptables and nft.
const Path = "/usr/sbin:/usr/bin:/sbin:/bin"

// A Node is one test's own part of the private host: a directory, a range of addresses, and names
// that contain its number.
type Node struct {
	testing.TB
	ID  int
	Dir string // short, for sockets
	Bin string // directory of the plugins
	// Begin starts commands in place of [exec.Cmd.Start], if it is not nil.
	Begin func(*exec.Cmd) error

	pods  atomic.Int32
	shown bool // whether the log of a daemon has been shown
}

// NewNode returns a node, whose directory is in root. Its number is the first that no other node
// there has.
func NewNode(tb testing.TB, root string) *Node {
	tb.Helper()
	host.Need(tb)
	n := &Node{TB: tb, Bin: host.Programs()}
	for err := fs.ErrExist; errors.Is(err, fs.ErrExist); {
		n.ID++
		n.Dir = fmt.Sprintf("%s/n%d", root, n.ID)
		if err = os.Mkdir(n.Dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			tb.Fatal(err)
		}
	}
	n.Mkdir("net.d", "fake/live")
	for _, fifo := range []string{"ready", "gate"} {
		nodetest.OK(tb, unix.Mkfifo(n.File("fake", fifo), 0o600))
	}
	return n
}

// File returns a path in the node's directory.
func (n *Node) File(elem ...string) string {
	return filepath.Join(append([]string{n.Dir}, elem...)...)
}

// Numbered returns s with the node's number: a name that no other node uses.
func (n *Node) Numbered(s string) string { return fmt.Sprintf("%s%d", s, n.ID) }

// Net returns the first three bytes of the node's i'th address range, of 16.
func (n *Node) Net(i int) string { return fmt.Sprintf("10.%d.%d", n.ID%256, n.ID/256*16+i) }

// Bridge returns a configuration of bridge and host-local with the node's i'th bridge and range.
func (n *Node) Bridge(i int) Object {
	return Object{
		"type": "bridge", "bridge": n.Numbered(fmt.Sprintf("br%d-", i)), "isGateway": true,
		"ipam": Object{"type": "host-local", "subnet": n.Net(i) + ".0/24"},
	}
}

// Ports lists the interfaces on the host that are ports of the node's bridges.
func (n *Node) Ports() (names []string) {
	n.Helper()
	links, err := dump.Whole(netlink.LinkList)
	nodetest.OK(n, err)
	ours := map[int]bool{}
	for _, l := range links {
		ours[l.Attrs().Index] = l.Type() == "bridge" && strings.HasSuffix(l.Attrs().Name, fmt.Sprintf("-%d", n.ID))
	}
	for _, l := range links {
		if ours[l.Attrs().MasterIndex] {
			names = append(names, l.Attrs().Name)
		}
	}
	return names
}

// Rules returns, sorted, the rules and chains of iptables that contain one of words. An address
// that ends with a dot stands for its range.
func (n *Node) Rules(words ...string) (list []string) {
	n.Helper()
	save, err := exec.LookPath("/usr/sbin/iptables-save")
	if err != nil {
		return nil // then no plugin can make rules
	}
	for _, table := range []string{"filter", "nat"} {
		text, err := exec.CommandContext(n.Context(), save, "-t", table).Output()
		nodetest.OK(n, err)
		for line := range strings.Lines(string(text)) {
			apart := func(c rune) bool { return strings.ContainsRune(" \t\n:/\\\"", c) } // an address from its mask and port
			if slices.ContainsFunc(strings.FieldsFunc(line, apart), func(got string) bool {
				return slices.ContainsFunc(words, func(word string) bool {
					return got == word || strings.HasSuffix(word, ".") && strings.HasPrefix(got, word)
				})
			}) {
				line, _, _ = strings.Cut(line, " [") // counters
				list = append(list, table+": "+strings.TrimSpace(line))
			}
		}
	}
	slices.Sort(list)
	return list
}

// Mkdir makes directories of the node.
func (n *Node) Mkdir(names ...string) {
	n.Helper()
	for _, name := range names {
		nodetest.OK(n, os.MkdirAll(n.File(name), 0o700))
	}
}

// Write writes v as JSON into a file of the node, at once: somebody may read it.
func (n *Node) Write(v any, elem ...string) {
	n.Helper()
	text, err := json.Marshal(v)
	temp := n.File(".written")
	nodetest.OK(n, errors.Join(err, os.WriteFile(temp, text, 0o600), os.Rename(temp, n.File(elem...))))
}

// List returns the paths below a directory. A missing directory has none.
func (n *Node) List(dir string) []string {
	n.Helper()
	return nodetest.Files(n, dir)
}

// Until waits until cond is true. Another process makes it so.
func (n *Node) Until(what string, cond func() bool) {
	n.Helper()
	nodetest.Until(n, what, cond)
}

// A Pod is one attachment as the runtime knows it.
type Pod struct {
	ID, NetNS, IfName    string
	Namespace, Name, UID string
	Conf                 Object            // network configuration with name, version and type
	Annotations          map[string]string // of the Kubernetes pod
	Result               json.RawMessage   // of ADD
}

// Pod returns a new container with a network namespace. Nothing is attached yet.
func (n *Node) Pod(conf Object) *Pod {
	n.Helper()
	id := fmt.Sprintf("n%dc%d", n.ID, n.pods.Add(1))
	netns, err := host.NewNS(id)
	nodetest.OK(n, err)
	n.Cleanup(func() { _ = host.RemoveNS(netns) })
	return &Pod{ID: id, NetNS: netns, IfName: "eth0", Namespace: "default", Name: id, UID: "4f8c", Conf: conf}
}

// Pods is how many pods the node has made.
func (n *Node) Pods() int { return int(n.pods.Load()) }

// Fake returns a configuration of the fake plugin (see package fake). on lists its faults as pairs
// of command and fault.
func (n *Node) Fake(id string, on ...string) Object {
	faults := Object{}
	for i := 0; i+1 < len(on); i += 2 {
		faults[on[i]] = on[i+1]
	}
	return Object{"type": "fake", "id": id, "dir": n.File("fake"), "on": faults, "code": 111}
}

// Behind returns conf with a fake in front of its plugin. The fake logs its steps, fails or is
// killed, and lets the plugin do the work.
func (n *Node) Behind(id string, conf Object, on ...string) Object {
	front := maps.Clone(conf)
	maps.Copy(front, n.Fake(id, on...))
	front["inner"] = filepath.Join(host.Programs(), fmt.Sprint(conf["type"]))
	return front
}

// A Call is one line of the log of the fakes.
type Call struct {
	Command, ID                    string
	PID                            int
	Started                        string
	Container, IfName, NetNS, Args string
	Stdin                          json.RawMessage
}

// Runs reports whether the fake of the call has not ended.
func (c Call) Runs() bool { return !nodetest.Ended(c.PID, c.Started) }

// Calls returns the logged calls of this node's fakes.
func (n *Node) Calls() (list []Call) {
	n.Helper()
	text, err := os.ReadFile(n.File("fake", "log"))
	if !errors.Is(err, fs.ErrNotExist) {
		nodetest.OK(n, err)
	}
	for line := range bytes.Lines(text) {
		var c Call
		if bytes.HasSuffix(line, []byte("\n")) { // otherwise it is being written
			nodetest.OK(n, json.Unmarshal(line, &c))
			list = append(list, c)
		}
	}
	return list
}

// Forget empties the log of calls.
func (n *Node) Forget() {
	n.Helper()
	nodetest.OK(n, os.RemoveAll(n.File("fake", "log")))
}

// Trace fails the test unless the fakes were called in the order of want, such as "ADD a eth0".
func (n *Node) Trace(want ...string) {
	n.Helper()
	var got []string
	for _, c := range n.Calls() {
		got = append(got, strings.TrimSpace(c.Command+" "+c.ID+" "+c.IfName))
	}
	nodetest.Equal(n, "calls", got, want)
}

// Live lists what the fakes have attached and not detached.
func (n *Node) Live() []string { return n.List(n.File("fake", "live")) }

// Ready waits until a fake reports that it hangs or waits for its gate.
func (n *Node) Ready() {
	n.Helper()
	n.fifo("ready", func(f *os.File) error { _, err := f.Read(make([]byte, 1)); return err })
}

// Open lets one fake that waits for its gate continue.
func (n *Node) Open() {
	n.Helper()
	n.fifo("gate", func(f *os.File) error { _, err := f.WriteString("x"); return err })
}

// fifo opens a FIFO for reading and writing, so that opening never blocks.
func (n *Node) fifo(name string, use func(*os.File) error) {
	n.Helper()
	f, err := os.OpenFile(n.File("fake", name), os.O_RDWR, 0)
	nodetest.OK(n, err)
	n.Cleanup(func() { _ = f.Close() }) // with what was written, if nobody has read it yet
	nodetest.OK(n, errors.Join(f.SetDeadline(time.Now().Add(2*time.Minute)), use(f)))
}

// Cure stops all faults of the fakes.
func (n *Node) Cure() {
	n.Helper()
	nodetest.OK(n, os.WriteFile(n.File("fake", "cured"), nil, 0o600))
}

// Sicken ends Cure: the fakes fail again as configured.
func (n *Node) Sicken() {
	n.Helper()
	nodetest.OK(n, os.Remove(n.File("fake", "cured")))
}

// Running lists the processes of this node's fakes that have not ended.
func (n *Node) Running() (pids []int) {
	n.Helper()
	for _, c := range n.Calls() {
		if c.Runs() {
			pids = append(pids, c.PID)
		}
	}
	return pids
}

// OrphansEnd waits until no fake of this node runs. Nobody waits for a killed child of a plugin,
// so it may end a moment after the command that has killed it.
func (n *Node) OrphansEnd() {
	n.Helper()
	n.Until("no plugin runs", func() bool { return len(n.Running()) == 0 })
}

// Interfaces returns the names of the interfaces of the namespace at path, but lo, sorted.
func Interfaces(tb testing.TB, path string) (names []string) {
	tb.Helper()
	all, err := host.Interfaces(path)
	nodetest.OK(tb, err)
	for _, i := range all {
		if i.Name != "lo" {
			names = append(names, i.Name)
		}
	}
	slices.Sort(names)
	return names
}
