package resident_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/metacni/metacni/delegate/delegatetest"
	"github.com/metacni/metacni/delegate/resident"
	nodetest "github.com/metacni/metacni/internal/test/node"
)

// A log collects the output of launched residents.
type log struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

// children returns the PIDs of the children that residents have started.
func (l *log) children() (pids []int) {
	for line := range strings.Lines(l.String()) {
		var pid int
		if _, err := fmt.Sscanf(line, "child %d", &pid); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}

// launcher returns a node with a directory of residents with these names.
func launcher(t *testing.T, names ...string) (*node, *log) {
	t.Helper()
	n, l := newNode(t), &log{}
	n.Dir, n.Stderr = t.TempDir(), l
	n.SetRelaunch(-1)
	for _, name := range names {
		executable(t, n.Dir, name)
	}
	return n, l
}

// alive reports whether a process exists and is not a zombie.
func alive(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	_, rest, _ := strings.Cut(string(stat), ") ")
	return !strings.HasPrefix(rest, "Z")
}

// Plugins lists skipped files with a reason. All other files are launched.
func TestFilesThatAreNotResidentsAreSkipped(t *testing.T) {
	t.Parallel()
	n, _ := launcher(t, "10-good", "20-also")
	write := func(name string, mode fs.FileMode) {
		path := filepath.Join(n.Dir, name)
		nodetest.OK(t, os.WriteFile(path, []byte("#!/bin/sh\nexit 1\n"), 0o700))
		nodetest.OK(t, os.Chmod(path, mode))
	}
	for name, mode := range map[string]fs.FileMode{
		"README": 0o644, "1-bridge": 0o755, "10-": 0o755, "10-good~": 0o755, "30-plain": 0o644, "31-world": 0o757, "32-group": 0o775,
	} {
		write(name, mode)
	}
	nodetest.OK(t, os.Mkdir(filepath.Join(n.Dir, "33-dir"), 0o755))
	nodetest.OK(t, os.Symlink("nowhere", filepath.Join(n.Dir, "34-dangling")))
	nodetest.OK(t, syscall.Mkfifo(filepath.Join(n.Dir, "35-pipe"), 0o755))
	want := map[string]string{
		"README": "its name", "1-bridge": "its name", "10-": "its name", "10-good~": "its name",
		"30-plain": "not executable", "31-world": "other users may write", "32-group": "other users may write", "33-dir": "not a regular file",
		"34-dangling": "no such file", "35-pipe": "not a regular file",
	}
	if os.Geteuid() == 0 {
		write("36-nobodys", 0o755)
		nodetest.OK(t, os.Chown(filepath.Join(n.Dir, "36-nobodys"), 65534, 65534))
		want["36-nobodys"] = "it belongs to user 65534"
	}
	n.start()
	got := map[string]resident.Status{}
	for _, s := range n.Plugins() {
		got[filepath.Base(s.Path)] = s
	}
	for name, why := range want {
		s := got[name]
		if s.State != resident.Skipped || !strings.Contains(s.Err.Error(), why) {
			t.Errorf("%s: %s, %v, want %q", name, s.State, s.Err, why)
		}
		delete(got, name)
	}
	for name, s := range got {
		if s.State != resident.Ready {
			t.Errorf("%s: %s, %v", name, s.State, s.Err)
		}
	}
	nodetest.Equal(t, "residents", len(got), 2)
}

// A missing directory launches nothing. One that other users may write to is an
// error, and nothing in it is launched.
func TestLaunchDirectoryMayBeMissingButNotWritableByOthers(t *testing.T) {
	t.Parallel()
	n, _ := launcher(t)
	n.Dir = filepath.Join(n.Dir, "none")
	n.start()
	n, l := launcher(t, "10-good")
	nodetest.OK(t, os.Chmod(n.Dir, 0o777))
	nodetest.Says(t, n.Start(t.Context()), "other users may write to it")
	if l.String() != "" {
		t.Error(l)
	}
}

// A launched resident has its index, its name and its connection, and no
// variable, file, process group or directory of this process.
func TestLaunchedResidentInheritsNothingElse(t *testing.T) {
	t.Parallel()
	n, l := launcher(t, "10-it")
	n.start()
	out, err := n.exec(t.Context(), "it", "ADD", "self")
	nodetest.OK(t, err)
	var p process
	nodetest.OK(t, json.Unmarshal(out, &p))
	want := process{
		Env:   []string{"CNI_RELAY_INDEX=10", "CNI_RELAY_NAME=it", "CNI_RELAY_SOCKET=3"},
		Files: []string{"/dev/null", "pipe", "pipe", "socket"}, PID: p.PID, Group: p.PID, Dir: "/",
	}
	nodetest.Equal(t, "got", p, want)
	s := n.Plugins()[0]
	if s.PID != p.PID || s.Path != filepath.Join(n.Dir, "10-it") {
		t.Errorf("%+v", s)
	}
	if !strings.Contains(l.String(), "it was launched") {
		t.Errorf("stderr: %q", l)
	}
}

// The others serve, and no process of a failed one is left.
func TestResidentsThatFailToStartAreListed(t *testing.T) {
	t.Parallel()
	n, _ := launcher(t, "10-dies", "30-liar", "40-good")
	nodetest.OK(t, os.WriteFile(filepath.Join(n.Dir, "50-noformat"), []byte("x"), 0o755))
	n.start()
	want := []string{"10-dies refused", "30-liar refused", "40-good ready", "50-noformat refused"}
	nodetest.Equal(t, "got", n.states(), want)
	for _, s := range n.Plugins() {
		if s.State == resident.Refused && s.Err == nil {
			t.Errorf("%s without a reason", s)
		}
		if s.Name == "liar" && !strings.Contains(s.Err.Error(), `it was launched as 30-liar and registers as "30-honest"`) {
			t.Errorf("liar: %v", s.Err)
		}
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, s := range n.events {
		if s.State == resident.Refused && s.PID != 0 && alive(s.PID) {
			t.Errorf("%s is alive", s)
		}
	}
}

func TestLaunchedResidentThatDoesNotRegisterIsKilled(t *testing.T) {
	t.Parallel()
	n, _ := launcher(t, "20-silent")
	n.RegisterTimeout = 10 * time.Millisecond
	n.start()
	s := n.await("20-silent refused", 1)
	if !strings.Contains(s.Err.Error(), "asking who it is: no answer in time") || alive(s.PID) {
		t.Errorf("err = %v", s.Err)
	}
}

// Each gets SIGTERM, and SIGKILL if it does not end, as do its children, also those that have
// left its process group.
func TestStopEndsLaunchedResidents(t *testing.T) {
	t.Parallel()
	n, l := launcher(t, "10-first", "20-stubborn", "30-parent", "40-leaver", "50-deaf-leaver")
	n.SetGrace(100 * time.Millisecond)
	n.start()
	n.serve(simple("15", "external"))
	var pids []int
	for _, s := range n.Plugins() {
		if s.PID != 0 {
			pids = append(pids, s.PID)
		}
	}
	nodetest.OK(t, n.Stop(t.Context()))
	ended := n.seen()[6:]
	slices.Sort(ended)
	nodetest.Equal(t, "ended", ended, []string{
		"10-first gone", "15-external gone", "20-stubborn gone", "30-parent gone", "40-leaver gone", "50-deaf-leaver gone",
	})
	children := l.children()
	nodetest.Equal(t, "children", len(children), 3)
	for _, pid := range append(pids, children...) {
		died(t, pid)
	}
}

// died waits until a process has died. It need not be a child of this one.
func died(t *testing.T, pid int) {
	t.Helper()
	for late := time.Now().Add(patience); alive(pid); {
		if time.Now().After(late) {
			t.Fatalf("%d is alive", pid)
		}
	}
}

func TestStopKillsAtOnceWhenItsContextEnds(t *testing.T) {
	t.Parallel()
	n, _ := launcher(t, "20-stubborn")
	n.SetGrace(time.Hour)
	n.start()
	pid := n.Plugins()[0].PID
	over, cancel := context.WithCancel(t.Context())
	cancel()
	nodetest.OK(t, n.Stop(over))
	if alive(pid) {
		t.Error("it is alive")
	}
}

func TestStartLeavesNothingRunningWhenItsContextEnds(t *testing.T) {
	t.Parallel()
	n, _ := launcher(t, "10-good", "20-silent")
	n.RegisterTimeout = time.Hour
	ctx, cancel := context.WithCancel(t.Context())
	n.Observer = func(resident.Status) { cancel() } // of 10-good
	nodetest.Is(t, n.Start(ctx), context.Canceled)
	nodetest.Is(t, n.Stop(t.Context()), resident.ErrStopped)
}

// When a launched resident dies, running calls fail with code 11, the process
// is reaped, and it is launched again.
func TestResidentThatDiesIsLaunchedAgain(t *testing.T) {
	t.Parallel()
	n, _ := launcher(t, "10-it")
	n.SetRelaunch(time.Millisecond)
	n.start()
	pid := n.Plugins()[0].PID
	_, err := n.exec(t.Context(), "it", "ADD", "die")
	nodetest.Code(t, err, 11)
	nodetest.Is(t, err, resident.ErrLost)
	n.await("10-it gone", 1)
	if _, err := os.Stat(fmt.Sprintf("/proc/%d", pid)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%d: %v", pid, err)
	}
	n.await("10-it ready", 2)
	_, err = n.exec(t.Context(), "it", "ADD", "c1")
	nodetest.OK(t, err)
}

// A resident is gone and reaped when its process has died, even if a child
// holds its connection or its stderr.
func TestDeadResidentIsGoneWhileItsChildLives(t *testing.T) {
	t.Parallel()
	for _, keeps := range []string{"connection", "stderr"} {
		t.Run(keeps, func(t *testing.T) {
			t.Parallel()
			n, l := launcher(t, "10-it")
			n.start()
			_, err := n.exec(t.Context(), "it", "ADD", "leave-"+keeps)
			nodetest.Is(t, err, resident.ErrLost)
			n.await("10-it gone", 1)
			_ = syscall.Kill(l.children()[0], syscall.SIGKILL)
		})
	}
}

// Only processes of root and of the own user may register.
func TestOtherUsersAreRefused(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("needs root, to be another user")
	}
	dial := func(n *node) string {
		t.Helper()
		nodetest.OK(t, os.Chmod(filepath.Dir(n.socket), 0o755))
		nodetest.OK(t, os.Chmod(n.socket, 0o777))
		// Another user may have no access to its path.
		c := exec.CommandContext(t.Context(), "/proc/self/exe")
		c.Env, c.Dir = []string{roleVar + "=dial " + n.socket}, "/"
		c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		out, err := c.Output()
		nodetest.OK(t, err)
		return string(out)
	}
	n := newNode(t).start()
	if said := dial(n); !strings.Contains(said, "processes of user 65534 may not register") {
		t.Error(said)
	}
	nodetest.Says(t, n.await(". refused", 1).Err, "a process of user 65534")
}

func TestInheritedChecksTheEnvironment(t *testing.T) {
	t.Parallel()
	if conn, _, _, err := resident.Inherited([]string{"PATH=/bin"}); conn != nil || err != nil {
		t.Errorf("not launched: %v, %v", conn, err)
	}
	for _, fd := range []string{"", "x", "-1", "0", "2", "1000000", "99999999999999999999"} {
		if conn, _, _, err := resident.Inherited([]string{"CNI_RELAY_SOCKET=" + fd}); conn != nil || err == nil {
			t.Errorf("%q: %v, %v", fd, conn, err)
		}
	}
}

// A file that was replaced while its resident ran is not executed unless it passes the
// checks. It is launched when it has been put back.
func TestRelaunchChecksTheFileAgain(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		swap, back func(dir string) error
		want       string
	}{
		"another": {func(dir string) error { return other(dir, 0o777) }, nil, "other users may write to it"},
		"no file": {
			func(dir string) error { return os.Rename(filepath.Join(dir, "10-it"), filepath.Join(dir, "kept")) },
			func(dir string) error { return os.Rename(filepath.Join(dir, "kept"), filepath.Join(dir, "10-it")) }, "no such file",
		},
		"an open directory": {
			func(dir string) error { return os.Chmod(dir, 0o777) },
			func(dir string) error { return os.Chmod(dir, 0o700) }, "other users may write to it",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n, l := launcher(t, "10-it")
			n.SetRelaunch(time.Millisecond)
			n.start()
			nodetest.OK(t, tt.swap(n.Dir))
			_, err := n.exec(t.Context(), "it", "ADD", "die")
			nodetest.Code(t, err, 11)
			nodetest.Says(t, n.await("10-it skipped", 1).Err, tt.want)
			if got := strings.Count(l.String(), "it was launched"); got != 1 || strings.Contains(l.String(), "intruder") {
				t.Errorf("launched %d times: %s", got, l)
			}
			if tt.back != nil {
				nodetest.OK(t, tt.back(n.Dir))
				n.await("10-it ready", 2)
				nodetest.Equal(t, "got", n.states(), []string{"10-it ready"})
			}
		})
	}
}

