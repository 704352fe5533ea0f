package scratch

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/metacni/metacni/internal/durable"
	"github.com/metacni/metacni/internal/flock"
	"github.com/metacni/metacni/internal/records"
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
	ok(t, err)
	return l
}

// killOrphans kills the orphans that hold the lock of c1.
func killOrphans(s Store[value]) (int, error) {
	return flock.KillOrphans(filepath.Join(s.Dir, records.LockName("c1")))
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
		ok(t, os.Remove(path))
		holder = lock(t, s)
		cancel() // once the lock is not had
		return nil
	})
	hooked.hook = &hook
	if l, err := hooked.Lock(ctx, "c1"); !errors.Is(err, context.Canceled) {
		t.Errorf("two hold the lock: %v, %v", l, err)
	}
	ok(t, holder.Unlock())
	ok(t, tryLock(t, s))
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
}

// Waiting ends with the context, whatever ended it, and the code is 11.
func TestLockEndsWithContext(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	l := lock(t, s)
	shutdown := errors.New("shutdown")
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	caused, cause := context.WithCancelCause(t.Context())
	cause(shutdown)
	late, cancel := context.WithTimeout(t.Context(), 5*time.Millisecond)
	defer cancel()
	for ctx, all := range map[context.Context][]error{
		canceled: {context.Canceled},
		caused:   {context.Canceled, shutdown},
		late:     {context.DeadlineExceeded},
	} {
		got, err := s.Lock(ctx, "c1")
		for _, want := range all {
			if got != nil || !errors.Is(err, want) || code(err) != 11 {
				t.Errorf("%v, %v; want %v", got, err, want)
			}
		}
	}
	ok(t, l.Unlock())
	if l, err := s.Lock(canceled, "c1"); l != nil || !errors.Is(err, context.Canceled) {
		t.Errorf("free, but the context has ended: %v, %v", l, err)
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
	ok(t, f.Close())
	if err := tryLock(t, s); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("closing the file released the lock: %v", err)
	}
	ok(t, l.Unlock())
	ok(t, l.Unlock())
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
	ok(t, os.Remove(path))
	next := lock(t, s)
	ok(t, l.Unlock())
	if err := tryLock(t, s); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the next one's lock is gone: %v", err)
	}
	ok(t, os.Remove(path))
	ok(t, next.Unlock())
	if left := tree(t, s.Dir); len(left) != 0 {
		t.Errorf("left %q", left)
	}
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
		ok(t, tryLock(t, s))
		if left := tree(t, s.Dir); len(left) != 0 {
			t.Errorf("left %q", left)
		}
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
	if err := tryLock(t, s); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the lock was released: %v", err)
	}
	// Close what the test has lost.
	fds, err := os.ReadDir("/proc/self/fd")
	ok(t, err)
	for _, e := range fds {
		var st unix.Stat_t
		if fd, err := strconv.Atoi(e.Name()); err == nil && unix.Fstat(fd, &st) == nil && durable.IDOf(&st) == id {
			durable.Close(fd)
		}
	}
	ok(t, tryLock(t, s))
}

// A hard link planted as the lock's file keeps its content and mode, and the
// lock works all the same.
func TestHardLinkAsLockIsLeftAlone(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	victim := filepath.Join(t.TempDir(), "victim")
	ok(t, os.WriteFile(victim, []byte("precious"), 0o400))
	ok(t, os.Link(victim, filepath.Join(s.Dir, "c1@lock")))
	l := lock(t, s)
	if err := tryLock(t, s); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("two hold the lock: %v", err)
	}
	for _, k := range []Key{k1, k2} {
		ok(t, s.Put(l, Record[value]{Key: k, State: Planned}))
	}
	if all, err := s.Container(t.Context(), "c1"); len(all) != 2 || err != nil {
		t.Error(all, err)
	}
	ok(t, s.Delete(l, k1))
	ok(t, l.Unlock())
	if n, err := killOrphans(s); n != 0 || err != nil {
		t.Error(n, err)
	}
	ok(t, del(s, k2))
	if left := tree(t, s.Dir); len(left) != 0 {
		t.Errorf("left %q", left)
	}
	info, err := os.Stat(victim)
	ok(t, err)
	if data, err := os.ReadFile(victim); string(data) != "precious" || info.Mode() != 0o400 || err != nil {
		t.Errorf("the victim is %q with mode %v, %v", data, info.Mode(), err)
	}
}
