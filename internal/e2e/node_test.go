package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/metacni/metacni/examples/lab/host"
	"github.com/metacni/metacni/internal/dump"
	"github.com/metacni/metacni/internal/hosttest"
	nodetest "github.com/metacni/metacni/internal/test/node"
)

// nodes counts the nodes, so that no two share an address or a name.
var nodes atomic.Int32

// A node is one test's own part of the private host: a directory, a range of
// addresses, and names that contain its number.
type node struct {
	testing.TB
	id   int
	dir  string // for configurations and state, empty
	bin  string // the plugins
	path string // PATH of the plugins, which run iptables
	from string // the release of multinet, its shim and its daemon: "" for ours, or previous
	pods int
	scan bool // whether the kernel has no file handles of namespaces, as before Linux 6.18

	vanished bool // whether the kernel is still deleting a namespace
	logged   bool // whether a daemon's log has been shown
}

// newNode returns a new node. Without a private host it skips t, or fails it
// if METACNI_E2E requires one. Tests run in parallel.
func newNode(t *testing.T) *node {
	t.Helper()
	hosttest.Need(t)
	t.Parallel()
	return nodeIn(t, "/run")
}

// nodeIn returns a new node whose directory is in root.
func nodeIn(tb testing.TB, root string) *node {
	tb.Helper()
	n := &node{TB: tb, id: int(nodes.Add(1)), bin: hosttest.Programs(), path: "/usr/sbin:/usr/bin:/sbin:/bin"}
	n.dir = fmt.Sprintf("%s/n%d", root, n.id)
	for _, sub := range []string{"net.d", "fake/live"} {
		nodetest.OK(tb, os.MkdirAll(filepath.Join(n.dir, sub), 0o700))
	}
	for _, fifo := range []string{"ready", "gate"} {
		nodetest.OK(tb, unix.Mkfifo(n.file("fake", fifo), 0o600))
	}
	return n
}

// file returns a path in the node's directory.
func (n *node) file(elem ...string) string {
	return filepath.Join(append([]string{n.dir}, elem...)...)
}

// name returns s with the node's number: a name of a network or an interface
// that no other node uses.
func (n *node) name(s string) string { return fmt.Sprintf("%s%d", s, n.id) }

// net returns the first three bytes of the node's i'th address range, of 16.
func (n *node) net(i int) string { return fmt.Sprintf("10.%d.%d", n.id%256, n.id/256*16+i) }

// pod returns a new container with a network namespace. Its network
// configuration is conf; nothing is attached yet.
func (n *node) pod(conf object) *pod {
	n.Helper()
	n.pods++
	id := fmt.Sprintf("n%dc%d", n.id, n.pods)
	netns, err := host.NewNS(id)
	nodetest.OK(n, err)
	n.Cleanup(func() { _ = host.RemoveNS(netns) })
	return &pod{id: id, netns: netns, ifname: "eth0", conf: conf}
}

// vanish removes the namespace of p, as a reboot or a crashed runtime does.
func (n *node) vanish(p *pod) {
	n.Helper()
	nodetest.OK(n, host.RemoveNS(p.netns))
	n.vanished = true
}

// multinet returns a configuration of multinet that delegates to delegates.
func (n *node) multinet(version string, delegates ...object) object {
	return object{
		"cniVersion": version, "name": n.name("multi"), "type": "multinet",
		"capabilities": object{"io.kubernetes.cri.pod-annotations": true},
		"delegates":    delegates,
		"cniDir":       n.file("state"), "confDir": n.file("net.d"), "binDir": n.bin,
	}
}

// bridge returns a configuration of bridge and host-local with the node's i'th
// bridge and address range.
func (n *node) bridge(i int) object {
	return object{
		"type": "bridge", "bridge": n.name(fmt.Sprintf("br%d-", i)), "isGateway": true,
		"ipam": object{
			"type": "host-local", "subnet": n.net(i) + ".0/24",
			"routes": []object{{"dst": "0.0.0.0/0"}},
		},
	}
}

// network writes a network configuration that pods can select by name.
func (n *node) network(name string, conf object) {
	n.Helper()
	conf["name"] = name
	ext := ".conf"
	if conf["plugins"] != nil {
		ext = ".conflist"
	}
	n.write(conf, "net.d", name+ext)
}

// write writes v as JSON into a file of the node.
func (n *node) write(v any, elem ...string) {
	n.Helper()
	text, err := json.Marshal(v)
	nodetest.OK(n, errors.Join(err, os.WriteFile(n.file(elem...), text, 0o600)))
}