// other replaces 10-it in dir by a script that prints "intruder".
func other(dir string, mode os.FileMode) error {
	path := filepath.Join(dir, "10-it")
	return errors.Join(
		os.WriteFile(path+"~", []byte("#!/bin/sh\necho intruder\n"), 0o600), os.Chmod(path+"~", mode), os.Rename(path+"~", path),
	)
}

// The interpreter reads the checked file, even if its path is replaced.
func TestScriptIsLaunchedFromTheCheckedDescriptor(t *testing.T) {
	t.Parallel()
	n, _ := launcher(t)
	n.SetRelaunch(time.Millisecond) // another test may fork while the script is written
	exe, err := os.Executable()
	nodetest.OK(t, err)
	nodetest.OK(t, os.WriteFile(filepath.Join(n.Dir, "10-it"), fmt.Appendf(nil, "#!/bin/sh\n[ \"$0\" = /proc/self/fd/4 ] && exec %q\n", exe), 0o700))
	n.start()
	n.await("10-it ready", 1)
	_, err = n.exec(t.Context(), "it", "ADD", "c1")
	nodetest.OK(t, err)
}

// roleVar gives the executable of this test a role.
const roleVar = "METACNI_RESIDENT_ROLE"

func TestMain(m *testing.M) {
	if os.Getenv("CNI_RELAY_SOCKET") != "" {
		os.Exit(playLaunched())
	}
	if socket, ok := strings.CutPrefix(os.Getenv(roleVar), "dial "); ok {
		os.Exit(playDial(socket))
	}
	os.Exit(m.Run())
}

