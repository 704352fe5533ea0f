package runtimes

import (
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"

	nodetest "github.com/metacni/metacni/internal/test/node"
)

// install runs "multinet install" or "uninstall" with more flags.
func (p *podman) install(command string, flags ...string) report {
	p.t.Helper()
	where := []string{command, "--conf-dir", p.file("net.d"), "--bin-dir", p.file("bin")}
	return p.run(nil, p.file("bin", "multinet"), slices.Concat(where, flags)...)
}

// TestInstallUnderPodman installs multinet on a machine with running containers, under the
// name of podman's network: podman chooses networks by name. Containers keep their ports
// and leave nothing, whether they were attached before or after, and after the return.
func TestInstallUnderPodman(t *testing.T) {
	p := newPodman(t)
	old := chain("podman", primary(4)...)
	old["cniVersion"] = "0.4.0" // as Debian's
	p.writeList("87-podman-bridge.conflist", old)
	p.start("a", "8080")
	p.start("b", "8081")
	p.start("c", "8082")
	p.installUnderPodman()
	nodetest.Equal(t, "records", len(p.records()), 3)
	p.answers("a", "8080")
	nodetest.Equal(t, "networks", p.must("network", "ls", "--format", "{{.Name}} {{.Driver}}"), "podman multinet")

	// What podman deletes with the configuration of the ADD is stale for multinet.
	p.must("rm", "-f", "-t", "0", "a")
	p.must("stop", "-t", "0", "b")
	nodetest.Equal(t, "leases", len(p.leases()), 1)
	p.gc()
	nodetest.Equal(t, "records", len(p.records()), 1)
	p.must("start", "b")
	nodetest.Equal(t, "interfaces", names(p.interfaces("b")), []string{"eth0", "net1"})
	p.answers("b", "8081")
	p.must("stop", "-t", "0", "c")
	p.must("start", "c") // its record is stale
	p.answers("c", "8082")
	p.start("d", "8083", "--ip", "10.77.4.77")
	nodetest.Equal(t, "interface of a container with an address of its own", p.interfaces("d")[0], "eth0 10.77.4.77")
	nodetest.Equal(t, "interfaces", names(p.interfaces("d")), []string{"eth0", "net1"})
	p.answers("d", "8083")
	p.gc()
	nodetest.Equal(t, "records", len(p.records()), 6)
	nodetest.Equal(t, "leases", len(p.leases()), 6)

	uninstall := []string{"--name", "podman", "--dir", p.file("state"), "--cache-dir", "/var/lib/cni"}
	if r := p.install("uninstall", uninstall...); r.code != 1 || !strings.Contains(r.stderr, "3 containers are still attached") {
		t.Errorf("exit status %d: %s", r.code, r.stderr)
	}
	if r := p.install("uninstall", append(uninstall, "--detach")...); r.code != 0 {
		t.Fatal(r.stderr)
	}
	nodetest.Equal(t, "records", p.records(), nil)
	nodetest.Equal(t, "networks", p.must("network", "ls", "--format", "{{.Name}} {{.Driver}}"), "podman bridge")
	for name, port := range map[string]string{"b": "8081", "c": "8082", "d": "8083"} {
		nodetest.Equal(t, "interfaces", names(p.interfaces(name)), []string{"eth0"})
		p.answers(name, port)
	}
	if err := os.Remove(p.file("bin", "multinet")); err != nil { // nobody needs it any more
		t.Fatal(err)
	}
	p.must("restart", "-t", "0", "b")
	p.answers("b", "8081")
	p.must("rm", "-f", "-t", "0", "b", "c", "d")
	nodetest.OK(t, os.Symlink(bin("multinet"), p.file("bin", "multinet")))
	p.wantNothing()
}

