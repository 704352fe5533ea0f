package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/metacni/metacni/examples/lab/host"
	"github.com/metacni/metacni/internal/hosttest"
)

// worlds counts the worlds, so that no two share an address or a name.
var worlds atomic.Int32

// A world is one test's own part of the private host: a directory, a range of
// addresses, and names that contain its number.
type world struct {
	t    testing.TB
	n    int
	dir  string // for configurations and state, empty
	bin  string // the plugins
	path string // PATH of the plugins, which run iptables
	pods int

	vanished bool // whether the kernel is still deleting a namespace
	logged   bool // whether a daemon's log has been shown
}

// newWorld returns a new world. Without a private host it skips t, or fails it
// if METACNI_E2E requires one. Tests run in parallel, benchmarks do not.
func newWorld(t testing.TB) *world {
	t.Helper()
	hosttest.Need(t)
	if test, ok := t.(*testing.T); ok {
		test.Parallel()
	}
	w := &world{t: t, n: int(worlds.Add(1)), bin: hosttest.Programs(), path: "/usr/sbin:/usr/bin:/sbin:/bin"}
	w.dir = fmt.Sprintf("/run/w%d", w.n)
	for _, sub := range []string{"net.d", "fake/live"} {
		if err := os.MkdirAll(filepath.Join(w.dir, sub), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for _, fifo := range []string{"ready", "gate"} {
		if err := unix.Mkfifo(w.file("fake", fifo), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return w
}

// file returns a path in the world's directory.
func (w *world) file(elem ...string) string {
	return filepath.Join(append([]string{w.dir}, elem...)...)
}

// name returns s with the world's number: a name of a network or an interface
// that no other world uses.
func (w *world) name(s string) string { return fmt.Sprintf("%s%d", s, w.n) }

// net returns the first three bytes of the world's i'th address range, of 16.
func (w *world) net(i int) string { return fmt.Sprintf("10.%d.%d", w.n%256, w.n/256*16+i) }

// pod returns a new container with a network namespace. Its network
// configuration is conf; nothing is attached yet.
func (w *world) pod(conf object) *pod {
	w.t.Helper()
	w.pods++
	id := fmt.Sprintf("w%dc%d", w.n, w.pods)
	netns, err := host.NewNS(id)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = host.RemoveNS(netns) })
	return &pod{id: id, netns: netns, ifname: "eth0", conf: conf}
}

// vanish removes the namespace of p, as a reboot or a crashed runtime does.
func (w *world) vanish(p *pod) {
	w.t.Helper()
	if err := host.RemoveNS(p.netns); err != nil {
		w.t.Fatal(err)
	}
	w.vanished = true
}

// multinet returns a configuration of multinet that delegates to delegates.
func (w *world) multinet(version string, delegates ...object) object {
	return object{
		"cniVersion": version, "name": w.name("multi"), "type": "multinet",
		"capabilities": object{"io.kubernetes.cri.pod-annotations": true},
		"delegates":    delegates,
		"cniDir":       w.file("state"), "confDir": w.file("net.d"), "binDir": w.bin,
	}
}

// bridge returns a configuration of bridge and host-local with the world's i'th
// bridge and address range.
func (w *world) bridge(i int) object {
	return object{
		"type": "bridge", "bridge": w.name(fmt.Sprintf("br%d-", i)), "isGateway": true,
		"ipam": object{
			"type": "host-local", "subnet": w.net(i) + ".0/24",
			"routes": []object{{"dst": "0.0.0.0/0"}},
		},
	}
}

// network writes a network configuration that pods can select by name.
func (w *world) network(name string, conf object) {
	w.t.Helper()
	conf["name"] = name
	ext := ".conf"
	if conf["plugins"] != nil {
		ext = ".conflist"
	}
	w.write(conf, "net.d", name+ext)
}

func (w *world) write(v any, elem ...string) {
	w.t.Helper()
	text, err := json.Marshal(v)
	if err != nil {
		w.t.Fatal(err)
	}
	if err := os.WriteFile(w.file(elem...), text, 0o600); err != nil {
		w.t.Fatal(err)
	}
}

// needs skips the test if the kernel cannot create links of l's kind.
func (w *world) needs(l netlink.Link) {
	w.t.Helper()
	l.Attrs().Name = w.name("probe")
	if err := host.Offers(l); err != nil {
		w.t.Skip(err)
	}
}

// needsProgram skips the test if a program that the plugins run is missing.
func (w *world) needsProgram(names ...string) {
	w.t.Helper()
	for _, name := range names {
		if !slices.ContainsFunc(filepath.SplitList(w.path), func(dir string) bool {
			_, err := exec.LookPath(filepath.Join(dir, name))
			return err == nil
		}) {
			w.t.Skipf("needs %s, which a plugin runs", name)
		}
	}
}

// list returns the paths of all files and directories below dir. A missing directory
// has none.
func (w *world) list(dir string) (names []string) {
	w.t.Helper()
	err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err == nil && path != dir {
			names = append(names, strings.TrimPrefix(path, dir+"/"))
		}
		return err
	})
	if err != nil {
		w.t.Fatal(err)
	}
	return names
}

