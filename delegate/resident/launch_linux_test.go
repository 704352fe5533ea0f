package resident_test

import (
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
	"syscall"
	"testing"
	"time"

	"github.com/metacni/metacni/delegate/delegatetest"
	"github.com/metacni/metacni/delegate/resident"
	nodetest "github.com/metacni/metacni/internal/test/node"
)

// children returns the PIDs of the children that residents have started.
func children(l *nodetest.Log) (pids []int) {
	for line := range strings.Lines(l.String()) {
		var pid int
		if _, err := fmt.Sscanf(line, "child %d", &pid); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}

// launcher returns a node with a directory of residents with these names, which are links to the
// executable of this test.
func launcher(t *testing.T, names ...string) (*node, *nodetest.Log) {
	t.Helper()
	n, l := newNode(t), new(nodetest.Log)
	n.Dir, n.Stderr = t.TempDir(), l
	n.SetRelaunch(-1)
	exe, err := os.Executable()
	nodetest.OK(t, err)
	nodetest.OK(t, os.Chmod(exe, 0o755)) // whatever the umask was when it was built
	for _, name := range names {
		nodetest.OK(t, os.Symlink(exe, filepath.Join(n.Dir, name)))
	}
	return n, l
}

// Plugins lists skipped files with a reason. All other files are launched.
func TestFilesThatAreNotResidentsAreSkipped(t *testing.T) {
	t.Parallel()
	n, _ := launcher(t, "10-good", "20-also")
	want := map[string]string{"33-dir": "not a regular file", "34-dangling": "no such file", "35-pipe": "not a regular file"}
	write := func(name string, mode fs.FileMode, why string) string {
		path := filepath.Join(n.Dir, name)
		nodetest.OK(t, os.WriteFile(path, []byte("#!/bin/sh\nexit 1\n"), 0o700))
		nodetest.OK(t, os.Chmod(path, mode))
		want[name] = why
		return path
	}
	for _, name := range []string{"README", "1-bridge", "10-", "10-good~"} {
		write(name, 0o755, "its name")
	}
	write("30-plain", 0o644, "not executable")
	write("31-world", 0o757, "other users may write")
	write("32-group", 0o775, "other users may write")
	nodetest.OK(t, os.Mkdir(filepath.Join(n.Dir, "33-dir"), 0o755))
	nodetest.OK(t, os.Symlink("nowhere", filepath.Join(n.Dir, "34-dangling")))
	nodetest.OK(t, syscall.Mkfifo(filepath.Join(n.Dir, "35-pipe"), 0o755))
	if os.Geteuid() == 0 {
		nodetest.OK(t, os.Chown(write("36-nobodys", 0o755, "it belongs to user 65534"), 65534, 65534))
	}
	n.start()
	var ready []string
	for _, s := range n.Plugins() {
		name := filepath.Base(s.Path)
		if s.State == resident.Skipped {
			nodetest.Says(t, s.Err, want[name])
			delete(want, name)
			continue
		}
		ready = append(ready, text(s))
	}
	nodetest.Equal(t, "residents", ready, []string{"10-good ready", "20-also ready"})
	nodetest.Equal(t, "not skipped", want, map[string]string{})
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
	nodetest.Equal(t, "got", p, process{
		Env:   []string{"CNI_RELAY_INDEX=10", "CNI_RELAY_NAME=it", "CNI_RELAY_SOCKET=3"},
		Files: []string{"/dev/null", "pipe", "pipe", "socket"}, PID: p.PID, Group: p.PID, Dir: "/",
	})
	s := n.Plugins()[0]
	nodetest.Equal(t, "process", fmt.Sprint(s.PID, s.Path), fmt.Sprint(p.PID, filepath.Join(n.Dir, "10-it")))
	nodetest.Equal(t, "stderr", l.Count("it was launched"), 1)
}

// The others serve, and no process of a failed one is left.
func TestResidentsThatFailToStartAreListed(t *testing.T) {
	t.Parallel()
	n, _ := launcher(t, "10-dies", "30-liar", "40-good")
	nodetest.OK(t, os.WriteFile(filepath.Join(n.Dir, "50-noformat"), []byte("x"), 0o755))
	n.start()
	nodetest.Equal(t, "got", n.states(), []string{"10-dies refused", "30-liar refused", "40-good ready", "50-noformat refused"})
	for _, s := range n.all() {
		if s.State != resident.Refused {
			continue
		}
		why := map[string]string{"liar": `it was launched as 30-liar and registers as "30-honest"`}[s.Name]
		nodetest.Says(t, s.Err, why)
		if s.PID != 0 && !nodetest.Ended(s.PID, "") {
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
	nodetest.Says(t, s.Err, "asking who it is: no answer in time")
	nodetest.Equal(t, "ended", nodetest.Ended(s.PID, ""), true)
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
	pids = append(pids, children(l)...)
	nodetest.Equal(t, "processes", len(pids), 8)
	for _, pid := range pids { // it need not be a child of this one
		nodetest.Until(t, "it has died", func() bool { return nodetest.Ended(pid, "") })
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
	nodetest.Equal(t, "ended", nodetest.Ended(pid, ""), true)
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
	err := n.call("it", "ADD", "die")
	nodetest.Code(t, err, 11)
	nodetest.Is(t, err, resident.ErrLost)
	n.await("10-it gone", 1)
	_, err = os.Stat(fmt.Sprintf("/proc/%d", pid))
	nodetest.Is(t, err, fs.ErrNotExist)
	n.await("10-it ready", 2)
	nodetest.OK(t, n.call("it", "ADD", "c1"))
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
			nodetest.Is(t, n.call("it", "ADD", "leave-"+keeps), resident.ErrLost)
			n.await("10-it gone", 1)
			_ = syscall.Kill(children(l)[0], syscall.SIGKILL)
		})
	}
}

func TestInheritedChecksTheEnvironment(t *testing.T) {
	t.Parallel()
	conn, _, _, err := resident.Inherited([]string{"PATH=/bin"})
	nodetest.OK(t, err) // not launched
	nodetest.Equal(t, "a connection", conn != nil, false)
	for _, fd := range []string{"", "x", "-1", "2", "1000000", "99999999999999999999"} {
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
		"another": {func(dir string) error {
			path := filepath.Join(dir, "10-it")
			return errors.Join(os.WriteFile(path+"~", []byte("#!/bin/sh\necho intruder\n"), 0o600), os.Chmod(path+"~", 0o777), os.Rename(path+"~", path))
		}, nil, "other users may write to it"},
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
			nodetest.Code(t, n.call("it", "ADD", "die"), 11)
			nodetest.Says(t, n.await("10-it skipped", 1).Err, tt.want)
			nodetest.Equal(t, "launched", []int{l.Count("it was launched"), l.Count("intruder")}, []int{1, 0})
			if tt.back != nil {
				nodetest.OK(t, tt.back(n.Dir))
				n.await("10-it ready", 2)
				nodetest.Equal(t, "got", n.states(), []string{"10-it ready"})
			}
		})
	}
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
	nodetest.OK(t, n.call("it", "ADD", "c1"))
}

