package runtimes

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/metacni/metacni/delegate/conform/host"
	nodetest "github.com/metacni/metacni/internal/test/node"
	"github.com/metacni/metacni/internal/test/process"
)

// machineStage is the stage of the first process of a machine, whose disk is in diskEnv.
const (
	machineStage = "machine"
	diskEnv      = "METACNI_E2E_DISK"
)

// A machine is a private host within the private host. It has processes, mounts and a
// network of its own, which end when it is switched off. What stays is on its disk: the
// directory with its configuration, and /var/lib/cni.
type machine struct {
	t    *testing.T
	disk string
	pid  int    // of its first process
	off  func() // switches it off
}

// newMachine makes a machine for a test, which runs in parallel with others, and switches it
// on.
func newMachine(t *testing.T) *machine {
	t.Helper()
	t.Parallel()
	m := &machine{t: t, disk: t.TempDir()}
	for _, dir := range []string{"bin", "net.d", "cni", "state", "more.d"} {
		nodetest.OK(t, os.Mkdir(m.file(dir), 0o755))
	}
	programs, err := filepath.Glob(filepath.Join(os.Getenv(binEnv), "*"))
	for _, p := range programs {
		if err == nil {
			err = os.Symlink(p, m.file("bin", filepath.Base(p)))
		}
	}
	nodetest.OK(t, err)
	t.Cleanup(func() { m.off() })
	m.on()
	return m
}

// on switches the machine on.
func (m *machine) on() {
	m.t.Helper()
	cmd := private(context.WithoutCancel(m.t.Context()), machineStage)
	cmd.Args = cmd.Args[:1]
	cmd.Env = append(cmd.Env, diskEnv+"="+m.disk)
	cmd.SysProcAttr.Pdeathsig = 0 // the thread may end before the machine is switched off
	var said strings.Builder
	cmd.Stderr = &said
	stdin, err := cmd.StdinPipe()
	nodetest.OK(m.t, err)
	stdout, err := cmd.StdoutPipe()
	nodetest.OK(m.t, err)
	nodetest.OK(m.t, cmd.Start())
	m.off = func() {
		_ = stdin.Close()
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		m.off = func() {}
	}
	if ready, err := io.ReadAll(io.LimitReader(stdout, 1)); len(ready) == 0 {
		m.off()
		m.t.Fatalf("the machine does not start: %v\n%s", err, said.String())
	}
	m.pid = cmd.Process.Pid
}

// restart switches the machine off and on. Its kernel stays the same, so the records are made those
// of an earlier boot.
func (m *machine) restart() {
	m.t.Helper()
	m.off()
	nodetest.OK(m.t, nodetest.Restarted(m.file("state")))
	m.on()
}

// runMachine is the first process of a machine. It ends when its stdin does.
func runMachine() (int, error) {
	if err := setup(); err != nil {
		return 1, err
	}
	// crun refuses a machine that has version 2 of cgroups beside version 1.
	_ = unix.Unmount("/sys/fs/cgroup/unified", 0)
	err := unix.Mount(filepath.Join(os.Getenv(diskEnv), "cni"), "/var/lib/cni", "", unix.MS_BIND, "")
	if err == nil {
		_, err = fmt.Print("1")
	}
	if err != nil {
		return 1, err
	}
	orphans := make(chan os.Signal, 1)
	signal.Notify(orphans, unix.SIGCHLD)
	off := make(chan error)
	go func() {
		_, err := io.Copy(io.Discard, os.Stdin)
		off <- err
	}()
	for {
		select {
		case <-orphans:
			for pid := 1; pid > 0; {
				pid, _ = unix.Wait4(-1, nil, unix.WNOHANG, nil)
			}
		case err := <-off:
			return 0, err
		}
	}
}

// file returns the path of a file on the disk, which is the same on the machine.
func (m *machine) file(elem ...string) string {
	return filepath.Join(append([]string{m.disk}, elem...)...)
}