// TestInstallUnderAnotherNameLeavesContainersOfPodmanAlone: podman does not use a network of
// another name, also for containers that have been taken over. When it has started one of
// them again, what it has then stays.
func TestInstallUnderAnotherNameLeavesContainersOfPodmanAlone(t *testing.T) {
	p := newPodman(t)
	p.writeList("87-podman-bridge.conflist", chain("podman", primary(4)...))
	p.start("a", "8080")
	p.start("b", "8081")
	p.write("more.json", `{"binDir":"`+p.file("bin")+`","confDir":"`+p.file("more.d")+`"}`)
	if r := p.install("install", "--cni-dir", p.file("state"), "--config", p.file("more.json")); r.code != 0 {
		t.Fatal(r.stderr)
	}
	nodetest.Equal(t, "records", len(p.records()), 2)
	p.must("restart", "-t", "0", "a")
	p.must("rm", "-f", "-t", "0", "b")
	leases, entries := p.leases(), p.cache()
	p.gc()
	nodetest.Equal(t, "records", p.records(), nil)
	nodetest.Equal(t, "leases", p.leases(), leases)
	nodetest.Equal(t, "entries in libcni's cache", p.cache(), entries)
	p.answers("a", "8080")
	if said := p.tool("adopt", "--dir", p.file("state"), "--conf-dir", p.file("net.d")); !strings.Contains(said, "adopted") {
		t.Errorf("adopt: %s", said)
	}
	if r := p.install("uninstall", "--dir", p.file("state"), "--detach"); r.code != 0 {
		t.Error(r.stderr)
	}
	p.answers("a", "8080")
	p.must("rm", "-f", "-t", "0", "a")
	p.wantNothing()
}

// TestContainersOfPodmanAreNotTakenOver: multinet in front of another network of the same
// directory takes over nothing that podman has attached.
func TestContainersOfPodmanAreNotTakenOver(t *testing.T) {
	p := newPodman(t)
	p.writeList("10-cluster.conflist", chain("cluster", bridge(3)))
	p.writeList("87-podman-bridge.conflist", chain("podman", primary(4)...))
	p.multinet("1.0.0", nil, several()...)
	p.start("a", "8080")
	p.start("b", "8081", "--network", "multi")
	entries := func() (all []string) {
		for _, name := range p.cache() {
			text, err := os.ReadFile(p.file("cni", "results", name))
			nodetest.OK(t, err)
			all = append(all, name+string(text))
		}
		return all
	}
	before := entries()
	if r := p.install("install", "--cni-dir", p.file("other")); r.code != 0 || strings.Contains(r.stderr, "taken over") {
		t.Errorf("exit status %d: %s", r.code, r.stderr)
	}
	nodetest.OK(t, os.MkdirAll(p.file("other"), 0o700))
	if said := p.tool("adopt", "--dir", p.file("other"), "--conf-dir", p.file("net.d")); strings.Contains(said, "adopted") {
		t.Errorf("adopt: %s", said)
	}
	p.gc()
	if said := p.tool("list", "--dir", p.file("other")); strings.Contains(said, "eth0") {
		t.Errorf("records: %s", said)
	}
	nodetest.Equal(t, "entries of podman", entries(), before)
	nodetest.Equal(t, "records of podman's own network", len(p.records()), 3)
	p.answers("a", "8080")
	p.answers("b", "8081")
	p.must("rm", "-f", "-t", "0", "a", "b")
	p.wantNothing()
}

// names leaves out the addresses of interfaces.
func names(interfaces []string) (all []string) {
	for _, i := range interfaces {
		name, _, _ := strings.Cut(i, " ")
		all = append(all, name)
	}
	return all
}

// writePodmanNetwork writes podman's default network. Its bridge has an address that does not
// change with its ports, as containers would know the one before for some seconds.
func (p *podman) writePodmanNetwork() {
	p.t.Helper()
	p.ok(nil, "ip", "link", "add", "br4", "address", "02:00:00:00:00:04", "type", "bridge")
	p.writeList("87-podman-bridge.conflist", chain("podman", primary(4)...))
}

// installUnderPodman installs multinet under the name of podman's network: podman chooses
// networks by name. A container has a second network then.
func (p *podman) installUnderPodman() {
	p.t.Helper()
	p.write("more.json", `{"binDir":"`+p.file("bin")+`","confDir":"`+p.file("more.d")+`",
		"defaultNetworks":["`+p.file("more.d", "blue.conf")+`"],"capabilities":{"ips":true}}`)
	p.write("more.d/blue.conf", `{"cniVersion":"1.0.0","name":"blue","type":"bridge","bridge":"blue","ipam":{"type":"host-local","subnet":"10.79.0.0/24"}}`)
	if r := p.install("install", "--name", "podman", "--cni-dir", p.file("state"), "--config", p.file("more.json")); r.code != 0 {
		p.t.Fatal(r.stderr)
	}
}

