package resident_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/metacni/metacni/delegate/resident"
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

// child returns the PID of the child that a resident has started.
func (l *log) child(t *testing.T) (pid int) {
	t.Helper()
	_, rest, _ := strings.Cut(l.String(), "child ")
	if _, err := fmt.Sscan(rest, &pid); err != nil {
		t.Fatalf("%v: %s", err, l)
	}
	return pid
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
		ok(t, os.WriteFile(path, []byte("#!/bin/sh\nexit 1\n"), 0o700))
		ok(t, os.Chmod(path, mode))
	}
	for name, mode := range map[string]fs.FileMode{
		"README": 0o644, "bridge": 0o755, "1-bridge": 0o755, "100-bridge": 0o755, "aa-bridge": 0o755, "10-": 0o755, "10-a b": 0o755,
		"10-good~": 0o755, ".10-good": 0o755, "30-plain": 0o644, "31-world": 0o757, "32-group": 0o775,
	} {
		write(name, mode)
	}
	ok(t, os.Mkdir(filepath.Join(n.Dir, "33-dir"), 0o755))
	ok(t, os.Symlink("nowhere", filepath.Join(n.Dir, "34-dangling")))
	ok(t, syscall.Mkfifo(filepath.Join(n.Dir, "35-pipe"), 0o755))
	want := map[string]string{
		"README": "its name", "bridge": "its name", "1-bridge": "its name", "100-bridge": "its name", "aa-bridge": "its name", "10-": "its name",
		"10-a b": "its name", "10-good~": "its name", ".10-good": "its name",
		"30-plain": "not executable", "31-world": "other users may write", "32-group": "other users may write", "33-dir": "not a regular file",
		"34-dangling": "no such file", "35-pipe": "not a regular file",
	}
	if os.Geteuid() == 0 {
		write("36-nobodys", 0o755)
		ok(t, os.Chown(filepath.Join(n.Dir, "36-nobodys"), 65534, 65534))
		want["36-nobodys"] = "it belongs to user 65534"
	}
	n.start()
	got := map[string]resident.Status{}
	for _, s := range n.Plugins() {
		got[filepath.Base(s.Path)] = s
	}
	for name, why := range want {
		s := got[name]
		if s.State != resident.Skipped || !errors.Is(s.Err, resident.ErrSkipped) || !strings.Contains(s.Err.Error(), why) {
			t.Errorf("%s: %s, %v, want %q", name, s.State, s.Err, why)
		}
		delete(got, name)
	}
	for name, s := range got {
		if s.State != resident.Ready {
			t.Errorf("%s: %s, %v", name, s.State, s.Err)
		}
	}
	if len(got) != 2 {
		t.Errorf("%d residents", len(got))
	}
}

