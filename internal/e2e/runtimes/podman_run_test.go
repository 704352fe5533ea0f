package runtimes

import (
	"os"
	"testing"
)

// TestPodmanAttachesToSeveralNetworks: the commands of podman work with a network that is
// multinet in front of three others, and leave nothing.
func TestPodmanAttachesToSeveralNetworks(t *testing.T) {
	p := newPodman(t)
	p.multinet("1.0.0", nil, several()...)
	p.start("a", "8080", "--network", "multi")
	same(t, "interfaces", []string{"eth0 10.77.0.2", "net1 10.77.1.2", "net2 10.77.2.2"}, p.interfaces("a"))
	p.answers("a", "8080")
	same(t, "podman's address", "10.77.0.2", p.must("inspect", "-f", "{{.NetworkSettings.Networks.multi.IPAddress}}", "a"))

	same(t, "networks", "multi multinet", p.must("network", "ls", "--filter", "name=multi", "--format", "{{.Name}} {{.Driver}}"))
	p.must("network", "inspect", "multi")
	p.must("network", "reload", "a")
	same(t, "interfaces", []string{"eth0 10.77.0.2", "net1 10.77.1.3", "net2 10.77.2.3"}, p.interfaces("a"))
	p.answers("a", "8080")
	p.must("restart", "-t", "0", "a")
	p.answers("a", "8080")

	p.must("network", "create", "--subnet", "10.78.0.0/24", "plain")
	p.must("network", "connect", "plain", "a")
	same(t, "interfaces", 4, len(p.interfaces("a")))
	p.must("network", "disconnect", "multi", "a")
	same(t, "interfaces without multi", []string{"eth1 10.78.0.2"}, p.interfaces("a"))
	same(t, "records", nil, p.records())
	p.must("network", "connect", "multi", "a")
	same(t, "records", 3, len(p.records()))
	p.must("network", "disconnect", "plain", "a")

	p.start("b", "8081", "--network", "multi", "--ip", "10.77.0.99", "--mac-address", "02:00:00:00:00:99")
	same(t, "first of a container with an address of its own", "eth0 10.77.0.99", p.interfaces("b")[0])
	same(t, "networks of two containers", 6, len(p.leases()))
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
