package runtimes

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	nodetest "github.com/metacni/metacni/internal/test/node"
	"github.com/metacni/metacni/internal/test/process"
)

// A podman is a machine with podman, whose networks are those of CNI.
type podman struct {
	*machine
	env []string
}

// noPodman says why podman cannot run a container here. It is empty if it can.
var noPodman struct {
	once sync.Once
	why  string
}

// newPodman makes a machine with podman. If podman cannot run a container here, it skips
// t, or fails it if METACNI_E2E requires podman.
func newPodman(t *testing.T) *podman {
	t.Helper()
	needs(t, missing)
	if _, err := exec.LookPath("podman"); err != nil {
		needs(t, "needs podman")
	}
	p := bootPodman(t)
	image := filepath.Join(os.Getenv(binEnv), "pause.tar")
	noPodman.once.Do(func() {
		r := p.run(p.env, "podman", "load", "-q", "-i", image)
		if r.code == 0 {
			r = p.run(p.env, "podman", "run", "--name", "probe", "-d", "--network", "none", pauseImage)
		}
		if r.code == 0 {
			r = p.run(p.env, "podman", "rm", "-f", "-t", "0", "probe")
		}
		if r.code != 0 {
			noPodman.why = "needs a podman that can run a container with networks of CNI: " + strings.TrimSpace(r.stderr)
		}
	})
	needs(t, noPodman.why)
	p.must("load", "-q", "-i", image)
	return p
}

// needs skips t, or fails it if METACNI_E2E requires everything, unless why is empty.
func needs(t *testing.T, why string) {
	t.Helper()
	if why != "" && os.Getenv(requireEnv) == "require" {
		t.Fatal(why)
	}
	if why != "" {
		t.Skip(why)
	}
}

// bootPodman makes a machine with podman's configuration.
func bootPodman(t *testing.T) *podman {
	t.Helper()
	p := &podman{machine: newMachine(t)}
	p.write("containers.conf", fmt.Sprintf(`
[containers]
cgroups = "disabled" # the machine may have no right to make any
default_sysctls = []
default_ulimits = ["nofile=1024:1024", "nproc=1024:1024"] # no more than this process has
[network]
network_backend = "cni"
cni_plugin_dirs = [%q]
network_config_dir = %q
[engine]
cgroup_manager = "cgroupfs"
events_logger = "none"
lock_type = "file"
runtime = "crun"
`, p.file("bin"), p.file("net.d")))
	p.write("storage.conf", fmt.Sprintf(`
[storage]
driver = "vfs"
graphroot = %q
runroot = "/run/containers/storage"
`, p.file("graph")))
	p.env = []string{"CONTAINERS_CONF=" + p.file("containers.conf"), "CONTAINERS_STORAGE_CONF=" + p.file("storage.conf"), "HOME=/nonexistent"}
	return p
}

// write writes a file on the disk.
func (m *machine) write(name, text string) {
	m.t.Helper()
	nodetest.OK(m.t, os.WriteFile(m.file(name), []byte(text), 0o600))
}

// script writes a plugin that is a script of the shell.
func (m *machine) script(name, text string) {
	m.t.Helper()
	text = `#!/bin/sh
cat >/dev/null
case $CNI_COMMAND in
VERSION) echo '{"cniVersion":"1.0.0","supportedVersions":["1.0.0"]}' ;;
` + text + `
esac
`
	nodetest.OK(m.t, os.WriteFile(m.file("bin", name), []byte(text), 0o700))
}

// must runs podman, which must succeed, and returns what it prints.
func (p *podman) must(args ...string) string {
	p.t.Helper()
	return p.ok(p.env, "podman", args...)
}

// start runs a container whose server answers with its name at a port of the machine.
func (p *podman) start(name, port string, args ...string) {
	p.t.Helper()
	p.must(append(append([]string{"run", "-d", "--name", name, "--hostname", name, "-p", port + ":80"}, args...), pauseImage)...)
}

// answers fails the test unless a container answers at a port of the machine.
func (p *podman) answers(name, port string) {
	p.t.Helper()
	eventually(p.t, func() bool {
		said, err := p.asks("127.0.0.1:" + port)
		return err == nil && said == name
	})
}

// id returns the ID of a container.
func (p *podman) id(name string) string { return p.must("inspect", "-f", "{{.Id}}", name) }

// interfaces lists the interfaces of a container with their addresses.
func (p *podman) interfaces(name string) []string {
	p.t.Helper()
	return interfaces(p.t, p.path(p.must("inspect", "-f", "{{.NetworkSettings.SandboxKey}}", name)))
}

// multinet writes the network multi for the runtime: multinet with more keys, in front of
// others.
func (m *machine) multinet(version string, more object, networks ...object) {
	m.t.Helper()
	plugin := object{
		"type": "multinet", "cniDir": m.file("state"), "binDir": m.file("bin"), "confDir": m.file("more.d"),
		// Without "ips" podman replaces the others for a container with an address of its own.
		"capabilities": object{"portMappings": true, "ips": true}, "delegates": networks,
	}
	maps.Copy(plugin, more)
	list := chain("multi", plugin)
	list["cniVersion"] = version
	m.writeList("multi.conflist", list)
}