// A missing directory launches nothing. One that other users may write to is an
// error, and nothing in it is launched.
func TestLaunchDirectoryMayBeMissingButNotWritableByOthers(t *testing.T) {
	t.Parallel()
	n, _ := launcher(t)
	n.Dir = filepath.Join(n.Dir, "none")
	n.start()
	n, l := launcher(t, "10-good")
	ok(t, os.Chmod(n.Dir, 0o777))
	if err := n.Start(t.Context()); err == nil || !strings.Contains(err.Error(), "other users may write to it") {
		t.Errorf("err = %v", err)
	}
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
	ok(t, err)
	var p process
	ok(t, json.Unmarshal(out, &p))
	want := process{
		Env:   []string{"CNI_RELAY_INDEX=10", "CNI_RELAY_NAME=it", "CNI_RELAY_SOCKET=3"},
		Files: []string{"/dev/null", "pipe", "pipe", "socket"}, PID: p.PID, Group: p.PID, Dir: "/",
	}
	if d := cmp.Diff(want, p); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	s := n.Plugins()[0]
	if s.PID != p.PID || s.Source != resident.Launched || s.Path != filepath.Join(n.Dir, "10-it") {
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
	ok(t, os.WriteFile(filepath.Join(n.Dir, "50-noformat"), []byte("x"), 0o755))
	n.start()
	want := []string{"10-dies refused", "30-liar refused", "40-good ready", "50-noformat refused"}
	if d := cmp.Diff(want, n.states()); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
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
	if !strings.Contains(s.Err.Error(), "the hello is missing") || alive(s.PID) {
		t.Errorf("err = %v", s.Err)
	}
}

// Each gets SIGTERM, and SIGKILL if it does not end, as do its children, before
// the next one is disconnected.
func TestStopEndsLaunchedResidentsInReverseOrder(t *testing.T) {
	t.Parallel()
	n, l := launcher(t, "10-first", "20-stubborn", "30-parent")
	n.SetGrace(20 * time.Millisecond)
	n.start()
	n.serve(simple("15", "external"))
	var pids []int
	for _, s := range n.Plugins() {
		if s.PID != 0 {
			pids = append(pids, s.PID)
		}
	}
	ok(t, n.Stop(t.Context()))
	want := []string{"30-parent gone", "20-stubborn gone", "15-external gone", "10-first gone"}
	if d := cmp.Diff(want, n.seen()[4:]); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	for _, pid := range append(pids, l.child(t)) {
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

// Stop also ends children of a resident that have left its process group,
// whether the resident ends by SIGTERM or by SIGKILL.
func TestStopEndsChildrenInOtherSessions(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"leaver", "deaf-leaver"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n, l := launcher(t, "10-"+name)
			n.SetGrace(20 * time.Millisecond)
			if name == "leaver" {
				n.SetGrace(patience)
			}
			n.start()
			ok(t, n.Stop(t.Context()))
			died(t, l.child(t))
		})
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
	ok(t, n.Stop(over))
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
	if err := n.Start(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("err = %v", err)
	}
	if err := n.Stop(t.Context()); !errors.Is(err, resident.ErrStopped) {
		t.Errorf("it runs: %v", err)
	}
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
	wantCode(t, err, 11)
	if !errors.Is(err, resident.ErrLost) {
		t.Errorf("err = %v", err)
	}
	n.await("10-it gone", 1)
	if _, err := os.Stat(fmt.Sprintf("/proc/%d", pid)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%d: %v", pid, err)
	}
	n.await("10-it ready", 2)
	_, err = n.exec(t.Context(), "it", "ADD", "c1")
	ok(t, err)
}

// A resident is gone and reaped when its process has died, even if a child
// holds its connection or its stderr.
func TestDeadResidentIsGoneWhileItsChildLives(t *testing.T) {
	t.Parallel()
	for _, keeps := range []string{"connection", "stderr"} {
		t.Run(keeps, func(t *testing.T) {
			t.Parallel()
			n, l := launcher(t, "10-it")
			n.SetPingInterval(time.Hour) // a ping would also find out
			n.start()
			_, err := n.exec(t.Context(), "it", "ADD", "leave-"+keeps)
			if !errors.Is(err, resident.ErrLost) {
				t.Errorf("err = %v", err)
			}
			n.await("10-it gone", 1)
			_ = syscall.Kill(l.child(t), syscall.SIGKILL)
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
		ok(t, os.Chmod(filepath.Dir(n.socket), 0o755))
		ok(t, os.Chmod(n.socket, 0o777))
		// Another user may have no access to its path.
		c := exec.CommandContext(t.Context(), "/proc/self/exe")
		c.Env, c.Dir = []string{roleVar + "=dial " + n.socket}, "/"
		c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		out, err := c.Output()
		ok(t, err)
		return string(out)
	}
	n := newNode(t).start()
	if said := dial(n); !strings.Contains(said, "processes of user 65534 may not register") {
		t.Error(said)
	}
	if got := n.refusals(); len(got) != 1 || !strings.Contains(got[0], "user 65534") {
		t.Errorf("%q", got)
	}
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