// playLaunched is a launched resident whose name says how it behaves.
func playLaunched() int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	conn, index, name, err := resident.Inherited(os.Environ())
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 3
	}
	fmt.Fprintln(os.Stderr, name, "was launched")
	d := with(index, name, func(_ context.Context, c delegatetest.Call) ([]byte, error) {
		switch c.ContainerID {
		case "die":
			os.Exit(4)
		case "leave-connection": // dies, but its child keeps the connection
			f, err := conn.(*net.UnixConn).File()
			if err != nil || startSleep(&exec.Cmd{ExtraFiles: []*os.File{f}}) != nil {
				os.Exit(7)
			}
			os.Exit(4)
		case "leave-stderr": // dies, but its child, in another session, keeps stderr
			if startSleep(&exec.Cmd{Stderr: os.Stderr, SysProcAttr: &syscall.SysProcAttr{Setsid: true}}) != nil {
				os.Exit(7)
			}
			os.Exit(4)
		case "self":
			return json.Marshal(self())
		}
		return []byte(`{"cniVersion":"1.1.0"}`), nil
	})
	switch name {
	case "dies":
		return 5
	case "silent":
		<-ctx.Done()
		return 0
	case "liar":
		d.Name = "honest"
	case "stubborn":
		signal.Ignore(syscall.SIGTERM)
		_ = d.Serve(context.Background(), conn)
		select {} // only SIGKILL ends it
	case "leaver", "deaf-leaver": // has a child in another session
		if startSleep(&exec.Cmd{SysProcAttr: &syscall.SysProcAttr{Setsid: true}}) != nil {
			return 6
		}
		if name == "deaf-leaver" {
			signal.Ignore(syscall.SIGTERM)
			_ = d.Serve(context.Background(), conn)
			select {}
		}
	case "parent":
		// A child that ignores the end of its parent.
		if startSleep(&exec.Cmd{}) != nil {
			return 6
		}
	}
	if err := d.Serve(ctx, conn); err != nil && name != "liar" {
		<-ctx.Done() // its connection is closed before it is told to end
	}
	fmt.Fprintln(os.Stderr, name, "ends")
	return 0
}

