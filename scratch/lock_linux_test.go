package scratch

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/metacni/metacni/internal/durable"
)

// tryLock takes the lock of c1 if it can be had within the time a test can
// spare, and releases it again.
func tryLock(t *testing.T, s Store[value]) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	l, err := s.Lock(ctx, "c1")
	if err != nil {
		return err
	}
	return l.Unlock()
}

func lock(t *testing.T, s Store[value]) *Lock {
	t.Helper()
	l, err := s.Lock(t.Context(), "c1")
	ok(t, err)
	return l
}

// One at a time in one process, too; another container's lock is another lock;
// and nothing is left (G7, D40).
func TestG7OneAtATime(t *testing.T) {
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

// Waiting ends with the context, whatever ended it, and the code is 11 (G6).
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
	if l.File() == nil {
		t.Error("no file")
	}
	ok(t, l.Unlock())
	ok(t, l.Unlock())
	if l.File() != nil {
		t.Error("a file after unlock")
	}
	if err := l.Started(os.Getpid()); !errors.Is(err, os.ErrClosed) {
		t.Error(err)
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

// A lock whose file cannot be removed is released all the same.
func TestUnlockReleasesInAnyCase(t *testing.T) {
	t.Parallel()
	for _, call := range []string{"fstatat", "unlinkat"} {
		s := newStore(t)
		held := false
		hook := durable.Hook(func(c, _ string) error {
			if held && c == call {
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

// What a holder that died wrote about itself is gone when the next one writes.
func TestStartedReplacesTheDeadHoldersWords(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	path := filepath.Join(s.Dir, "c1@lock")
	ok(t, os.WriteFile(path, []byte("owner 7 7 7\ngroup 8 8\n"), 0o600))
	l := lock(t, s)
	if data, err := os.ReadFile(path); len(data) != 0 || err != nil {
		t.Errorf("%q, %v", data, err)
	}
	ok(t, l.Started(os.Getpid()))
	ok(t, l.Started(os.Getppid()))
	data, err := os.ReadFile(path)
	ok(t, err)
	o, groups := parseLock(data)
	if me, err := self(); err != nil || o != me || o.pid != os.Getpid() || len(groups) != 2 || groups[0] != o.process || groups[1].pid != os.Getppid() {
		t.Errorf("%q, %v", data, err)
	}
	if !o.alive() || o.reused() {
		t.Error("this process does not live")
	}
	if err := l.Started(1 << 30); !errors.Is(err, fs.ErrNotExist) || code(err) != 5 {
		t.Errorf("no such process: %v", err)
	}
	// The group it says it started is its own: it must not be killed.
	if n, err := s.KillOrphans("c1"); n != 0 || err != nil {
		t.Error(n, err)
	}
	ok(t, l.Unlock())
	if n, err := s.KillOrphans("c1"); n != 0 || err != nil {
		t.Errorf("no lock file: %d, %v", n, err)
	}
	if n, err := (Store[value]{Dir: s.Dir + "/none"}).KillOrphans("c1"); n != 0 || err != nil {
		t.Errorf("no directory: %d, %v", n, err)
	}
}

func TestParseLock(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, text string
		owner      owner
		groups     []process
	}{
		{"empty", "", owner{}, nil},
		{"whole", "owner 10 20 30\ngroup 40 50\ngroup 60 70\n", owner{process{10, 20}, 30}, []process{{40, 50}, {60, 70}}},
		{"cut off", "owner 10 20 30\ngroup 40 50\ngroup 60 7", owner{process{10, 20}, 30}, []process{{40, 50}}},
		{"everybody", "owner 10 20 30\ngroup -1 5\ngroup 0 5\ngroup 1 5\n", owner{process{10, 20}, 30}, nil},
		{"too large", "owner 10 20 30\ngroup 4294967297 5\ngroup 5 99999999999999999999\n", owner{process{10, 20}, 30}, nil},
		{"garbage", "owner\ngroup\nowner a b c\ngroup a b\ngroup 4 5 6\n\x00\n", owner{}, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			o, groups := parseLock([]byte(tt.text))
			if o != tt.owner || len(groups) != len(tt.groups) {
				t.Fatalf("%v %v", o, groups)
			}
			for i, g := range groups {
				if g != tt.groups[i] {
					t.Errorf("%v, want %v", g, tt.groups[i])
				}
			}
		})
	}
}

func TestParseStat(t *testing.T) {
	t.Parallel()
	const rest = " S 1 42 3 4 5 6 7 8 9 10 11 12 13 14 15 16 2 18 777 20\n"
	for text, want := range map[string]procStat{
		"41 (sh)" + rest:        {process{41, 777}, 'S', 42, 2},
		"41 (a) R 1 (b)" + rest: {process{41, 777}, 'S', 42, 2},
		"41 (\n)" + rest:        {process{41, 777}, 'S', 42, 2},
	} {
		if got, ok := parseStat([]byte(text)); !ok || got != want {
			t.Errorf("%q: %v, %v", text, got, ok)
		}
	}
	for _, text := range []string{"", "41 (sh", "41 )(" + rest, "41 (sh) S 1 42", "x (sh)" + rest, "41 (sh) SS" + rest[2:]} {
		if got, ok := parseStat([]byte(text)); ok {
			t.Errorf("%q: %v", text, got)
		}
	}
	for state, want := range map[procStat]bool{
		{state: 'S', threads: 1}: false, {state: 'Z', threads: 1}: true, {state: 'Z', threads: 2}: false, {state: 'X'}: true,
	} {
		if state.dead() != want {
			t.Errorf("%c with %d threads: dead %v", state.state, state.threads, !want)
		}
	}
}
