package scratch

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/metacni/metacni/internal/durable"
	"github.com/metacni/metacni/internal/flock"
	"github.com/metacni/metacni/internal/records"
	nodetest "github.com/metacni/metacni/internal/test/node"
)

// tryLock takes the lock of c1 if it is free, and releases it again.
func tryLock(t *testing.T, s Store[value]) error {
	t.Helper()
	return briefly(t, func(ctx context.Context) error {
		l, err := s.Lock(ctx, "c1")
		if err != nil {
			return err
		}
		return l.Unlock()
	})
}

// isHeld checks that somebody holds the lock of c1; otherwise the test says why that is wrong.
func isHeld(t *testing.T, s Store[value], otherwise string) {
	t.Helper()
	if err := tryLock(t, s); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%s: %v", otherwise, err)
	}
}

// briefly calls f with a context whose time passes only while f waits, however slow the
// machine is.
func briefly(t *testing.T, f func(context.Context) error) (err error) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		defer cancel()
		err = f(ctx)
	})
	return err
}

func lock(t *testing.T, s Store[value]) *Lock {
	t.Helper()
	l, err := s.Lock(t.Context(), "c1")
	nodetest.OK(t, err)
	return l
}

// end ends the orphans that hold the lock of c1.
func end(t *testing.T, s Store[value]) (bool, error) {
	t.Helper()
	return flock.End(t.Context(), filepath.Join(s.Dir, records.LockName("c1")), 2*time.Minute)
}

// ended checks whether the lock of c1 can be had after its orphans were ended.
func ended(t *testing.T, s Store[value], want bool) {
	t.Helper()
	if done, err := end(t, s); done != want || err != nil {
		t.Errorf("ended %v, want %v, %v", done, want, err)
	}
}

// The file of a lock may be removed, and another may have its name, between opening it
// and locking it. Then the lock is that of the other file.
func TestLockOfAFileThatWasReplaced(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	put(t, s, k1, "")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	path := filepath.Join(s.Dir, records.LockName("c1"))
	var holder *Lock
	hooked := s
	hook := durable.Hook(func(call, name string) error {
		if call != "fstatat" || name != records.LockName("c1") || holder != nil {
			return nil
		}
		nodetest.OK(t, os.Remove(path))
		holder = lock(t, s)
		cancel() // once the lock is not had
		return nil
	})
	hooked.hook = &hook
	if l, err := hooked.Lock(ctx, "c1"); !errors.Is(err, context.Canceled) {
		t.Errorf("two hold the lock: %v, %v", l, err)
	}
	nodetest.OK(t, holder.Unlock())
	nodetest.OK(t, tryLock(t, s))
}

