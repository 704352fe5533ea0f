package runtimes

import (
	"os"
	"slices"
	"strings"
	"testing"
)

// Multinet is installed on a node whose pods run, and removed again. The pods keep their
// networks and ports all the time. Each pod is removed entirely by whatever is installed
// when it stops.
func TestInstallAndUninstallOnANodeInUse(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.writeJSON("net.d/10-primary.conflist", n.primary())
	n.boot()
	n.waitForNetwork(n.primaryName())
	first, second := n.newPod("").run(), n.newPod("").run()
	first.answers()

	n.mkdir("networks")
	blue := n.bridge(1)
	blue["name"] = "blue"
	n.writeJSON("networks/blue.conf", blue)
	n.writeJSON("more.json", object{"confDir": n.file("networks"), "binDir": os.Getenv(binEnv)})
	places := []string{"--conf-dir", n.file("net.d"), "--bin-dir", os.Getenv(binEnv)}
	n.tool(0, slices.Concat([]string{"install"}, places, []string{"--cni-dir", n.file("state"), "--config", n.file("more.json")})...)
	n.waitForNetwork("multinet")
	n.wantRunning(first, second)
	first.stop()
	n.wantRunning(second)
	third, fourth := n.newPod("blue").run(), n.newPod("blue").run()
	same(t, "interfaces", []string{"eth0", "net1"}, third.names())
	n.wantRunning(second, third, fourth)
	fourth.stop()
	n.wantRunning(second, third)
	n.killContainerd() // what it has in memory does not matter
	n.startContainerd()
	n.wantRunning(second, third)

	uninstall := slices.Concat([]string{"uninstall"}, places, []string{"--dir", n.file("state")})
	if said := n.tool(1, uninstall...); !strings.Contains(said, "2 containers") {
		t.Errorf("uninstall while pods run: %s", said)
	}
	n.tool(0, append(uninstall, "--detach")...)
	n.waitForNetwork(n.primaryName())
	same(t, "records", nil, n.records())
	same(t, "interfaces", []string{"eth0"}, third.names())
	same(t, "leases", []string{second.addresses()[0], third.addresses()[0]}, n.addresses())
	for _, p := range []*pod{second, third, n.newPod("").run()} {
		p.answers()
		p.stop()
	}
	n.wantNothing()
}
