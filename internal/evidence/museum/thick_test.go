package museum

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/metacni/metacni/delegate/conform/host"
	nodetest "github.com/metacni/metacni/internal/test/node"
	"github.com/metacni/metacni/internal/test/process"
)

// burst attaches as many pods at once as a node has. The daemon's own memory stays below 128 MiB,
// twice what its manifest requests.
func (n *node) burst() {
	n.Helper()
	n.crash()
	n.boot(nil)
	all := n.crowd(110, n.fake())
	n.waitAll("ADD", n.startAll("ADD", all))
	n.waitAll("DEL", n.startAll("DEL", all))
	if n.memory(n.daemon.Cmd.Process.Pid) > 128<<10 {
		n.lose("memory above 128 MiB")
	}
	for _, p := range all {
		n.left(p)
	}
}

// crowd returns count pods with a network of one plugin.
func (n *node) crowd(count int, plugin object) (all []*pod) {
	n.Helper()
	for range count {
		all = append(all, n.pod(n.network(0, plugin)))
	}
	return all
}

func (n *node) startAll(name string, pods []*pod) map[*pod]*command {
	n.Helper()
	all := make(map[*pod]*command)
	for _, p := range pods {
		all[p] = n.start(name, p)
	}
	return all
}

// waitAll waits for commands. The runtime tries again what had no turn in time.
func (n *node) waitAll(name string, all map[*pod]*command) {
	n.Helper()
	for p, c := range all {
		if c.wait() != nil {
			n.must(name, p)
		}
	}
}

// memory returns the peak of a process's resident memory in kB.
func (n *node) memory(pid int) int {
	n.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	nodetest.OK(n, err)
	_, rest, _ := strings.Cut(string(text), "VmHWM:")
	kB, err := strconv.Atoi(strings.Fields(rest)[0])
	nodetest.OK(n, err)
	n.Logf("peak of the daemon: %d kB", kB)
	return kB
}

// replaceShim installs the shim, as the daemon's pod does at its start, while the shim waits
// for a daemon that does not answer.
func (n *node) replaceShim() {
	n.Helper()
	bin := n.File("bin")
	nodetest.OK(n, os.Mkdir(bin, 0o700))
	install := func() error {
		return n.exec(map[string]string{"PATH": process.Path}, nil, built("multinetd"), "--install-shim", bin).wait()
	}
	nodetest.OK(n, install())
	before, err := os.Stat(filepath.Join(bin, "multinet-shim"))
	nodetest.OK(n, err)
	n.subject.path = filepath.Join(bin, "multinet-shim")

	nodetest.OK(n, n.daemon.Cmd.Process.Signal(unix.SIGSTOP))
	p := n.pod(n.network(0, n.bridge(0, 24)))
	add := n.start("ADD", p)
	if err := install(); err != nil {
		n.Log(err)
		n.lose("the shim cannot be replaced")
	}
	after, err := os.Stat(n.subject.path)
	nodetest.OK(n, err)
	if os.SameFile(before, after) {
		n.lose("the shim is written where it runs")
	}
	nodetest.OK(n, n.daemon.Cmd.Process.Signal(unix.SIGCONT))
	if add.wait() != nil {
		n.must("ADD", p) // the runtime tries again
	}
	n.attached(p, "eth0")
	n.must("DEL", p)
	n.left(p)
}

// publish starts the daemon again, which now publishes a network in front of the primary one, a
// bridge with more plugins behind it. Pods can select the network "second".
func (n *node) publish(more ...object) {
	n.Helper()
	nodetest.OK(n, os.MkdirAll(n.File("cni"), 0o700))
	n.Write(n.primary(more...), "cni", "10-primary.conflist")
	second := n.network(1, n.bridge(1, 24))
	second["name"] = "second"
	n.Write(second, "net.d", "second.conflist")
	n.crash()
	n.serve()
}

func (n *node) primary(more ...object) object {
	return n.network(0, append([]object{n.bridge(0, 24)}, more...)...)
}

func (n *node) serve() {
	n.Helper()
	n.boot(object{
		"multusConfigFile": "auto", "cniConfigDir": n.File("cni"), "confDir": n.File("net.d"), "binDir": host.Programs(),
		"network": object{"delQueueWait": "0s"},
	})
	nodetest.Until(n, "the daemon publishes", func() bool { return len(n.published()) == 2 })
}

// published returns the configurations of the runtime, in its order.
func (n *node) published() []string { return glob(n.File("cni", "*.conflist")) }