// writeList writes a network for the runtime.
func (m *machine) writeList(file string, list object) {
	m.t.Helper()
	text, err := json.Marshal(list)
	nodetest.OK(m.t, err)
	m.write(filepath.Join("net.d", file), string(text))
}

func chain(name string, plugins ...object) object {
	return object{"cniVersion": "1.0.0", "name": name, "plugins": plugins}
}

// bridge is the i'th bridge of a machine.
func bridge(i int) object {
	return object{
		"type": "bridge", "bridge": fmt.Sprintf("br%d", i), "isGateway": true,
		"ipam": object{"type": "host-local", "ranges": [][]object{{{"subnet": fmt.Sprintf("10.77.%d.0/24", i)}}}},
	}
}

// primary, with the i'th bridge, is what podman makes of a network by default, without a meta-plugin.
func primary(i int) []object {
	b := bridge(i)
	b["ipMasq"], b["hairpinMode"] = true, true
	b["ipam"].(object)["routes"] = []object{{"dst": "0.0.0.0/0"}}
	return []object{b, {"type": "portmap", "capabilities": object{"portMappings": true}}, {"type": "firewall"}}
}

// several are networks of which multinet attaches a container to all.
func several() []object {
	second, third := bridge(1), bridge(2)
	second["name"] = "second"
	return []object{chain("first", primary(0)...), second, chain("third", third)}
}

// TestPodmanAttachesToSeveralNetworks: the commands of podman work with a network that is
// multinet in front of three others, and leave nothing.
func TestPodmanAttachesToSeveralNetworks(t *testing.T) {
	p := newPodman(t)
	p.multinet("1.0.0", nil, several()...)
	p.start("a", "8080", "--network", "multi")
	nodetest.Equal(t, "interfaces", p.interfaces("a"), []string{"eth0 10.77.0.2", "net1 10.77.1.2", "net2 10.77.2.2"})
	p.answers("a", "8080")
	nodetest.Equal(t, "podman's address", p.must("inspect", "-f", "{{.NetworkSettings.Networks.multi.IPAddress}}", "a"), "10.77.0.2")

	nodetest.Equal(t, "networks", p.must("network", "ls", "--filter", "name=multi", "--format", "{{.Name}} {{.Driver}}"), "multi multinet")
	p.must("network", "inspect", "multi")
	p.must("network", "reload", "a")
	nodetest.Equal(t, "interfaces", p.interfaces("a"), []string{"eth0 10.77.0.2", "net1 10.77.1.3", "net2 10.77.2.3"})
	p.answers("a", "8080")
	p.must("restart", "-t", "0", "a")
	p.answers("a", "8080")

	p.must("network", "create", "--subnet", "10.78.0.0/24", "plain")
	p.must("network", "connect", "plain", "a")
	nodetest.Equal(t, "interfaces", len(p.interfaces("a")), 4)
	p.must("network", "disconnect", "multi", "a")
	nodetest.Equal(t, "interfaces without multi", p.interfaces("a"), []string{"eth1 10.78.0.2"})
	nodetest.Equal(t, "records", p.records(), nil)
	p.must("network", "connect", "multi", "a")
	nodetest.Equal(t, "records", len(p.records()), 3)
	p.must("network", "disconnect", "plain", "a")

	p.start("b", "8081", "--network", "multi", "--ip", "10.77.0.99", "--mac-address", "02:00:00:00:00:99")
	nodetest.Equal(t, "first of a container with an address of its own", p.interfaces("b")[0], "eth0 10.77.0.99")
	nodetest.Equal(t, "networks of two containers", len(p.leases()), 6)
	if r := p.run(p.env, "podman", "network", "rm", "multi"); r.code == 0 {
		t.Error("a network in use was removed")
	}

	p.must("stop", "-t", "0", "a", "b")
	p.wantNothing()
	p.must("start", "a")
	p.answers("a", "8080")
	p.must("rm", "-f", "-t", "0", "a", "b")
	p.wantNothing()
	p.must("network", "prune", "-f")
	if _, err := os.Stat(p.file("net.d", "multi.conflist")); err == nil {
		t.Error("a network without containers was not pruned")
	}
}

// gated makes a plugin whose ADD and DEL wait at a gate if the file of their name exists.
func (p *podman) gated(name string) {
	p.t.Helper()
	for _, fifo := range []string{"ready", "gate"} {
		nodetest.OK(p.t, unix.Mkfifo(p.file(fifo), 0o600))
	}
	p.script(name, strings.ReplaceAll(`*)
	if [ -e DIR/$CNI_COMMAND ]; then
		rm DIR/$CNI_COMMAND
		echo >DIR/ready
		read go <DIR/gate
	fi
	[ $CNI_COMMAND != ADD ] || echo '{"cniVersion":"1.0.0"}' ;;`, "DIR", p.disk))
}

