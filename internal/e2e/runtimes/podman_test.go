package runtimes

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
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
	if err := os.WriteFile(m.file(name), []byte(text), 0o600); err != nil {
		m.t.Fatal(err)
	}
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
	if err := os.WriteFile(m.file("bin", name), []byte(text), 0o700); err != nil {
		m.t.Fatal(err)
	}
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
	if err != nil {
		m.t.Fatal(err)
	}
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