// A list is a configuration of the runtime.
type list struct {
	CNIVersion, Name string
	Plugins          []object
}

// first returns the configuration that the runtime uses: the first one.
func (n *node) first() (l list) {
	n.Helper()
	text, err := os.ReadFile(n.published()[0])
	nodetest.OK(n, err)
	nodetest.OK(n, json.Unmarshal(text, &l))
	return l
}

// startPlugin starts the i'th plugin of a configuration as libcni does.
func (n *node) startPlugin(name string, p *pod, l list, i int) *command {
	n.Helper()
	plugin := l.Plugins[i]
	plugin["name"], plugin["cniVersion"] = l.Name, l.CNIVersion
	plugin["runtimeConfig"] = object{"io.kubernetes.cri.pod-annotations": object{"k8s.v1.cni.cncf.io/networks": "second"}}
	if p.Result != nil {
		plugin["prevResult"] = p.Result
	}
	stdin, err := json.Marshal(plugin)
	nodetest.OK(n, err)
	return n.exec(n.Env(name, &p.Pod), stdin, built(fmt.Sprint(plugin["type"])))
}

// addFirst attaches p with the runtime's first configuration, and detaches it.
func (n *node) addFirst(p *pod, interfaces ...string) {
	n.Helper()
	l := n.first()
	for i := range l.Plugins {
		c := n.startPlugin("ADD", p, l, i)
		if err := c.wait(); err != nil {
			n.Log(err)
			n.lose("ADD fails")
			return
		}
		p.Result = c.stdout
	}
	if !slices.Equal(n.interfaces(p), interfaces) {
		n.lose("a pod runs without its second network")
	}
	for i := range slices.Backward(l.Plugins) {
		if n.startPlugin("DEL", p, l, i).wait() != nil {
			n.lose("DEL fails")
		}
	}
	n.left(p)
}

// window restarts the daemon while a pod starts.
func (n *node) window() {
	n.Helper()
	n.publish()
	for _, stop := range []func(){
		func() { nodetest.OK(n, n.daemon.Cmd.Process.Signal(unix.SIGTERM)); <-n.daemon.Done; n.crash() },
		n.crash,
	} {
		stop()
		p := n.pod()
		l := n.first()
		add := n.startPlugin("ADD", p, l, 0) // which waits
		n.serve()
		if add.wait() == nil && !slices.Equal(n.interfaces(p), []string{"eth0", "net1"}) {
			n.lose("a pod runs without its second network")
		}
		if n.startPlugin("DEL", p, l, 0).wait() != nil {
			n.lose("DEL fails")
		}
		n.left(p)
		n.addFirst(n.pod(), "eth0", "net1")
	}
}

// injected lets another agent add its plugin to every configuration of the runtime.
func (n *node) injected() {
	n.Helper()
	n.publish()
	agent := n.fake()
	l := n.first()
	n.Write(object{"cniVersion": l.CNIVersion, "name": l.Name, "plugins": append(l.Plugins, agent)}, "cni", filepath.Base(n.published()[0]))
	n.Write(n.primary(agent), "cni", "10-primary.conflist")
	nodetest.Until(n, "the published network is the daemon's again, with the plugin in the primary one", func() bool {
		text, err := json.Marshal(n.first())
		nodetest.OK(n, err)
		return len(n.first().Plugins) == 1 && bytes.Contains(text, []byte(`"fake"`))
	})
	n.addFirst(n.pod(), "eth0", "net1")
	log, err := os.ReadFile(n.File("fake", "log"))
	nodetest.OK(n, err)
	if times := bytes.Count(log, []byte(`"command":"ADD"`)); times != 1 {
		n.lose("the plugin runs %d times", times)
	}
}

// fullDisk fills the disk of the subject's state, and returns what empties it.
func (n *node) fullDisk() (empty func()) {
	n.Helper()
	dir := n.subject.state(n)
	if n.subject.cnitool() { // its directory is everybody's
		cacheDisk.Lock()
		n.alone = true
		n.Cleanup(cacheDisk.Unlock)
	}
	nodetest.OK(n, os.MkdirAll(dir, 0o700))
	nodetest.OK(n, unix.Mount("tmpfs", dir, "tmpfs", 0, "size=64k"))
	n.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	filler := filepath.Join(dir, "filler")
	f, err := os.Create(filler)
	nodetest.OK(n, err)
	for err == nil {
		_, err = f.Write(make([]byte, os.Getpagesize()))
	}
	nodetest.OK(n, f.Close())
	return func() { nodetest.OK(n, os.Remove(filler)) }
}