// killedIn starts podman and kills it while a gated plugin runs command. With its children
// means that multinet is killed as well; the plugin goes on.
func (p *podman) killedIn(command string, children bool, args ...string) {
	p.t.Helper()
	p.write(command, "")
	ready, err := os.OpenFile(p.file("ready"), os.O_RDWR, 0)
	if err == nil {
		defer func() { _ = ready.Close() }()
		err = ready.SetReadDeadline(time.Now().Add(2 * time.Minute))
	}
	cmd := exec.CommandContext(p.t.Context(), "podman", args...)
	cmd.Env = append([]string{"PATH=" + process.Path}, p.env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err == nil {
		err = p.machine.start(cmd)
	}
	if err == nil {
		_, err = ready.Read(make([]byte, 1))
	}
	if err != nil {
		p.t.Fatalf("podman %q: %v", args, err)
	}
	if children {
		err = unix.Kill(-cmd.Process.Pid, unix.SIGKILL)
	} else {
		err = cmd.Process.Kill()
	}
	nodetest.OK(p.t, err)
	_ = cmd.Wait()
}

// open lets the plugin at the gate go on.
func (p *podman) open() {
	p.t.Helper()
	gate, err := os.OpenFile(p.file("gate"), os.O_RDWR, 0)
	if err == nil {
		defer func() { _ = gate.Close() }()
		_, err = gate.WriteString("\n")
	}
	nodetest.OK(p.t, err)
	eventually(p.t, func() bool { // so that the gate stays open until the plugin is through
		var waiting int
		waiting, err = unix.IoctlGetInt(int(gate.Fd()), unix.TIOCINQ)
		return err != nil || waiting == 0
	})
	nodetest.OK(p.t, err)
}

// forgotten removes the network namespaces that a killed podman has made and not recorded.
func (p *podman) forgotten() {
	p.t.Helper()
	p.ok(nil, "sh", "-c", `for ns in /run/netns/*; do if [ -e "$ns" ]; then umount "$ns" && rm "$ns"; fi; done`)
}

// remove removes a container that a killed podman has left. The first attempt may fail, as
// file systems stay busy until all processes have ended.
func (p *podman) remove(name string) {
	p.t.Helper()
	var err error
	eventually(p.t, func() bool {
		r := p.run(p.env, "podman", "rm", "-f", "-i", "-t", "0", name)
		err = errors.New(r.stderr)
		return r.code == 0
	}, &err)
}

// TestPodmanKilledWhileItAttaches: podman is killed while a plugin runs. What multinet has
// attached is removed by multinet itself, by the DEL of podman or by "multinet gc".
func TestPodmanKilledWhileItAttaches(t *testing.T) {
	p := newPodman(t)
	p.gated("gated")
	p.multinet("1.0.0", nil, append(several(), object{"name": "fourth", "type": "gated"})...)
	run := []string{"run", "-d", "--name", "a", "--network", "multi", "-p", "8080:80", pauseImage}

	// podman alone: multinet cannot print its result, and undoes everything.
	p.killedIn("ADD", false, run...)
	nodetest.Equal(t, "networks that have been attached", len(p.leases()), 3)
	p.open()
	eventually(t, func() bool { return len(p.records()) == 0 })
	p.remove("a")
	p.forgotten()
	p.wantNothing()

	// podman and multinet: the plugin still runs.
	p.killedIn("ADD", true, run...)
	p.remove("a")
	if said := p.gc(); len(p.records()) > 0 || !strings.Contains(said, "removed") {
		t.Errorf("gc: %s, left: %q", said, p.records())
	}
	p.forgotten()
	p.wantNothing()

	// podman, while it removes a container.
	p.start("a", "8080", "--network", "multi")
	p.killedIn("DEL", true, "rm", "-f", "-t", "0", "a")
	p.open()
	p.remove("a")
	p.gc()
	p.forgotten()
	p.wantNothing()
	p.start("a", "8080", "--network", "multi")
	p.answers("a", "8080")
	p.must("rm", "-f", "-t", "0", "a")
	p.wantNothing()
}

// TestPodmanMachineRestarts: after a restart of the machine containers start again, and
// nothing is left of those that do not.
func TestPodmanMachineRestarts(t *testing.T) {
	p := newPodman(t)
	p.multinet("1.0.0", nil, several()...)
	p.start("a", "8080", "--network", "multi")
	p.start("b", "8081", "--network", "multi")
	p.start("c", "8082", "--network", "multi")
	b := p.id("b")
	p.restart()
	nodetest.Equal(t, "records of before", len(p.records()), 9)

	p.must("start", "a")
	p.answers("a", "8080")
	p.must("rm", "b")
	p.gc()
	p.answers("a", "8080")
	nodetest.Equal(t, "records", len(p.records()), 3)
	nodetest.Equal(t, "leases", len(p.leases()), 3)
	p.must("start", "c")
	p.answers("c", "8082")
	p.must("rm", "-f", "-t", "0", "a", "c")
	nodetest.Equal(t, "entries in libcni's cache, which podman has forgotten", p.cache(), []string{"multi-" + b + "-eth0"})
	if err := os.Remove(p.file("cni", "results", p.cache()[0])); err != nil {
		t.Error(err)
	}
	p.wantNothing()
}