// One at a time in one process, too; another container's lock is another lock;
// and nothing is left.
func TestOneHolderAtATime(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	var wg sync.WaitGroup
	var inside atomic.Bool // the lock is between processes, and no barrier to Go
	var n atomic.Int64
	for range 8 {
		wg.Go(func() {
			for range 25 {
				l, err := s.Lock(t.Context(), "c1")
				if err != nil {
					t.Error(err)
					return
				}
				if !inside.CompareAndSwap(false, true) {
					t.Error("two hold the lock")
				}
				other, err := s.Lock(t.Context(), fmt.Sprint("c2-", n.Add(1)))
				if err != nil || other.Unlock() != nil {
					t.Error(err)
				}
				inside.Store(false)
				if err := l.Unlock(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if left := tree(t, s.Dir); n.Load() != 200 || len(left) != 0 {
		t.Errorf("%d times; left %q", n.Load(), left)
	}
	if fds, err := os.ReadDir("/proc/self/fd"); err != nil || len(fds) > 200 {
		t.Errorf("%d files open, %v", len(fds), err)
	}
}

// Waiting ends with the context, which says why, and the code is 11.
func TestLockEndsWithContext(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	l := lock(t, s)
	shutdown := errors.New("shutdown")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(shutdown)
	for _, free := range []bool{false, true} {
		if free {
			nodetest.OK(t, l.Unlock())
		}
		if l, err := s.Lock(ctx, "c1"); l != nil || !errors.Is(err, context.Canceled) || !errors.Is(err, shutdown) || code(err) != 11 {
			t.Errorf("free: %v; %v, %v", free, l, err)
		}
	}
}

func TestUnlockTwice(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	l := lock(t, s)
	f := l.File()
	if f == nil {
		t.Fatal("no file")
	}
	flags, err := unix.FcntlInt(f.Fd(), unix.F_GETFD, 0)
	if err != nil || flags&unix.FD_CLOEXEC == 0 {
		t.Errorf("every child would inherit the file: %v", err)
	}
	// The file is the caller's: the lock does not depend on it.
	nodetest.OK(t, f.Close())
	isHeld(t, s, "closing the file released the lock")
	nodetest.OK(t, l.Unlock())
	nodetest.OK(t, l.Unlock())
	if l.File() != nil {
		t.Error("a file after unlock")
	}
}

// Whoever waits while the holder removes the file, or somebody else does,
// still gets a lock that others respect.
func TestLockOfARemovedFile(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	path := filepath.Join(s.Dir, "c1@lock")
	removed := 0
	hook := durable.Hook(func(call, name string) error {
		if call == "fstatat" && removed < 3 {
			removed++
			return os.Remove(path)
		}
		return nil
	})
	hooked := s
	hooked.hook = &hook
	l := lock(t, hooked)
	if err := tryLock(t, s); removed != 3 || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("removed %d times: %v", removed, err)
	}
	// Removed under a holder: the next one's file is not the holder's to remove.
	nodetest.OK(t, os.Remove(path))
	next := lock(t, s)
	nodetest.OK(t, l.Unlock())
	isHeld(t, s, "the next one's lock is gone")
	nodetest.OK(t, os.Remove(path))
	nodetest.OK(t, next.Unlock())
	nothing(t, s)
}

// A lock whose file can be neither kept nor removed is released all the same.
func TestUnlockReleasesInAnyCase(t *testing.T) {
	t.Parallel()
	for _, call := range []string{"getdents", "fstatat", "unlinkat"} {
		s := newStore(t)
		held := false
		hook := durable.Hook(func(c, _ string) error {
			if held && strings.Contains(call, c) {
				return unix.EROFS
			}
			return nil
		})
		hooked := s
		hooked.hook = &hook
		l := lock(t, hooked)
		held = true
		if err := l.Unlock(); !errors.Is(err, unix.EROFS) || code(err) != 5 {
			t.Errorf("EROFS at %s: %v", call, err)
		}
		nodetest.OK(t, tryLock(t, s))
		nothing(t, s)
	}
}

// A lock that is lost without Unlock is held as long as the process lives: the
// garbage collector does not release it.
func TestLostLockStaysHeld(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	id := lock(t, s).id // and the rest of it is garbage
	for range 3 {
		runtime.GC()
	}
	isHeld(t, s, "the lock was released")
	// Close what the test has lost.
	fds, err := os.ReadDir("/proc/self/fd")
	nodetest.OK(t, err)
	for _, e := range fds {
		var st unix.Stat_t
		if fd, err := strconv.Atoi(e.Name()); err == nil && unix.Fstat(fd, &st) == nil && durable.IDOf(&st) == id {
			durable.Close(fd)
		}
	}
	nodetest.OK(t, tryLock(t, s))
}

// A hard link planted as the lock's file keeps its content and mode, and the
// lock works all the same.
func TestHardLinkAsLockIsLeftAlone(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	victim := filepath.Join(newStore(t).Dir, "victim")
	nodetest.OK(t, os.WriteFile(victim, []byte("precious"), 0o400))
	nodetest.OK(t, os.Link(victim, filepath.Join(s.Dir, "c1@lock")))
	l := lock(t, s)
	isHeld(t, s, "two hold the lock")
	for _, k := range []Key{k1, k2} {
		nodetest.OK(t, s.Put(l, Record[value]{Key: k, State: Planned}))
	}
	if all, err := s.Container(t.Context(), "c1"); len(all) != 2 || err != nil {
		t.Error(all, err)
	}
	nodetest.OK(t, s.Delete(l, k1))
	nodetest.OK(t, l.Unlock())
	ended(t, s, true)
	nodetest.OK(t, del(s, k2))
	nothing(t, s)
	info, err := os.Stat(victim)
	nodetest.OK(t, err)
	if data, err := os.ReadFile(victim); string(data) != "precious" || info.Mode() != 0o400 || err != nil {
		t.Errorf("the victim is %q with mode %v, %v", data, info.Mode(), err)
	}
}

// Another process's lock is waited for, or until the context ends.
func TestLockAcrossProcesses(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	holder := start(t, "hold", s.Dir, "")
	equal(t, "it", holder.says(t), "locked")
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
	equal(t, "it", holder.says(t), "unlocked")
	nodetest.OK(t, <-got)
	// A holder that is killed holds nothing.
	holder = start(t, "hold", s.Dir, "")
	equal(t, "it", holder.says(t), "locked")
	holder.kill(t)
	nodetest.OK(t, tryLock(t, s))
	nothing(t, s)
}

// orphan starts a process that holds the lock and has children with the lock's
// file, and waits until they run. It returns the PIDs by what the children do.
func orphan(t *testing.T, s Store[value], children string) (p *actor, pids map[string]int) {
	t.Helper()
	p = start(t, "parent", s.Dir, children)
	pids = make(map[string]int)
	// A daemon is the child of a child.
	for n := strings.Count(children, ",") + strings.Count(children, "daemon") + 2; n > 0; n-- {
		said := p.says(t)
		for said == "locked" {
			said = p.says(t)
		}
		if text, ok := strings.CutPrefix(said, "child "); ok {
			pid, arg := 0, ""
			if _, err := fmt.Sscan(text, &pid, &arg); err != nil {
				t.Fatal(err)
			}
			pids[arg] = pid
			t.Cleanup(func() { _ = unix.Kill(pid, unix.SIGKILL) })
		}
	}
	return p, pids
}

// The programs of a killed holder still hold the lock, and are ended by those who wait: then, and
// not before the holder has died.
func TestOrphansHoldTheLockUntilKilled(t *testing.T) {
	t.Parallel()
	for _, children := range []string{"stay", "stay,stay", "leave", "setsid", "same", "same,stay"} {
		t.Run(children, func(t *testing.T) {
			t.Parallel()
			s := newStore(t)
			p, _ := orphan(t, s, children)
			ended(t, s, false)
			isHeld(t, s, "while the holder lives")
			p.kill(t)
			isHeld(t, s, "while its child lives")
			ended(t, s, true)
			p.gone(t)
			nodetest.OK(t, lock(t, s).Unlock())
			ended(t, s, true)
			nothing(t, s)
		})
	}
}

// A daemon that a program of the killed holder has started lives on with the lock that it has
// inherited, and nobody waits for it: the lock's file is replaced.
func TestDaemonOfAnOrphanIsSpared(t *testing.T) {
	t.Parallel()
	for _, children := range []string{"daemon", "daemon,stay", "gone", "gone,stay"} {
		t.Run(children, func(t *testing.T) {
			t.Parallel()
			s := newStore(t)
			p, pids := orphan(t, s, children)
			ended(t, s, false)
			p.kill(t)
			isHeld(t, s, "while the orphan and its daemon live")
			ended(t, s, true)
			for arg, pid := range pids {
				if want := arg == "spared"; nodetest.Ended(pid, "") == want {
					t.Errorf("%s is alive: %v", arg, !want)
				}
			}
			l := lock(t, s)
			isHeld(t, s, "the lock of the new file")
			ended(t, s, false)
			nodetest.OK(t, l.Unlock())
			nothing(t, s)
		})
	}
}

// Whoever knows too little kills nobody, and the lock stays.
func TestNobodyIsEndedOnAGuess(t *testing.T) {
	t.Parallel()
	elsewhere := func(text string) string { return strings.Replace(text, "pid:[", "pid:[1", 1) }
	for name, tt := range map[string]struct {
		children string
		note     func(string) string // changes the note of the killed holder
		alive    string              // a child
	}{
		"no note, as by an earlier release": {"stay", func(string) string { return "" }, "stay"},
		"another content":                   {"stay", func(string) string { return "precious" }, "stay"},
		"a note without numbers":            {"stay", func(string) string { return "{}" }, "stay"},
		"another namespace":                 {"stay", elsewhere, "stay"},
		"a daemon, and another namespace":   {"daemon", elsewhere, "daemon"},
		"not noted when it was killed":      {"starting", nil, "starting"},
		"one of two is not noted":           {"stay,starting", nil, "starting"},
		"a program has closed the file":     {"daemon,closes", nil, "closes"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStore(t)
			p, pids := orphan(t, s, tt.children)
			p.kill(t)
			if tt.note != nil {
				changeNote(t, s, tt.note)
			}
			ended(t, s, false)
			isHeld(t, s, "the lock is another's")
			if nodetest.Ended(pids[tt.alive], "") {
				t.Error("the child is dead")
			}
		})
	}
}

// changeNote changes the content of the lock's file.
func changeNote(t *testing.T, s Store[value], change func(string) string) {
	t.Helper()
	path := filepath.Join(s.Dir, records.LockName("c1"))
	text, err := os.ReadFile(path)
	nodetest.OK(t, err)
	nodetest.OK(t, os.WriteFile(path, []byte(change(string(text))), 0o600))
}

// A number in the note that is another process's by now, or perhaps, is not killed. Nor is a
// process that merely has the lock's file open, or waits for the lock.
func TestNobodyElseIsKilled(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, child string
		at          string // when the child was noted, if it was
		ended       bool
	}{
		{"without the lock's file", "without", "", true},
		{"with the file open anew", "anew", "", true},
		{"waits", "wait", "", true},
		{"in the holder's group", "bystander", "", true},
		{"another has the number", "without", "1", true},
		{"another may have the number", "without", "9223372036854775807", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s := newStore(t)
			p, pids := orphan(t, s, "daemon,"+tt.child)
			p.kill(t)
			if tt.at != "" {
				changeNote(t, s, func(text string) string {
					return strings.Replace(text, `"programs":[`, fmt.Sprintf(`"programs":[{"pid":%d,"at":%s},`, pids[tt.child], tt.at), 1)
				})
			}
			ended(t, s, tt.ended)
			for _, arg := range []string{"spared", tt.child} {
				if nodetest.Ended(pids[arg], "") {
					t.Errorf("%s was killed", arg)
				}
			}
		})
	}
}

// The note of a dead holder says nothing of one that has taken the lock since, and that writes
// none, as a program of an earlier release.
func TestLockOfAnEarlierReleaseIsRespected(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	p, _ := orphan(t, s, "stay")
	p.kill(t)
	note := ""
	changeNote(t, s, func(text string) string { note = text; return text })
	ended(t, s, true)
	p.gone(t)
	holder := start(t, "flock", s.Dir, "")
	equal(t, "it", holder.says(t), "locked")
	changeNote(t, s, func(string) string { return note })
	ended(t, s, false)
	isHeld(t, s, "the lock is another's")
}

// While a process takes the lock, nobody removes its file; and a process that has opened the
// file before it was removed takes the lock of the next one.
func TestFileIsReplacedBesideThoseWhoLock(t *testing.T) {
	t.Parallel()
	name := records.LockName("c1")
	t.Run("locked", func(t *testing.T) {
		t.Parallel()
		s := newStore(t)
		hooked, calls := s, 0
		hook := durable.Hook(func(call, _ string) error {
			if call == "fstatat" {
				calls++
				done, err := flock.End(t.Context(), filepath.Join(s.Dir, name), time.Millisecond)
				if done || err != nil {
					t.Errorf("ended %v, %v", done, err)
				}
			}
			return nil
		})
		hooked.hook = &hook
		l, err := hooked.Lock(t.Context(), "c1")
		nodetest.OK(t, err)
		if calls != 1 {
			t.Errorf("took the lock at try %d", calls)
		}
		isHeld(t, s, "two hold the lock")
		nodetest.OK(t, l.Unlock())
	})
	t.Run("opened", func(t *testing.T) {
		t.Parallel()
		s := newStore(t)
		p, pids := orphan(t, s, "daemon")
		p.kill(t)
		hooked, calls := s, 0
		hook := durable.Hook(func(call, _ string) error {
			if call == "fstat" && calls == 0 {
				calls++
				ended(t, s, true)
			}
			return nil
		})
		hooked.hook = &hook
		l, err := hooked.Lock(t.Context(), "c1")
		nodetest.OK(t, err)
		isHeld(t, s, "two hold the lock")
		if nodetest.Ended(pids["spared"], "") {
			t.Error("the daemon is dead")
		}
		nodetest.OK(t, l.Unlock())
	})
}

// Any number may end the same orphan and take the lock: one has it at a time.
func TestManyEndTheSameOrphan(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	for range 5 {
		p, _ := orphan(t, s, "daemon")
		p.kill(t)
		var wg sync.WaitGroup
		var inside atomic.Bool
		for range 8 {
			wg.Go(func() {
				for {
					quick := s
					quick.LockTimeout = time.Nanosecond
					l, err := quick.Lock(t.Context(), "c1")
					if err != nil {
						if _, err := end(t, s); err != nil {
							t.Error(err)
						}
						continue
					}
					if !inside.CompareAndSwap(false, true) {
						t.Error("two hold the lock")
					}
					runtime.Gosched()
					inside.Store(false)
					nodetest.OK(t, l.Unlock())
					return
				}
			})
		}
		wg.Wait()
	}
	nothing(t, s)
}

// Whoever is in an orphan's process group kills neither it nor itself.
func TestOwnGroupIsNotKilled(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	p, pids := orphan(t, s, "stay")
	killer := startIn(t, pids["stay"], "killer", s.Dir, "")
	p.kill(t)
	if said := killer.says(t); !strings.HasPrefix(said, "child ") {
		t.Fatal(said)
	}
	nodetest.OK(t, killer.Process.Signal(unix.SIGUSR1))
	equal(t, "ended", killer.says(t), "false <nil>")
	if nodetest.Ended(pids["stay"], "") {
		t.Error("the orphan is dead")
	}
}

// A process that has inherited the lock itself kills nobody with it.
func TestThoseInsideKillNobody(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	p, pids := orphan(t, s, "stay,killer")
	p.kill(t)
	nodetest.OK(t, unix.Kill(pids["killer"], unix.SIGUSR1))
	equal(t, "ended", p.says(t), "false <nil>")
	if nodetest.Ended(pids["stay"], "") {
		t.Error("the orphan is dead")
	}
}

// A plugin that is run inside the operation that holds the lock is told so at
// once, instead of waiting for itself (code 7).
func TestNestedLockIsRefused(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	l := lock(t, s)
	c := start(t, "nested", s.Dir, "", file(t, l))
	equal(t, "same container", c.says(t), "true true 7")
	equal(t, "another container", c.says(t), "true <nil>")
	nodetest.OK(t, l.Unlock())
}

// A process that inherited a lock which its parent has released waits for the next
// holder, as all do.
func TestInheritedLockThatWasReleased(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	put(t, s, k1, "") // the file stays
	former := lock(t, s)
	inherited := file(t, former)
	nodetest.OK(t, former.Unlock())
	l := lock(t, s)
	if l.id != former.id {
		t.Error("another file")
	}
	c := start(t, "nested", s.Dir, "brief", inherited)
	equal(t, "same file, another holder", c.says(t), "true false 11")
	nodetest.OK(t, l.Unlock())
}

// roleVar makes this test binary play a part of the tests below instead:
// "ROLE DIR ARGUMENT".
const roleVar = "METACNI_SCRATCH_ROLE"

// A process is a part being played, in a process of its own.
type actor struct {
	*exec.Cmd
	in  io.WriteCloser // its end ends the part
	out *bufio.Reader
}

// start starts a part. It has its own process group and the files from 3 on.
func start(t *testing.T, role, dir, arg string, files ...*os.File) *actor {
	t.Helper()
	return startWith(t, &syscall.SysProcAttr{Setpgid: true}, role, dir, arg, files...)
}

// startIn starts a part in another's process group.
func startIn(t *testing.T, pgid int, role, dir, arg string) *actor {
	t.Helper()
	return startWith(t, &syscall.SysProcAttr{Setpgid: true, Pgid: pgid}, role, dir, arg)
}

func startWith(t *testing.T, attr *syscall.SysProcAttr, role, dir, arg string, files ...*os.File) *actor {
	t.Helper()
	a := &actor{Cmd: part(t, role, Store[value]{Dir: dir}, arg)}
	a.SysProcAttr, a.ExtraFiles, a.Stdin, a.Stdout = attr, files, nil, nil
	in, err := a.StdinPipe()
	nodetest.OK(t, err)
	out, err := a.StdoutPipe()
	nodetest.OK(t, err)
	a.in, a.out = in, bufio.NewReader(out)
	nodetest.OK(t, a.Start())
	t.Cleanup(func() {
		in.Close()
		_ = unix.Kill(-a.Process.Pid, unix.SIGKILL)
		_ = a.Wait()
	})
	return a
}

// says waits for the actor's next line.
func (a *actor) says(t *testing.T) string {
	t.Helper()
	text, err := a.out.ReadString('\n')
	if err != nil {
		t.Fatalf("the other process says %q, %v", text, err)
	}
	return strings.TrimSuffix(text, "\n")
}

// kill kills the process alone, not its children, and waits for it.
func (a *actor) kill(t *testing.T) {
	t.Helper()
	nodetest.OK(t, a.Process.Kill())
	_, err := a.Process.Wait()
	nodetest.OK(t, err)
}

// gone waits until nobody has the actor's standard output open any more: it
// and all its descendants have died.
func (a *actor) gone(t *testing.T) {
	t.Helper()
	if _, err := io.Copy(io.Discard, a.out); err != nil {
		t.Fatal(err)
	}
}

var roles = map[string]func(t *testing.T, s Store[value], arg string){
	"hold": hold, "parent": parent, "child": child, "flock": flocked, "killer": killer, "nested": nested,
}

// TestRole is not a test: it plays the parts.
func TestRole(t *testing.T) {
	role := strings.SplitN(os.Getenv(roleVar), " ", 3)
	if len(role) != 3 {
		return // no other test has started it
	}
	s := Store[value]{Dir: role[1]}
	play, found := roles[role[0]]
	if !found {
		t.Fatal(role)
	}
	play(t, s, role[2])
}

func untilEOF() { _, _ = io.Copy(io.Discard, os.Stdin) }

// hold holds the lock until its input ends.
func hold(t *testing.T, s Store[value], _ string) {
	t.Helper()
	l := lock(t, s)
	fmt.Println("locked")
	untilEOF()
	nodetest.OK(t, l.Unlock())
	fmt.Println("unlocked")
}

// file is l's file for a child, until the test ends.
func file(t *testing.T, l *Lock) *os.File {
	t.Helper()
	f := l.File()
	t.Cleanup(func() { f.Close() })
	return f
}

// parent takes the lock and starts a child that has its file, as a plugin does
// with a delegate, or several. Its argument is theirs.
func parent(t *testing.T, s Store[value], arg string) {
	t.Helper()
	l := lock(t, s)
	ctx := flock.WithNotes(t.Context(), file(t, l))
	fmt.Println("locked")
	for a := range strings.SplitSeq(arg, ",") {
		role := "child"
		if a == "killer" {
			role = a
		}
		c := part(t, role, s, a)
		c.SysProcAttr = &syscall.SysProcAttr{Setpgid: a != "setsid", Setsid: a == "setsid"}
		noted := true
		switch a {
		case "without", "wait":
			noted = false
		case "anew":
			f, err := os.Open(filepath.Join(l.dir, l.name))
			nodetest.OK(t, err)
			c.ExtraFiles, noted = []*os.File{f}, false
		case "bystander":
			c.SysProcAttr, noted = nil, false
		case "same": // a program of a step
			c.SysProcAttr, noted = nil, false
			c.ExtraFiles = []*os.File{l.File()}
			_, err := flock.Start(ctx)
			nodetest.OK(t, err)
		default:
			c.ExtraFiles = []*os.File{l.File()}
		}
		if !noted {
			nodetest.OK(t, c.Start())
			continue
		}
		run, err := flock.Start(ctx)
		nodetest.OK(t, err)
		nodetest.OK(t, c.Start())
		if a == "starting" {
			continue
		}
		run.Is(c.Process.Pid)
		if a == "leave" || a == "gone" {
			// The child is gone, and not a zombie, before we go on.
			_ = c.Wait()
		}
		if a == "gone" {
			run.Ended()
		}
	}
	fmt.Println("started")
	untilEOF()
}

// part returns a command that plays a part, with our input and output.
func part(t *testing.T, role string, s Store[value], arg string) *exec.Cmd {
	t.Helper()
	c := exec.CommandContext(context.WithoutCancel(t.Context()), os.Args[0], "-test.run=^TestRole$")
	c.Env = append(os.Environ(), roleVar+"="+role+" "+s.Dir+" "+arg)
	c.Stdin, c.Stdout, c.Stderr = os.Stdin, os.Stdout, os.Stderr
	return c
}

// child lives until its input ends. "leave" starts another child in its process group and
// goes, "daemon" and "gone" start one in a session of its own, "closes" closes the lock's file,
// and "wait" waits for the lock.
func child(t *testing.T, s Store[value], arg string) {
	t.Helper()
	switch arg {
	case "leave", "daemon", "gone":
		c := part(t, "child", s, "spared")
		c.ExtraFiles = []*os.File{os.NewFile(3, "lock")}
		c.SysProcAttr = &syscall.SysProcAttr{Setsid: arg != "leave"}
		nodetest.OK(t, c.Start())
		if arg != "daemon" {
			os.Exit(0) // without the words that a test ends with
		}
	case "wait":
		go func() {
			if l, err := s.Lock(t.Context(), "c1"); err == nil {
				_ = l.Unlock()
			}
		}()
	case "closes":
		nodetest.OK(t, unix.Close(3))
	}
	fmt.Println("child", os.Getpid(), arg)
	untilEOF()
}

// killer ends orphans when it gets a signal.
func killer(t *testing.T, s Store[value], arg string) {
	t.Helper()
	told := make(chan os.Signal, 1)
	signal.Notify(told, unix.SIGUSR1)
	fmt.Println("child", os.Getpid(), arg)
	<-told
	fmt.Println(end(t, s))
}

// flocked locks the file, and no more.
func flocked(t *testing.T, s Store[value], _ string) {
	t.Helper()
	f, err := os.Open(filepath.Join(s.Dir, records.LockName("c1")))
	nodetest.OK(t, err)
	defer f.Close()
	if held, err := flock.Try(int(f.Fd()), true); !held || err != nil {
		t.Fatal(held, err)
	}
	fmt.Println("locked")
	untilEOF()
}

// nested asks for the lock inside an operation that holds it, or waits for it only
// briefly.
func nested(t *testing.T, s Store[value], arg string) {
	t.Helper()
	ctx := t.Context()
	if arg == "brief" {
		brief, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
		defer cancel()
		ctx = brief
	}
	l, err := s.Lock(ctx, "c1")
	fmt.Println(l == nil, errors.Is(err, flock.ErrNested), code(err))
	l, err = s.Lock(t.Context(), "c2")
	fmt.Println(l != nil, err)
	nodetest.OK(t, l.Unlock())
}
