package runtimes

import (
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	nodetest "github.com/metacni/metacni/internal/test/node"
	"github.com/metacni/metacni/internal/test/process"
)

// startNRI starts nri with its records in a directory.
func (n *node) startNRI(stateDir string) {
	n.t.Helper()
	n.writeJSON("nri.json", object{
		"socket": n.file("nri.sock"), "confDir": n.file("networks"), "binDir": os.Getenv(binEnv), "stateDir": stateDir, "sweep": "1s",
	})
	cmd := exec.Command(bin("nri"), "-config", n.file("nri.json"))
	cmd.Env = []string{"PATH=" + process.Path}
	n.nri = n.host.Serve(n.file("nri.log"), cmd)
}

// reconciled counts how often nri has got containerd's list of pods and compared it with
// its records.
func (n *node) reconciled() int {
	n.t.Helper()
	log, _ := os.ReadFile(n.file("nri.log"))
	return strings.Count(string(log), "Synchronized:true")
}

// after does something that makes nri connect to containerd, and waits until it has
// compared the pods with its records.
func (n *node) after(do func()) {
	n.t.Helper()
	before := n.reconciled()
	do()
	eventually(n.t, func() bool { return n.reconciled() > before })
}

// newNRINode starts a node whose containerd has nri.
func newNRINode(t *testing.T) *node {
	t.Helper()
	n := newNode(t)
	n.writeJSON("net.d/10-primary.conflist", n.primary())
	n.host.Mkdir("networks")
	blue := n.bridge(1)
	blue["name"] = "blue"
	n.writeJSON("networks/blue.conf", blue)
	n.boot()
	n.waitForNetwork(n.primaryName())
	n.after(func() { n.startNRI(n.file("state")) })
	return n
}

// Nri attaches the pods of a real containerd, and detaches those that stop. When containerd
// or nri is killed, pods that run keep what they have, and nothing is left of those that end
// meanwhile.
func TestNRISurvivesRestarts(t *testing.T) {
	t.Parallel()
	n := newNRINode(t)
	live, dead := n.newPod("blue").run(), n.newPod("blue").run()
	nodetest.Equal(t, "interfaces", live.names(), []string{"eth0", "net1"})
	want := live.interfaces()
	kept := func() {
		t.Helper()
		nodetest.Equal(t, "interfaces of a pod that runs", live.interfaces(), want)
		live.answers()
	}

	n.killContainerd()
	dead.die()
	n.after(n.startContainerd)
	kept()
	dead.stop()
	eventually(t, func() bool { return len(n.leases()) == 2 })
	kept()

	gone := n.newPod("blue").run()
	n.nri.Kill()
	gone.stop()
	n.after(func() { n.startNRI(n.file("state")) })
	eventually(t, func() bool { return len(n.leases()) == 2 })
	kept()
	nodetest.Equal(t, "records", n.records(), []string{live.id + " eth0 added"})

	n.killContainerd()
	n.after(n.startContainerd)
	kept()
	live.stop()
	eventually(t, func() bool { return len(n.records()) == 0 })
	n.wantNothing()
}

// After a reboot there are files, but neither processes nor namespaces. Nri detaches what
// it has recorded, though containerd lists the pods, and new ones get their networks.
func TestNRIAfterAReboot(t *testing.T) {
	t.Parallel()
	n := newNRINode(t)
	old := n.newPod("blue").run()
	other := n.newPod("blue").run()
	n.shutDown(old, other)
	n.startContainerd()
	n.waitForNetwork(n.primaryName())
	nodetest.Equal(t, "sandboxes that containerd lists", len(n.sandboxes()), 2)
	nodetest.Equal(t, "leases of before", len(n.leases()), 4)
	n.after(func() { n.startNRI(n.file("state")) })
	eventually(t, func() bool { return len(n.leases()) == 2 }) // containerd's own
	nodetest.Equal(t, "records", n.records(), nil)
	old.settle(true)
	nodetest.Equal(t, "interfaces", old.names(), []string{"eth0", "net1"})
	old.answers()
	other.settle(false)
	n.wantRunning(old)
	old.settle(false)
	n.wantNothing()
}

// die ends the pod's process. Its network namespace stays until containerd removes it.
func (p *pod) die() {
	p.n.t.Helper()
	nodetest.OK(p.n.t, unix.Kill(p.pid, unix.SIGKILL))
}

// shutDown ends all processes of the node, of which these pods run, and removes what does
// not outlive a reboot.
func (n *node) shutDown(pods ...*pod) {
	n.t.Helper()
	n.killContainerd()
	n.nri.Kill()
	commands, err := os.ReadDir("/proc")
	nodetest.OK(n.t, err)
	for _, c := range commands { // the shims
		command, _ := os.ReadFile("/proc/" + c.Name() + "/cmdline")
		if strings.Contains(string(command), n.file("containerd.sock")) {
			pid, err := strconv.Atoi(c.Name())
			nodetest.OK(n.t, err)
			nodetest.OK(n.t, unix.Kill(pid, unix.SIGKILL))
		}
	}
	for _, p := range pods {
		p.die()
	}
	// With everything that is mounted in it, which a walk through /proc/self/mounts may miss.
	nodetest.OK(n.t, unix.Unmount(n.file("run"), unix.MNT_DETACH))
	n.mountRun()
	// As after a reboot and the first pod. Where the directory of a namespace is missing in
	// the same boot, it may be mounted elsewhere.
	n.host.Mkdir(netnsDir)
	eventually(n.t, func() bool { return len(n.host.Ports()) == 0 }) // the kernel removes namespaces later
}
