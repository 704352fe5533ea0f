package runtimes

import (
	"context"
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

	"github.com/metacni/metacni/examples/lab/host"
	nodetest "github.com/metacni/metacni/internal/test/node"
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
		if err := os.Mkdir(m.file(dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	programs, err := filepath.Glob(filepath.Join(os.Getenv(binEnv), "*"))
	for _, p := range programs {
		if err == nil {
			err = os.Symlink(p, m.file("bin", filepath.Base(p)))
		}
	}
	if err != nil {
		t.Fatal(err)
	}
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
	if err != nil {
		m.t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		m.t.Fatal(err)
	}
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
	if err := nodetest.Restarted(m.file("state")); err != nil {
		m.t.Fatal(err)
	}
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
	if err != nil {
		m.t.Fatal(err)
	}
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
	if err != nil {
		m.t.Fatal(err)
	}
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
	same(m.t, "leases", nil, m.leases())
	same(m.t, "entries in libcni's cache", nil, m.cache())
	same(m.t, "rules", nil, m.rules())
	same(m.t, "records", nil, m.records())
	namespaces, err := filepath.Glob(m.path("/run/netns/*"))
	for i, path := range namespaces {
		namespaces[i] = strings.TrimPrefix(path, m.path(""))
	}
	if err != nil {
		m.t.Error(err)
	}
	same(m.t, "network namespaces", kept, namespaces)
}