// leases lists the addresses that host-local has reserved for containers of
// this world.
func (w *world) leases() (list []string) {
	w.t.Helper()
	for _, name := range w.list("/var/lib/cni/networks") {
		owner, err := os.ReadFile(filepath.Join("/var/lib/cni/networks", name))
		if err == nil && strings.HasPrefix(string(owner), fmt.Sprintf("w%dc", w.n)) {
			list = append(list, filepath.Base(name)+" "+strings.Join(strings.Fields(string(owner)), " "))
		}
	}
	return list
}

// interfaces lists the names of p's interfaces without lo.
func (w *world) interfaces(p *pod) (names []string) {
	w.t.Helper()
	ifs, err := host.Interfaces(p.netns)
	if err != nil {
		w.t.Fatal(err)
	}
	for _, i := range ifs {
		if i.Name != "lo" {
			names = append(names, i.Name)
		}
	}
	slices.Sort(names)
	return names
}

// ports lists the interfaces on the host that are ports of this world's
// bridges.
func (w *world) ports() (names []string) {
	w.t.Helper()
	links, err := netlinksafe.LinkList()
	if err != nil {
		w.t.Fatal(err)
	}
	ours := map[int]bool{}
	for _, l := range links {
		if l.Type() == "bridge" && strings.HasSuffix(l.Attrs().Name, fmt.Sprintf("-%d", w.n)) {
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

// same fails the test unless want and got are equal. Nil and empty slices are.
func same[T any](t testing.TB, what string, want, got T) {
	t.Helper()
	if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

// nothingLeft fails the test if anything is left of any container: markers of
// fakes, reserved addresses, interfaces on the host, or state.
func (w *world) nothingLeft() {
	w.t.Helper()
	if w.vanished {
		// The kernel deletes the interfaces of a namespace later.
		w.until("the kernel has deleted what was in a namespace", func() bool { return len(w.ports()) == 0 })
	}
	same(w.t, "attached by fakes", nil, w.live())
	w.neverBeside()
	same(w.t, "leased addresses", nil, w.leases())
	same(w.t, "interfaces on the host", nil, w.ports())
	same(w.t, "state of multinet", nil, w.state())
	same(w.t, "state of flannel", nil, w.list(w.file("flannel")))
}

// until waits until cond is true. Another process makes it so.
func (w *world) until(what string, cond func() bool) {
	w.t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	limit := time.After(2 * time.Minute)
	for !cond() {
		select {
		case <-tick.C:
		case <-limit:
			w.t.Fatalf("waited too long until %s", what)
		}
	}
}

// number returns a JSON number spelled s.
func number(s string) json.Number { return json.Number(s) }

// key returns the value of a key of a JSON object, byte for byte.
func (w *world) key(text json.RawMessage, name string) string {
	w.t.Helper()
	var keys map[string]json.RawMessage
	if err := json.Unmarshal(text, &keys); err != nil {
		w.t.Fatal(err)
	}
	return string(keys[name])
}

// private gives the world a plugin directory of its own that holds only a copy
// of the plugin name.
func (w *world) private(name string) {
	w.t.Helper()
	shared := hosttest.Programs()
	w.bin = w.file("bin")
	if err := os.MkdirAll(w.bin, 0o700); err != nil {
		w.t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(shared, name))
	if err != nil {
		w.t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(w.bin, name), text, 0o700); err != nil {
		w.t.Fatal(err)
	}
}

// deleteLink deletes an interface of p without telling any plugin.
func (w *world) deleteLink(p *pod, name string) {
	w.t.Helper()
	err := host.Do(p.netns, func() error {
		l, err := netlinksafe.LinkByName(name)
		if err != nil {
			return err
		}
		return netlink.LinkDel(l)
	})
	if err != nil {
		w.t.Fatal(err)
	}
}

// unread runs a plugin that finds its stdout closed when it prints the result,
// and returns its exit status. The plugin's delegate must wait for the gate.
func (w *world) unread(command string, p *pod) int {
	w.t.Helper()
	r, wr, err := os.Pipe()
	if err != nil {
		w.t.Fatal(err)
	}
	cmd := exec.Command(built(fmt.Sprint(p.conf["type"])))
	cmd.Env = []string{
		"CNI_COMMAND=" + command, "CNI_CONTAINERID=" + p.id, "CNI_NETNS=" + p.netns,
		"CNI_IFNAME=" + p.ifname, "CNI_PATH=" + w.bin,
	}
	stdin, err := json.Marshal(p.conf)
	if err != nil {
		w.t.Fatal(err)
	}
	cmd.Stdin, cmd.Stdout = strings.NewReader(string(stdin)), wr
	if err := cmd.Start(); err != nil {
		w.t.Fatal(err)
	}
	_ = wr.Close()
	_ = r.Close()
	w.ready()
	w.open()
	_ = cmd.Wait()
	return cmd.ProcessState.ExitCode()
}