// path returns the path by which this process reaches a file of the machine.
func (m *machine) path(file string) string { return fmt.Sprintf("/proc/%d/root%s", m.pid, file) }

// start starts a command on the machine.
func (m *machine) start(cmd *exec.Cmd) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // not unlocked: the thread ends with the goroutine
		done <- func() error {
			if err := unix.Unshare(unix.CLONE_FS); err != nil {
				return err
			}
			var spaces []int
			for _, kind := range []string{"pid", "net", "mnt"} {
				fd, err := unix.Open(fmt.Sprintf("/proc/%d/ns/%s", m.pid, kind), unix.O_RDONLY|unix.O_CLOEXEC, 0)
				if err != nil {
					return err
				}
				defer func() { _ = unix.Close(fd) }()
				spaces = append(spaces, fd)
			}
			for _, fd := range spaces {
				if err := unix.Setns(fd, 0); err != nil {
					return err
				}
			}
			return cmd.Start()
		}()
	}()
	return <-done
}

// A report is what a command has done.
type report struct {
	code           int
	stdout, stderr string
}

// run runs a program on the machine until it ends. The program has three minutes.
func (m *machine) run(env []string, name string, args ...string) report {
	m.t.Helper()
	ctx, cancel := context.WithTimeout(m.t.Context(), 3*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	var stdout, stderr strings.Builder
	cmd.Stdout, cmd.Stderr, cmd.Dir = &stdout, &stderr, "/"
	cmd.Env = append([]string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}, env...)
	cmd.WaitDelay = 5 * time.Second
	err := m.start(cmd)
	if err == nil {
		err = cmd.Wait()
	}
	if failed := (*exec.ExitError)(nil); err != nil && !errors.As(err, &failed) {
		m.t.Fatalf("%s %q: %v", name, args, err)
	}
	return report{cmd.ProcessState.ExitCode(), stdout.String(), stderr.String()}
}

// ok returns what a program prints, which must succeed.
func (m *machine) ok(env []string, name string, args ...string) string {
	m.t.Helper()
	r := m.run(env, name, args...)
	if r.code != 0 {
		m.t.Fatalf("%s %q: exit status %d: %s%s", filepath.Base(name), args, r.code, r.stdout, r.stderr)
	}
	return strings.TrimSpace(r.stdout)
}

// tool runs the operator's tool.
func (m *machine) tool(args ...string) string {
	m.t.Helper()
	return m.ok(nil, m.file("bin", "multinet"), args...)
}

// gc has the operator's tool remove what is stale.
func (m *machine) gc() string {
	m.t.Helper()
	return m.tool("gc", "--dir", m.file("state"), "--bin-dir", m.file("bin"))
}

// network is the path of the machine's network namespace.
func (m *machine) network() string { return fmt.Sprintf("/proc/%d/ns/net", m.pid) }

// asks returns what the server at an address answers to the machine.
func (m *machine) asks(address string) (string, error) {
	var conn net.Conn
	err := host.Do(m.network(), func() (err error) {
		conn, err = net.DialTimeout("tcp", address, 2*time.Second)
		return err
	})
	if err != nil {
		return "", err
	}
	defer func() { _ = conn.Close() }()
	_ = conn.SetReadDeadline(time.Now().Add(2 * time.Second))
	said, err := io.ReadAll(conn)
	return string(said), err
}

// leases lists the addresses that host-local has reserved.
func (m *machine) leases() []string {
	m.t.Helper()
	files, err := filepath.Glob(m.file("cni", "networks", "*", "*"))
	nodetest.OK(m.t, err)
	return slices.DeleteFunc(files, func(file string) bool { return net.ParseIP(filepath.Base(file)) == nil })
}