// mkdir makes directories of the node.
func (n *node) mkdir(names ...string) {
	n.Helper()
	for _, name := range names {
		nodetest.OK(n, os.MkdirAll(n.file(name), 0o700))
	}
}

// needs skips the test if the kernel cannot create links of l's kind.
func (n *node) needs(l netlink.Link) {
	n.Helper()
	l.Attrs().Name = n.name("probe")
	if err := host.Offers(l); err != nil {
		n.Skip(err)
	}
}

// program returns the path of a program that the plugins run, or skips the test.
func (n *node) program(name string) string {
	n.Helper()
	for _, dir := range filepath.SplitList(n.path) {
		if path, err := exec.LookPath(filepath.Join(dir, name)); err == nil {
			return path
		}
	}
	n.Skipf("needs %s, which a plugin runs", name)
	return ""
}

// copyProgram copies a program into a directory of the node and returns its path.
func (n *node) copyProgram(name, dir string) string {
	n.Helper()
	n.mkdir(dir)
	text, err := os.ReadFile(built(name))
	nodetest.OK(n, err)
	// A child that another test forks now would inherit the open file, and executing it
	// would fail with ETXTBSY.
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	nodetest.OK(n, os.WriteFile(n.file(dir, name), text, 0o755))
	return n.file(dir, name)
}

// list returns the paths of all files and directories below dir. A missing directory
// has none.
func (n *node) list(dir string) (names []string) {
	n.Helper()
	err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err == nil && path != dir {
			names = append(names, strings.TrimPrefix(path, dir+"/"))
		}
		return err
	})
	nodetest.OK(n, err)
	return names
}

// leases lists the addresses that host-local has reserved for containers of
// this node.
func (n *node) leases() (list []string) {
	n.Helper()
	for _, name := range n.list("/var/lib/cni/networks") {
		owner, err := os.ReadFile(filepath.Join("/var/lib/cni/networks", name))
		if err == nil && strings.HasPrefix(string(owner), fmt.Sprintf("n%dc", n.id)) {
			list = append(list, filepath.Base(name)+" "+strings.Join(strings.Fields(string(owner)), " "))
		}
	}
	return list
}

// interfaces returns the names of p's interfaces but lo.
func (n *node) interfaces(p *pod) []string {
	n.Helper()
	return hosttest.Interfaces(n, p.netns)
}

// ports lists the interfaces on the host that are ports of this node's
// bridges.
func (n *node) ports() (names []string) {
	n.Helper()
	links, err := dump.Whole(netlink.LinkList)
	nodetest.OK(n, err)
	ours := map[int]bool{}
	for _, l := range links {
		if l.Type() == "bridge" && strings.HasSuffix(l.Attrs().Name, fmt.Sprintf("-%d", n.id)) {
			ours[l.Attrs().Index] = true
		}
	}
	for _, l := range links {
		if ours[l.Attrs().MasterIndex] {
			names = append(names, l.Attrs().Name)
		}
	}
	return names
}

// nothingLeft fails the test if anything is left of any container: markers of
// fakes, reserved addresses, interfaces on the host, or state.
func (n *node) nothingLeft() {
	n.Helper()
	if n.vanished {
		// The kernel deletes the interfaces of a namespace later.
		n.until("the kernel has deleted what was in a namespace", func() bool { return len(n.ports()) == 0 })
	}
	nodetest.Equal(n, "attached by fakes", n.live(), nil)
	n.neverBeside()
	nodetest.Equal(n, "leased addresses", n.leases(), nil)
	nodetest.Equal(n, "interfaces on the host", n.ports(), nil)
	nodetest.Equal(n, "state of multinet", n.state(), nil)
	nodetest.Equal(n, "state of flannel", n.list(n.file("flannel")), nil)
}

// until waits until cond is true. Another process makes it so.
func (n *node) until(what string, cond func() bool) {
	n.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	limit := time.After(2 * time.Minute)
	for !cond() {
		select {
		case <-tick.C:
		case <-limit:
			n.Fatalf("waited too long until %s", what)
		}
	}
}

// deleteLink deletes an interface of p without telling any plugin.
func (n *node) deleteLink(p *pod, name string) {
	n.Helper()
	err := host.Do(p.netns, func() error {
		l, err := netlinksafe.LinkByName(name)
		if err != nil {
			return err
		}
		return netlink.LinkDel(l)
	})
	nodetest.OK(n, err)
}
