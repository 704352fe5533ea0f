package scratch

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// Another process's lock is waited for, or until the context ends.
func TestLockAcrossProcesses(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	holder := start(t, "hold", s.Dir, "")
	if got := holder.says(t); got != "locked" {
		t.Fatal(got)
	}
	if err := tryLock(t, s); !errors.Is(err, context.DeadlineExceeded) || code(err) != 11 {
		t.Errorf("while another process holds it: %v", err)
	}
	got := make(chan error, 1)
	go func() {
		l, err := s.Lock(t.Context(), "c1")
		if err == nil {
			err = l.Unlock()
		}
		got <- err
	}()
	holder.in.Close()
	if said := holder.says(t); said != "unlocked" {
		t.Fatal(said)
	}
	ok(t, <-got)
	// A holder that is killed holds nothing.
	holder = start(t, "hold", s.Dir, "")
	if got := holder.says(t); got != "locked" {
		t.Fatal(got)
	}
	holder.kill(t)
	ok(t, tryLock(t, s))
	if left := tree(t, s.Dir); len(left) != 0 {
		t.Errorf("left %q", left)
	}
}

// Several processes that take the lock in turns are never in it together.
func TestExclusiveAcrossProcesses(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	ok(t, os.WriteFile(filepath.Join(s.Dir, "count"), []byte("0"), 0o600))
	var all []*actor
	for range 4 {
		all = append(all, start(t, "count", s.Dir, "50"))
	}
	for _, a := range all {
		a.gone(t)
		ok(t, a.Wait())
	}
	if data, err := os.ReadFile(filepath.Join(s.Dir, "count")); string(data) != "200" || err != nil {
		t.Errorf("counted %s, %v", data, err)
	}
	if left := tree(t, s.Dir); len(left) != 1 {
		t.Errorf("left %q", left)
	}
}

// orphan starts a process that holds the lock and has children with the lock's
// file, and waits until they run.
func orphan(t *testing.T, s Store[value], children string) (p *actor, pids []int) {
	t.Helper()
	p = start(t, "parent", s.Dir, children)
	started := false
	for !started || len(pids) < len(strings.Split(children, ",")) {
		switch said := p.says(t); {
		case said == "started":
			started = true
		case strings.HasPrefix(said, "child "):
			text, arg, _ := strings.Cut(said[len("child "):], " ")
			pid, err := strconv.Atoi(text)
			ok(t, err)
			if pids = append(pids, pid); arg == "stay" { // orphans first
				slices.Reverse(pids)
			}
			t.Cleanup(func() { _ = unix.Kill(pid, unix.SIGKILL) })
		}
	}
	return p, pids
}

// The children of a killed holder still hold the lock, and are killed by those
// who may: then, and not before the holder has died.
func TestOrphansHoldTheLockUntilKilled(t *testing.T) {
	t.Parallel()
	for _, children := range []string{"stay", "stay,stay", "leave", "setsid"} {
		t.Run(children, func(t *testing.T) {
			t.Parallel()
			s := newStore(t)
			p, _ := orphan(t, s, children)
			if n, err := killOrphans(s); n != 0 || err != nil {
				t.Errorf("killed %d of a living holder, %v", n, err)
			}
			if err := tryLock(t, s); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("while the holder lives: %v", err)
			}
			p.kill(t)
			if err := tryLock(t, s); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("while its child lives: %v", err)
			}
			want := strings.Count(children, ",") + 1
			if n, err := killOrphans(s); n != want || err != nil {
				t.Errorf("killed %d of %d, %v", n, want, err)
			}
			p.gone(t)
			ok(t, lock(t, s).Unlock())
			if n, err := killOrphans(s); n != 0 || err != nil {
				t.Errorf("afterwards: %d, %v", n, err)
			}
			if left := tree(t, s.Dir); len(left) != 0 {
				t.Errorf("left %q", left)
			}
		})
	}
}

// Those that merely have the lock's file open, those that wait for the lock, and
// those that may have taken it themselves are not killed.
func TestNobodyElseIsKilled(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, child string
		want        int
	}{
		{"without the lock's file", "without", 0},
		{"with the file open anew", "anew", 0},
		{"closes the file on exec, as who takes a lock does", "cloexec", 0},
		{"beside an orphan", "stay,anew", 1},
		{"beside an orphan, and waits", "stay,wait", 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s := newStore(t)
			p, pids := orphan(t, s, tt.child)
			p.kill(t)
			if n, err := killOrphans(s); n != tt.want || err != nil {
				t.Errorf("killed %d, want %d, %v", n, tt.want, err)
			}
			for _, pid := range pids[tt.want:] {
				data, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
				if err != nil || strings.Contains(string(data), ") Z ") {
					t.Errorf("the child is dead: %q, %v", data, err)
				}
			}
		})
	}
}

