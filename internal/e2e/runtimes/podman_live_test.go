package runtimes

import (
	"os"
	"slices"
	"strings"
	"testing"
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
	same(t, "records", 3, len(p.records()))
	p.answers("a", "8080")
	same(t, "networks", "podman multinet", p.must("network", "ls", "--format", "{{.Name}} {{.Driver}}"))

	// What podman deletes with the configuration of the ADD is stale for multinet.
	p.must("rm", "-f", "-t", "0", "a")
	p.must("stop", "-t", "0", "b")
	same(t, "leases", 1, len(p.leases()))
	p.gc()
	same(t, "records", 1, len(p.records()))
	p.must("start", "b")
	same(t, "interfaces", []string{"eth0", "net1"}, names(p.interfaces("b")))
	p.answers("b", "8081")
	p.must("stop", "-t", "0", "c")
	p.must("start", "c") // its record is stale
	p.answers("c", "8082")
	p.start("d", "8083", "--ip", "10.77.4.77")
	same(t, "interface of a container with an address of its own", "eth0 10.77.4.77", p.interfaces("d")[0])
	same(t, "interfaces", []string{"eth0", "net1"}, names(p.interfaces("d")))
	p.answers("d", "8083")
	p.gc()
	same(t, "records", 6, len(p.records()))
	same(t, "leases", 6, len(p.leases()))

	uninstall := []string{"--name", "podman", "--dir", p.file("state"), "--cache-dir", "/var/lib/cni"}
	if r := p.install("uninstall", uninstall...); r.code != 1 || !strings.Contains(r.stderr, "3 containers are still attached") {
		t.Errorf("exit status %d: %s", r.code, r.stderr)
	}
	if r := p.install("uninstall", append(uninstall, "--detach")...); r.code != 0 {
		t.Fatal(r.stderr)
	}
	same(t, "records", nil, p.records())
	same(t, "networks", "podman bridge", p.must("network", "ls", "--format", "{{.Name}} {{.Driver}}"))
	for name, port := range map[string]string{"b": "8081", "c": "8082", "d": "8083"} {
		same(t, "interfaces", []string{"eth0"}, names(p.interfaces(name)))
		p.answers(name, port)
	}
	if err := os.Remove(p.file("bin", "multinet")); err != nil { // nobody needs it any more
		t.Fatal(err)
	}
	p.must("restart", "-t", "0", "b")
	p.answers("b", "8081")
	p.must("rm", "-f", "-t", "0", "b", "c", "d")
	if err := os.Symlink(bin("multinet"), p.file("bin", "multinet")); err != nil {
		t.Fatal(err)
	}
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
	same(t, "records", 2, len(p.records()))
	p.must("restart", "-t", "0", "a")
	p.must("rm", "-f", "-t", "0", "b")
	leases, entries := p.leases(), p.cache()
	p.gc()
	same(t, "records", nil, p.records())
	same(t, "leases", leases, p.leases())
	same(t, "entries in libcni's cache", entries, p.cache())
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
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, name+string(text))
		}
		return all
	}
	before := entries()
	if r := p.install("install", "--cni-dir", p.file("other")); r.code != 0 || strings.Contains(r.stderr, "taken over") {
		t.Errorf("exit status %d: %s", r.code, r.stderr)
	}
	if err := os.MkdirAll(p.file("other"), 0o700); err != nil {
		t.Fatal(err)
	}
	if said := p.tool("adopt", "--dir", p.file("other"), "--conf-dir", p.file("net.d")); strings.Contains(said, "adopted") {
		t.Errorf("adopt: %s", said)
	}
	p.gc()
	if said := p.tool("list", "--dir", p.file("other")); strings.Contains(said, "eth0") {
		t.Errorf("records: %s", said)
	}
	same(t, "entries of podman", before, entries())
	same(t, "records of podman's own network", 3, len(p.records()))
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