// attached lists the attachments of containers as the operator's tool does, each with its
// state. An attachment that is in two records is listed twice.
func (p *podman) attached() (all []string) {
	p.t.Helper()
	var records []struct {
		Container   string
		State       string
		Attachments []struct{ Interface, State string }
	}
	nodetest.OK(p.t, json.Unmarshal([]byte(p.tool("list", "-o", "json", "--dir", p.file("state"))), &records))
	for _, r := range records {
		for _, a := range r.Attachments {
			all = append(all, r.Container+" "+a.Interface+" "+r.State+" "+a.State)
		}
	}
	slices.Sort(all)
	return all
}

// rulesOf lists the rules of iptables for a container: those with its ID, its port on the
// machine or its address.
func (p *podman) rulesOf(name, port string) (all []string) {
	p.t.Helper()
	_, address, _ := strings.Cut(p.interfaces(name)[0], " ")
	id := p.id(name)
	for _, rule := range p.rules() {
		if strings.Contains(rule, id) || strings.Contains(rule, "--dport "+port+" ") || strings.Contains(rule, " "+address+"/32 ") {
			all = append(all, rule)
		}
	}
	slices.Sort(all)
	return all
}

// wantAttached fails the test unless exactly these containers are attached to podman's
// network: they answer at their ports, and there are no addresses, interfaces and rules of
// others. Each has as many rules as one that was attached by podman.
func (p *podman) wantAttached(rules int, ports map[string]string) {
	p.t.Helper()
	p.ok(nil, "ip", "neigh", "flush", "all") // for some seconds it knows the MAC address of an interface before
	interfaces := 0
	for name, port := range ports {
		p.answers(name, port)
		interfaces += len(p.interfaces(name))
	}
	nodetest.Equal(p.t, "leases", len(p.leases()), interfaces)
	eventually(p.t, func() bool { return len(p.veths()) == interfaces })
	nodetest.Equal(p.t, "rules", len(p.rules()), rules*len(ports))
}

// wantRecorded fails the test unless each interface of these containers is recorded once,
// as attached, and nothing else is recorded.
func (p *podman) wantRecorded(containers ...string) {
	p.t.Helper()
	var want []string
	for _, c := range containers {
		id := p.id(c)
		for _, name := range names(p.interfaces(c)) {
			want = append(want, id+" "+name+" added added")
		}
	}
	slices.Sort(want)
	nodetest.Equal(p.t, "attachments", p.attached(), want)
}

// TestPodmanReloadsAndReconnectsContainers: after "podman network reload", "disconnect" and
// "connect" a container has its ports, and one record, whether podman has attached it before
// multinet was installed or with multinet. Another container keeps what it has.
func TestPodmanReloadsAndReconnectsContainers(t *testing.T) {
	for name, before := range map[string]bool{"attached by podman": true, "attached with multinet": false} {
		t.Run(name, func(t *testing.T) {
			p := newPodman(t)
			p.writePodmanNetwork()
			if !before {
				p.installUnderPodman()
			}
			ports := map[string]string{"a": "8080", "b": "8081", "c": "8082"}
			for name, port := range ports {
				p.start(name, port)
			}
			if before {
				p.installUnderPodman()
			}
			rules := len(p.rules()) / len(ports)
			p.wantAttached(rules, ports)
			p.wantRecorded("a", "b", "c")
			kept := p.interfaces("c")
			keptRules := p.rulesOf("c", "8082")
			podman := func(args ...string) {
				t.Helper()
				p.must(args...)
				p.wantAttached(rules, ports)
				if slices.Contains(args, "--all") { // it has a second network then, or another address in it
					kept = append(kept[:1:1], p.interfaces("c")[1:]...)
				}
				nodetest.Equal(t, "interfaces of another container", p.interfaces("c"), kept)
				nodetest.Equal(t, "rules of another container", p.rulesOf("c", "8082"), keptRules)
			}

			address := p.interfaces("a")[0]
			podman("network", "reload", "a")
			podman("network", "reload", "a")
			nodetest.Equal(t, "interface", p.interfaces("a")[0], address)
			nodetest.Equal(t, "interfaces", names(p.interfaces("a")), []string{"eth0", "net1"})
			p.wantRecorded("a", "b", "c")

			for range 2 { // the first time one that nobody has reloaded
				delete(ports, "b")
				podman("network", "disconnect", "podman", "b")
				nodetest.Equal(t, "interfaces", p.interfaces("b"), nil)
				p.gc()
				ports["b"] = "8081"
				podman("network", "connect", "podman", "b")
				nodetest.Equal(t, "interfaces", names(p.interfaces("b")), []string{"eth0", "net1"})
				p.wantRecorded("a", "b", "c")
			}
			delete(ports, "a")
			podman("network", "disconnect", "podman", "a")
			p.wantRecorded("b", "c")
			ports["a"] = "8080"
			podman("network", "connect", "podman", "a")

			podman("network", "reload", "--all")
			p.wantRecorded("a", "b", "c")
			podman("network", "reload", "--all")
			p.wantRecorded("a", "b", "c")

			delete(ports, "a")
			podman("stop", "-t", "0", "a")
			p.wantRecorded("b", "c")
			ports["a"] = "8080"
			podman("start", "a")
			p.wantRecorded("a", "b", "c")
			delete(ports, "a")
			delete(ports, "b")
			podman("rm", "-f", "-t", "0", "a", "b")
			p.wantRecorded("c")
			p.must("rm", "-f", "-t", "0", "c")
			p.wantNothing()
		})
	}
}