// startSleep starts child, which sleeps, and prints its PID.
func startSleep(child *exec.Cmd) error {
	child.Path, child.Args = "/bin/sleep", []string{"sleep", "100"}
	if err := child.Start(); err != nil {
		return err
	}
	fmt.Fprintln(os.Stderr, "child", child.Process.Pid)
	return nil
}

// A process is what a launched resident sees of itself.
type process struct {
	Env, Files []string
	PID, Group int
	Dir        string
}

func self() process {
	dir, _ := os.Getwd()
	p := process{Env: os.Environ(), PID: os.Getpid(), Group: syscall.Getpgrp(), Dir: dir}
	slices.Sort(p.Env)
	files, _ := os.ReadDir("/proc/self/fd")
	for _, f := range files {
		link, err := os.Readlink("/proc/self/fd/" + f.Name())
		kind, _, _ := strings.Cut(link, ":")
		// Other files belong to the Go runtime or were passed to the test.
		if err == nil && (kind == "socket" || f.Name() == "0" || f.Name() == "1" || f.Name() == "2") {
			p.Files = append(p.Files, kind)
		}
	}
	return p
}

// playDial registers and prints the answer.
func playDial(socket string) int {
	c, err := net.Dial("unix", socket)
	if err != nil {
		fmt.Println(err)
		return 1
	}
	line, err := bufio.NewReader(c).ReadString('\n')
	fmt.Print(line)
	if err != nil {
		return 1
	}
	return 0
}

// executable makes name in dir a link to the executable of this test.
func executable(t testing.TB, dir, name string) {
	t.Helper()
	exe, err := os.Executable()
	nodetest.OK(t, err)
	nodetest.OK(t, os.Chmod(exe, 0o755)) // whatever the umask was when it was built
	nodetest.OK(t, os.Symlink(exe, filepath.Join(dir, name)))
}