// cache lists the entries of libcni's cache.
func (m *machine) cache() (names []string) {
	m.t.Helper()
	entries, err := os.ReadDir(m.file("cni", "results"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		m.t.Fatal(err)
	}
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// rules lists the rules of iptables that are about an address or a container.
func (m *machine) rules() (all []string) {
	m.t.Helper()
	for line := range strings.Lines(m.ok(nil, "iptables-save")) {
		if strings.Contains(line, " 10.") || strings.Contains(line, "name: ") || strings.HasPrefix(line, ":CNI-DN-") {
			all = append(all, strings.TrimSpace(line))
		}
	}
	return all
}

// veths lists the ends of veth pairs on the machine.
func (m *machine) veths() (names []string) {
	m.t.Helper()
	links, err := host.Interfaces(m.network())
	nodetest.OK(m.t, err)
	for _, l := range links {
		if l.Kind == "veth" {
			names = append(names, l.Name)
		}
	}
	return names
}

// records lists the attachments that multinet has recorded.
func (m *machine) records() (names []string) {
	m.t.Helper()
	for line := range strings.Lines(m.tool("list", "-o", "wide", "--dir", m.file("state"))) {
		if fields := strings.Fields(line); fields[0] != "CONTAINER" {
			names = append(names, strings.Join(fields, " "))
		}
	}
	return names
}

// wantNothing fails the test if anything is left of any container, except the network
// namespaces kept.
func (m *machine) wantNothing(kept ...string) {
	m.t.Helper()
	// The kernel deletes the interfaces of a namespace some time after it.
	eventually(m.t, func() bool { return len(m.veths()) == 0 })
	nodetest.Equal(m.t, "leases", m.leases(), nil)
	nodetest.Equal(m.t, "entries in libcni's cache", m.cache(), nil)
	nodetest.Equal(m.t, "rules", m.rules(), nil)
	nodetest.Equal(m.t, "records", m.records(), nil)
	namespaces, err := filepath.Glob(m.path("/run/netns/*"))
	for i, path := range namespaces {
		namespaces[i] = strings.TrimPrefix(path, m.path(""))
	}
	if err != nil {
		m.t.Error(err)
	}
	nodetest.Equal(m.t, "network namespaces", namespaces, kept)
}

// A cnitool is a machine with cnitool, and one network namespace.
type cnitool struct {
	*machine
	netns string
}

func newCnitool(t *testing.T) *cnitool {
	t.Helper()
	needs(t, missing)
	c := &cnitool{newMachine(t), "/run/netns/blue"}
	c.ok(nil, "ip", "netns", "add", "blue")
	return c
}

// do runs a command of cnitool.
func (c *cnitool) do(command string) report {
	c.t.Helper()
	return c.run([]string{
		"NETCONFPATH=" + c.file("net.d"), "CNI_PATH=" + c.file("bin"),
		`CAP_ARGS={"portMappings":[{"hostPort":8080,"containerPort":80,"protocol":"tcp"}]}`,
	}, c.file("bin", "cnitool"), command, "multi", c.netns)
}

// succeeds runs a command that must succeed, and returns what it prints.
func (c *cnitool) succeeds(command string) string {
	c.t.Helper()
	r := c.do(command)
	if r.code != 0 || r.stderr != "" {
		c.t.Fatalf("%s: exit status %d: %s%s", command, r.code, r.stdout, r.stderr)
	}
	return r.stdout
}

// fails runs a command that must fail with a text.
func (c *cnitool) fails(command, want string) {
	c.t.Helper()
	if r := c.do(command); r.code != 1 || strings.TrimSpace(r.stderr) != want || r.stdout != "" {
		c.t.Errorf("%s: exit status %d: %s%s\nwant 1: %s", command, r.code, r.stdout, r.stderr, want)
	}
}

// TestCnitool: every command of cnitool works with multinet, and with the shim and the
// daemon; the texts of errors are ours.
func TestCnitool(t *testing.T) {
	for typ, keys := range map[string]object{
		"multinet":      {"slowAfter": "-1s"}, // cnitool prints what multinet writes to stderr
		"multinet-shim": {"type": "multinet-shim", "daemonSocketDir": "/run/multus", "delPolicy": "fail", "delQueueWait": "0s"},
	} {
		t.Run(typ, func(t *testing.T) {
			c := newCnitool(t)
			c.script("refuse", `ADD) echo '{"cniVersion":"1.0.0","code":101,"msg":"no free device","details":"all in use"}'; exit 1 ;;
STATUS) echo '{"cniVersion":"1.1.0","code":51,"msg":"few devices"}'; exit 1 ;;`)
			c.multinet("1.1.0", keys, several()...)
			if typ == "multinet-shim" {
				c.fails("status", "STATUS over /run/multus/multus.sock: the daemon is not running: connect: no such file or directory")
				c.startDaemon()
			}
			id := "cnitool-df26705e2e4ffd095eb1" // of the path of the namespace

			nodetest.Equal(t, "printed by status", c.succeeds("status"), "")
			var result struct {
				CNIVersion string
				IPs        []struct{ Address string }
			}
			nodetest.OK(t, json.Unmarshal([]byte(c.succeeds("add")), &result))
			if result.CNIVersion != "1.1.0" || len(result.IPs) != 1 || result.IPs[0].Address != "10.77.0.2/24" {
				t.Errorf("result %+v", result)
			}
			nodetest.Equal(t, "interfaces", interfaces(t, c.path(c.netns)), []string{"eth0 10.77.0.2", "net1 10.77.1.2", "net2 10.77.2.2"})
			if all := strings.Join(c.rules(), "\n"); !strings.Contains(all, "--dport 8080 -j DNAT --to-destination 10.77.0.2:80") {
				t.Errorf("rules:\n%s", all)
			}
			c.fails("add", `plugin type="`+typ+`" failed (add): ADD `+id+` eth0: already added, DEL must come first`)
			c.succeeds("check")
			c.ok(nil, "ip", "-n", "blue", "link", "delete", "net1")
			c.fails("check", `CHECK `+id+` eth0: network "second" (net1): plugin "bridge": Interface name net1 not found`)
			c.succeeds("del")
			c.succeeds("del")
			c.wantNothing(c.netns)
			c.fails("check", "CHECK "+id+" eth0: not added, or not completely")

			// cnitool first deletes what is in its cache, and then sends no list.
			c.succeeds("add")
			c.fails("gc", `failed to GC plugin `+typ+`: GC network "multi": no list of valid attachments, nothing was deleted: `+
				`GC needs "cni.dev/valid-attachments", which container runtimes send and cnitool does not`)
			c.wantNothing(c.netns)

			c.multinet("1.1.0", keys, append(several(), object{"name": "fourth", "type": "refuse"})...)
			c.fails("status", `STATUS network "fourth": plugin "refuse": few devices`)
			c.fails("add", `plugin type="`+typ+`" failed (add): ADD `+id+` eth0: network "fourth" (net3): plugin "refuse": no free device; all in use`)
			c.wantNothing(c.netns)
		})
	}
}

// startDaemon starts multinetd on the machine and waits until it is ready.
func (c *cnitool) startDaemon() *exec.Cmd {
	c.t.Helper()
	c.write("daemon.json", `{"socketDir":"/run/multus","queueDir":"`+c.file("queue")+`","cniDir":"`+c.file("state")+`"}`)
	cmd := exec.Command(filepath.Join(c.file("bin"), "multinetd"), "--config", c.file("daemon.json"))
	cmd.Env = []string{"PATH=" + process.Path}
	var log strings.Builder
	cmd.Stderr = &log
	nodetest.OK(c.t, c.start(cmd))
	c.t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if c.t.Failed() {
			c.t.Log(log.String())
		}
	})
	eventually(c.t, func() bool { return c.do("status").code == 0 })
	return cmd
}
