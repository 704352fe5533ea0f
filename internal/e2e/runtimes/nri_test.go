package runtimes

import (
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/metacni/metacni/internal/test/process"
)

// startNRI starts nri with its records in a directory.
func (n *node) startNRI(stateDir string) {
	n.t.Helper()
	n.writeJSON("nri.json", object{
		"socket": n.file("nri.sock"), "confDir": n.file("networks"), "binDir": os.Getenv(binEnv), "stateDir": stateDir, "sweep": "1s",
	})
	cmd := exec.Command(bin("nri"), "-config", n.file("nri.json"))
	cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"}
	var err error
	if n.nri, err = process.Start(n.file("nri.log"), cmd); err != nil {
		n.t.Fatal(err)
	}
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
	n.mkdir("networks")
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
	same(t, "interfaces", []string{"eth0", "net1"}, live.names())
	want := live.interfaces()
	kept := func() {
		t.Helper()
		same(t, "interfaces of a pod that runs", want, live.interfaces())
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
	same(t, "records", []string{live.id + " eth0 added"}, n.records())

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
	same(t, "sandboxes that containerd lists", 2, len(n.sandboxes()))
	same(t, "leases of before", 4, len(n.leases()))
	n.after(func() { n.startNRI(n.file("state")) })
	eventually(t, func() bool { return len(n.leases()) == 2 }) // containerd's own
	same(t, "records", nil, n.records())
	old.settle(true)
	same(t, "interfaces", []string{"eth0", "net1"}, old.names())
	old.answers()
	other.settle(false)
	n.wantRunning(old)
	old.settle(false)
	n.wantNothing()
}

// die ends the pod's process. Its network namespace stays until containerd removes it.
func (p *pod) die() {
	p.n.t.Helper()
	if err := unix.Kill(p.pid, unix.SIGKILL); err != nil {
		p.n.t.Fatal(err)
	}
}

// shutDown ends all processes of the node, of which these pods run, and removes what does
// not outlive a reboot.
func (n *node) shutDown(pods ...*pod) {
	n.t.Helper()
	n.killContainerd()
	n.nri.Kill()
	commands, err := os.ReadDir("/proc")
	if err != nil {
		n.t.Fatal(err)
	}
	for _, c := range commands { // the shims
		command, _ := os.ReadFile("/proc/" + c.Name() + "/cmdline")
		if strings.Contains(string(command), n.file("containerd.sock")) {
			pid, err := strconv.Atoi(c.Name())
			if err == nil {
				err = unix.Kill(pid, unix.SIGKILL)
			}
			if err != nil {
				n.t.Fatal(err)
			}
		}
	}
	for _, p := range pods {
		p.die()
	}
	// With everything that is mounted in it, which a walk through /proc/self/mounts may miss.
	if err := unix.Unmount(n.file("run"), unix.MNT_DETACH); err != nil {
		n.t.Fatal(err)
	}
	n.mountRun()
	// As after a reboot and the first pod. Where the directory of a namespace is missing in
	// the same boot, it may be mounted elsewhere.
	n.mkdir(netnsDir)
	eventually(n.t, func() bool { return len(n.ports()) == 0 }) // the kernel removes namespaces later
}