// TestMain plays a launched resident in processes that are one.
func TestMain(m *testing.M) {
	if os.Getenv("CNI_RELAY_SOCKET") != "" {
		os.Exit(playLaunched())
	}
	os.Exit(m.Run())
}

// playLaunched is a launched resident whose name, and the containers of its calls, say how it behaves.
func playLaunched() int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	conn, index, name, err := resident.Inherited(os.Environ())
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 3
	}
	fmt.Fprintln(os.Stderr, name, "was launched")
	d := with(index, name, func(_ context.Context, c delegatetest.Invocation) ([]byte, error) {
		switch c.ContainerID {
		case "self":
			return json.Marshal(self())
		case "leave-connection": // dies, but its child keeps the connection
			if f, err := conn.(*net.UnixConn).File(); err == nil {
				startSleep(&exec.Cmd{ExtraFiles: []*os.File{f}})
			}
			os.Exit(4)
		case "leave-stderr": // dies, but its child, in another session, keeps stderr
			startSleep(&exec.Cmd{Stderr: os.Stderr, SysProcAttr: &syscall.SysProcAttr{Setsid: true}})
			os.Exit(4)
		case "die":
			os.Exit(4)
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
	case "leaver", "deaf-leaver": // has a child in another session
		startSleep(&exec.Cmd{SysProcAttr: &syscall.SysProcAttr{Setsid: true}})
	case "parent": // has a child that ignores the end of its parent
		startSleep(&exec.Cmd{})
	}
	if name == "stubborn" || name == "deaf-leaver" {
		signal.Ignore(syscall.SIGTERM)
		_ = d.Serve(context.Background(), conn)
		select {} // only SIGKILL ends it
	}
	if err := d.Serve(ctx, conn); err != nil && name != "liar" {
		<-ctx.Done() // its connection is closed before it is told to end
	}
	return 0
}

// startSleep starts child, which sleeps, and prints its PID.
func startSleep(child *exec.Cmd) {
	child.Path, child.Args = "/bin/sleep", []string{"sleep", "100"}
	if child.Start() != nil {
		os.Exit(7)
	}
	fmt.Fprintln(os.Stderr, "child", child.Process.Pid)
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

// Only processes of root and of the own user may register, and none whose user the system does not
// tell, such as one that connects by TCP.
func TestOtherUsersAreRefused(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	nodetest.OK(t, err)
	n := newNodeOf(t, &resident.Host{Listener: l}).start()
	far, err := net.Dial("tcp", l.Addr().String())
	nodetest.OK(t, err)
	other, its := net.Pipe()
	n.Attend(t.Context(), other, os.Geteuid()+1)
	for why, c := range map[string]net.Conn{
		"the user of its process is unknown": far, fmt.Sprintf("processes of user %d may not register", os.Geteuid()+1): its,
	} {
		err := nodetest.Come(t, later(func() error { return simple("10", "a").Serve(t.Context(), c) }), "the refusal")
		nodetest.Is(t, err, resident.ErrRefused)
		nodetest.Says(t, err, why)
	}
	n.await(". refused", 2)
	nodetest.Contains(t, "refusals", fmt.Sprint(n.refusals()), fmt.Sprintf("a process of user %d", os.Geteuid()+1))
	nodetest.Equal(t, "entered", n.Plugins(), nil)
}