// TestPodmanConnectsOtherwiseWhatItDisconnected: podman disconnects containers that were
// taken over, which multinet does not learn. What multinet has recorded is in nobody's way
// afterwards: another container with the address, the same network with the interface, and with
// another one. Another network of multinet gets the interface when podman has connected and
// disconnected the container again.
func TestPodmanConnectsOtherwiseWhatItDisconnected(t *testing.T) {
	p := newPodman(t)
	p.writePodmanNetwork()
	p.start("a", "8080", "--ip", "10.77.4.10")
	p.start("b", "8081")
	p.start("c", "8082")
	p.installUnderPodman()
	p.multinet("1.0.0", nil, several()...)
	rules := len(p.rules()) / 3
	for _, name := range []string{"a", "b", "c"} {
		p.must("network", "disconnect", "podman", name)
	}
	p.wantAttached(rules, nil)

	p.start("d", "8083", "--ip", "10.77.4.10")
	p.must("network", "connect", "podman", "a")
	nodetest.Equal(t, "interface", p.interfaces("d")[0], "eth0 10.77.4.10")
	p.wantAttached(rules, map[string]string{"a": "8080", "d": "8083"})

	if r := p.run(p.env, "podman", "network", "connect", "multi", "b"); r.code == 0 || !strings.Contains(r.stderr, `"eth0": interface name already taken`) {
		t.Errorf("exit status %d: %s", r.code, r.stderr)
	}
	p.must("network", "disconnect", "multi", "b") // podman takes it for connected
	p.must("network", "connect", "podman", "b")
	nodetest.Equal(t, "interfaces", names(p.interfaces("b")), []string{"eth0", "net1"})
	p.wantAttached(rules, map[string]string{"a": "8080", "b": "8081", "d": "8083"})
	p.must("network", "connect", "multi", "b")
	nodetest.Equal(t, "interfaces", names(p.interfaces("b")), []string{"eth0", "net1", "eth1", "net2", "net3"})
	p.must("network", "disconnect", "multi", "b")
	nodetest.Equal(t, "interfaces", names(p.interfaces("b")), []string{"eth0", "net1"})

	p.must("network", "create", "--subnet", "10.78.0.0/24", "plain")
	p.must("network", "connect", "plain", "c")
	p.must("network", "connect", "podman", "c")
	p.must("network", "reload", "c")
	p.must("network", "disconnect", "plain", "c")
	p.must("restart", "-t", "0", "c")
	// A DEL of what c had before would remove the rules for its port.
	if r := p.run(nil, p.file("bin", "multinet"), "gc", "--dir", p.file("state")); r.code == 0 || !strings.Contains(r.stdout, "started again") {
		t.Errorf("gc: exit status %d: %s%s", r.code, r.stdout, r.stderr)
	}
	nodetest.Equal(t, "interfaces", names(p.interfaces("c")), []string{"eth1", "net1"})
	p.wantAttached(rules, map[string]string{"a": "8080", "b": "8081", "c": "8082", "d": "8083"})
	p.must("rm", "-f", "-t", "0", "c")
	p.gc()
	p.wantRecorded("a", "b", "d")

	p.must("rm", "-f", "-t", "0", "a", "b", "d")
	p.wantNothing()
}