// Whoever is in an orphan's process group may kill the orphan, and not itself.
func TestOwnGroupIsNotKilled(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	p, pids := orphan(t, s, "stay")
	killer := startIn(t, pids[0], "killer", s.Dir, "")
	p.kill(t)
	if said := killer.says(t); !strings.HasPrefix(said, "child ") {
		t.Fatal(said)
	}
	ok(t, killer.Process.Signal(unix.SIGUSR1))
	if said := killer.says(t); said != "1 <nil>" {
		t.Errorf("killed %s", said)
	}
	killer.gone(t)
	p.gone(t)
	ok(t, tryLock(t, s))
}

// A process that has inherited the lock itself kills nobody with it.
func TestThoseInsideKillNobody(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	p, pids := orphan(t, s, "stay,killer")
	p.kill(t)
	ok(t, unix.Kill(pids[1], unix.SIGUSR1))
	if said := p.says(t); said != "0 <nil>" {
		t.Errorf("killed %s", said)
	}
	ok(t, unix.Kill(pids[0], 0))
}

// In a PID namespace of its own the kernel does not tell a dead taker's number:
// orphans are found there as well.
func TestOrphansInAPIDNamespace(t *testing.T) {
	t.Parallel()
	if os.Getuid() != 0 {
		t.Skip("needs root")
	}
	s := newStore(t)
	a := startWith(t, &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWPID | unix.CLONE_NEWNS, Setpgid: true}, "namespace", s.Dir, "")
	if said := a.says(t); said != "0 1 <nil>" {
		t.Error(said)
	}
	a.in.Close()
	a.gone(t)
	ok(t, lock(t, s).Unlock())
}

// Unlock releases the lock although a child that was left behind still has its
// file open.
func TestUnlockReleasesInheritedCopies(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	l := lock(t, s)
	c := start(t, "child", s.Dir, "", file(t, l))
	if said := c.says(t); !strings.HasPrefix(said, "child ") {
		t.Fatal(said)
	}
	ok(t, l.Unlock())
	ok(t, tryLock(t, s))
	if err := c.Process.Signal(unix.Signal(0)); err != nil {
		t.Errorf("the child is gone: %v", err)
	}
}

// A plugin that is run inside the operation that holds the lock is told so at
// once, instead of waiting for itself (code 7).
func TestNestedLockIsRefused(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	l := lock(t, s)
	c := start(t, "nested", s.Dir, "", file(t, l))
	if got := c.says(t); got != "true true 7" {
		t.Errorf("same container: %s", got)
	}
	if got := c.says(t); got != "true <nil>" {
		t.Errorf("another container: %s", got)
	}
	ok(t, l.Unlock())
}

// A process that inherited a lock which its parent has released waits for the next
// holder, as all do.
func TestInheritedLockThatWasReleased(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	put(t, s, k1, "") // the file stays
	former := lock(t, s)
	inherited := file(t, former)
	ok(t, former.Unlock())
	l := lock(t, s)
	if l.id != former.id {
		t.Error("another file")
	}
	c := start(t, "nested", s.Dir, "brief", inherited)
	if got := c.says(t); got != "true false 11" {
		t.Errorf("same file, another holder: %s", got)
	}
	ok(t, l.Unlock())
}

// The example of a record on disk that the package comment promises.
func TestFormatOnDisk(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	put(t, s, k1, "one")
	data, err := os.ReadFile(recordPath(s, k1))
	ok(t, err)
	sum, rest, found := strings.Cut(string(data), " ")
	var got map[string]any
	if err := json.Unmarshal([]byte(rest), &got); err != nil || !found || len(sum) != 16 || line(strings.TrimSuffix(rest, "\n")) != string(data) {
		t.Fatalf("%q, %v", data, err)
	}
	for _, key := range []string{"version", "network", "container", "ifname", "state", "created", "updated", "value"} {
		if _, found := got[key]; !found {
			t.Errorf("no %q in %s", key, rest)
		}
	}
}
