package runtimes

import (
	"errors"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
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

// gated makes a plugin whose ADD and DEL wait at a gate if the file of their name exists.
func (p *podman) gated(name string) {
	p.t.Helper()
	for _, fifo := range []string{"ready", "gate"} {
		if err := unix.Mkfifo(p.file(fifo), 0o600); err != nil {
			p.t.Fatal(err)
		}
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
	cmd.Env = append([]string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"}, p.env...)
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
	if err != nil {
		p.t.Fatal(err)
	}
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
	if err != nil {
		p.t.Fatal(err)
	}
	eventually(p.t, func() bool { // so that the gate stays open until the plugin is through
		var waiting int
		waiting, err = unix.IoctlGetInt(int(gate.Fd()), unix.TIOCINQ)
		return err != nil || waiting == 0
	})
	if err != nil {
		p.t.Fatal(err)
	}
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
	same(t, "networks that have been attached", 3, len(p.leases()))
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
	same(t, "records of before", 9, len(p.records()))

	p.must("start", "a")
	p.answers("a", "8080")
	p.must("rm", "b")
	p.gc()
	p.answers("a", "8080")
	same(t, "records", 3, len(p.records()))
	same(t, "leases", 3, len(p.leases()))
	p.must("start", "c")
	p.answers("c", "8082")
	p.must("rm", "-f", "-t", "0", "a", "c")
	same(t, "entries in libcni's cache, which podman has forgotten", []string{"multi-" + b + "-eth0"}, p.cache())
	if err := os.Remove(p.file("cni", "results", p.cache()[0])); err != nil {
		t.Error(err)
	}
	p.wantNothing()
}
