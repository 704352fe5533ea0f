package flock

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
)

// ok ends the test if there is an error.
func ok(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func open(t *testing.T, path string) int {
	t.Helper()
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_CREAT|unix.O_CLOEXEC, 0o600)
	ok(t, err)
	t.Cleanup(func() { _ = unix.Close(fd) })
	return fd
}

func TestLocksExcludeOthersUntilUnlocked(t *testing.T) {
	t.Parallel()
	path := t.TempDir() + "/lock"
	a, b := open(t, path), open(t, path)
	for _, tt := range []struct {
		name        string
		first, next bool // exclusive
		free        bool
	}{
		{"exclusive, exclusive", true, true, false},
		{"exclusive, shared", true, false, false},
		{"shared, exclusive", false, true, false},
		{"shared, shared", false, false, true},
	} {
		if held, err := Try(a, tt.first); !held || err != nil {
			t.Fatalf("%s: first %t, %v", tt.name, held, err)
		}
		if held, err := Try(b, tt.next); held != tt.free || err != nil {
			t.Errorf("%s: next %t, %v", tt.name, held, err)
		}
		for _, fd := range []int{a, b} {
			ok(t, Unlock(fd))
		}
	}
}

func TestUnlockReleasesCopiesOfTheDescriptor(t *testing.T) {
	t.Parallel()
	path := t.TempDir() + "/lock"
	a, b := open(t, path), open(t, path)
	child, err := unix.Dup(a)
	ok(t, err)
	defer unix.Close(child)
	if held, err := Try(a, true); !held || err != nil {
		t.Fatal(held, err)
	}
	ok(t, Unlock(a))
	if held, err := Try(b, true); !held || err != nil {
		t.Errorf("held %t, %v", held, err)
	}
}

func TestTryFailsOnABadDescriptor(t *testing.T) {
	t.Parallel()
	if held, err := Try(-1, true); held || !errors.Is(err, unix.EBADF) {
		t.Errorf("held %t, %v", held, err)
	}
}

func TestWaitEndsWithTryOrTheContext(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		tries := 0
		if err := Wait(t.Context(), 0, func() (bool, error) { tries++; return tries == 10, nil }); err != nil || tries != 10 {
			t.Errorf("after %d tries: %v", tries, err)
		}
		if err := Wait(t.Context(), 0, func() (bool, error) { return false, os.ErrPermission }); !errors.Is(err, os.ErrPermission) {
			t.Errorf("err = %v", err)
		}
		stopped := errors.New("stopped")
		ctx, cancel := context.WithCancelCause(t.Context())
		tries = 0
		err := Wait(ctx, 0, func() (bool, error) {
			if tries++; tries == 3 {
				cancel(stopped)
			}
			return false, nil
		})
		if !errors.Is(err, context.Canceled) || !errors.Is(err, stopped) || tries != 3 {
			t.Errorf("after %d tries: %v", tries, err)
		}
		if err := Wait(ctx, 0, func() (bool, error) { return true, nil }); err != nil {
			t.Errorf("free, and the context has ended: %v", err)
		}
		err = Wait(t.Context(), time.Second, func() (bool, error) {
			time.Sleep(2 * time.Second) // of the bubble
			return true, nil
		})
		if err != nil {
			t.Errorf("free, and a try takes longer than the limit: %v", err)
		}
		if err := Wait(t.Context(), time.Second, func() (bool, error) { return false, nil }); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("not free within the limit: %v", err)
		}
	})
}

func TestParseFdinfo(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, text string
		want       descriptor
	}{
		{"empty", "", descriptor{}},
		{"taken", "pos:\t0\nflags:\t02100000\nmnt_id:\t29\nino:\t7\nlock:\t1: FLOCK  ADVISORY  WRITE 42 fe:00:7 0 EOF\n", descriptor{locked: true, taker: 42}},
		{"inherited", "flags:\t0100000\nlock:\t1: FLOCK  ADVISORY  WRITE 42 fe:00:7 0 EOF\n", descriptor{locked: true, taker: 42, inherited: true}},
		{"taker hidden", "flags:\t0100000\nlock:\t1: FLOCK  ADVISORY  WRITE 0 fe:00:7 0 EOF\n", descriptor{locked: true, inherited: true}},
		{"waits", "flags:\t0100000\n", descriptor{inherited: true}},
		{"another kind of lock", "flags:\t0100000\nlock:\t1: POSIX  ADVISORY  WRITE 42 fe:00:7 0 EOF\n", descriptor{inherited: true}},
		{"no flags", "lock:\t1: FLOCK  ADVISORY  WRITE 42 fe:00:7 0 EOF\n", descriptor{locked: true, taker: 42}},
		{"garbage", "lock:\nflags:\nflags:\t9\nlock: FLOCK\n", descriptor{}},
	} {
		if got := parseFdinfo([]byte(tt.text)); got != tt.want {
			t.Errorf("%s: %+v, want %+v", tt.name, got, tt.want)
		}
	}
}

func TestParseStat(t *testing.T) {
	t.Parallel()
	const rest = " 7 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 "
	for text, want := range map[string]process{
		"41 (sh) S 1 40" + rest + "1 0 512 2633728 1\n":     {41, 40, 5120000000, false},
		"41 (a) Z (b)) R 1 41" + rest + "1 0 3 2633728 1\n": {41, 41, 30000000, false},
		"41 (sh) Z 1 41" + rest + "1 0 3 0 0\n":             {41, 41, 30000000, true},
		"41 (sh) Z 1 41" + rest + "2 0 3 0 0\n":             {41, 41, 30000000, false},
		"41 (sh) X 0 -1" + rest + "0 0 3 0 0\n":             {41, -1, 30000000, true},
		"":                                                  {}, "41 (sh) S 1 40\n": {}, "41 (sh S 1 40" + rest: {},
	} {
		if got, ok := parseStat([]byte(text)); got != want || ok != (want != process{}) {
			t.Errorf("%q: %+v, %v", text, got, ok)
		}
	}
}

// A process is the one that had its number at a time if it has not started later. One that is
// hidden may be.
func TestProcessIsKnownByItsNumberAndTime(t *testing.T) {
	t.Parallel()
	zombie := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^$")
	ok(t, zombie.Start())
	defer func() { _ = zombie.Wait() }()
	// All its threads are gone, and nobody has waited for it.
	ok(t, unix.Waitid(unix.P_PID, zombie.Process.Pid, nil, unix.WEXITED|unix.WNOWAIT, nil))
	now := sinceBoot()
	for _, tt := range []struct {
		name string
		pid  int
		at   int64
		want bool
	}{
		{"itself", os.Getpid(), now, true},
		{"its number before it has started", os.Getpid(), 1, false},
		{"none", 1 << 30, now, false},
		{"zombie", zombie.Process.Pid, now, false},
	} {
		if got := lives(tt.pid, tt.at); got != tt.want {
			t.Errorf("%s: %v", tt.name, got)
		}
	}
	self, err := stat("self")
	if err != nil || self.pid != os.Getpid() || self.group != unix.Getpgrp() || !self.since(self.start+tick-1) || self.since(self.start+tick) {
		t.Errorf("%+v, %v", self, err)
	}
}

// While a program may run that is not noted, a process that is younger may be this program, and one
// that is older is not.
func TestOlderProcessesAreNoUnnotedPrograms(t *testing.T) {
	t.Parallel()
	n := note{Programs: []program{{PID: 7, At: tick}, {At: 5*tick + 1}}}
	for start, want := range map[int64]bool{0: false, 4 * tick: false, 5 * tick: true, 9 * tick: true} {
		if got := n.unnoted(process{start: start}); got != want {
			t.Errorf("started at %d: %v", start, got)
		}
	}
	if (note{Programs: []program{{PID: 7, At: tick}}}).unnoted(process{start: 9 * tick}) {
		t.Error("all are noted")
	}
}

// A note is read as it was written, also after a longer one and with keys of a later release.
func TestNotesOfPrograms(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "lock")
	f, err := os.Create(path)
	ok(t, err)
	defer f.Close()
	ctx := WithNotes(t.Context(), f)
	begun := func() *Run {
		t.Helper()
		r, err := Start(ctx)
		ok(t, err)
		return r
	}
	check := func(want ...int) {
		t.Helper()
		n, ok := readNote(f)
		if !ok || n.PID != os.Getpid() || n.Group != unix.Getpgrp() || n.At > sinceBoot() || len(n.Programs) != len(want) {
			t.Fatalf("%+v, %v", n, ok)
		}
		for i, p := range n.Programs {
			if p.PID != want[i] || p.At <= 0 || p.At > sinceBoot() {
				t.Errorf("%+v, want process %d", p, want[i])
			}
		}
	}
	first, second := begun(), begun()
	check(0, 0)
	second.Is(1234567)
	check(0, 1234567)
	first.Is(42)
	check(42, 1234567)
	second.Ended()
	second.Ended()
	check(42)
	first.Ended()
	check()
	text := `{"later":[{}],` + string(noteOfSelf().text()[1:]) + "rest"
	if n, ok := readNote(file(t, text)); !ok || n.PID != os.Getpid() {
		t.Errorf("%s: %+v, %v", text, n, ok)
	}
	for _, text := range []string{"", "{}", "precious", text[:len(text)-8], `{"namespaces":"x","pid":0,"group":1,"at":1}`, `{"namespaces":"x","pid":2,"group":1,"at":1,"programs":[{"pid":1,"at":1}]}`} {
		if n, ok := readNote(file(t, text)); ok {
			t.Errorf("%s: %+v", text, n)
		}
	}
}

func file(t *testing.T, text string) *os.File {
	t.Helper()
	path := filepath.Join(t.TempDir(), strconv.Itoa(len(text)))
	ok(t, os.WriteFile(path, []byte(text), 0o600))
	f, err := os.Open(path)
	ok(t, err)
	t.Cleanup(func() { _ = f.Close() })
	return f
}

// A file that is not open for writing is left alone, and no obstacle. Where a note cannot be
// written, an earlier one must not stay.
func TestNotesThatCannotBeWritten(t *testing.T) {
	t.Parallel()
	f := file(t, "precious")
	r, err := Start(WithNotes(t.Context(), f))
	ok(t, err)
	r.Is(42)
	r.Ended()
	if data, err := os.ReadFile(f.Name()); string(data) != "precious" || err != nil {
		t.Errorf("%q, %v", data, err)
	}
	full, err := os.OpenFile("/dev/full", os.O_RDWR, 0)
	if err != nil {
		t.Skip("needs /dev/full")
	}
	defer full.Close()
	if _, err := Start(WithNotes(t.Context(), full)); err == nil {
		t.Error("started, and nobody knows")
	}
}

// A valid holder has emptied the file, and nobody claims it at the same time.
func TestClaim(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "lock")
	ok(t, os.WriteFile(path, []byte("of an earlier holder"), 0o600))
	a, b := open(t, path), open(t, path)
	for _, tt := range []struct {
		fd   int
		want bool
	}{{a, true}, {b, false}} {
		if held, _, err := Claim(tt.fd); held != tt.want || err != nil {
			t.Fatal(held, err)
		}
	}
	if data, err := os.ReadFile(path); len(data) > 0 || err != nil {
		t.Errorf("%q, %v", data, err)
	}
	Settle(a)
	if held, _, err := Claim(b); !held || err != nil {
		t.Error(held, err)
	}
}

// A note that was left says whether programs ran when the holder died.
func TestClaimTellsOfAnInterruption(t *testing.T) {
	t.Parallel()
	dead := note{Namespaces: "n", PID: 2, Group: 2, At: 1}
	busy := dead
	busy.Programs = []program{{PID: 3, At: 1}}
	for name, tt := range map[string]struct {
		text []byte
		want bool
	}{
		"nobody":             {nil, false},
		"a program ran":      {busy.text(), true},
		"no program ran":     {dead.text(), false},
		"nobody knows":       {[]byte("of an earlier holder"), false},
		"cut, and not valid": {busy.text()[:20], false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "lock")
			ok(t, os.WriteFile(path, tt.text, 0o600))
			fd := open(t, path)
			for _, want := range []bool{tt.want, false} { // the file is empty then
				if claimed, interrupted, err := Claim(fd); !claimed || interrupted != want || err != nil {
					t.Error(claimed, interrupted, err)
				}
				Settle(fd)
			}
		})
	}
}

// A file that is not there, or that nobody has locked, is free.
func TestEndOfNobody(t *testing.T) {
	t.Parallel()
	path := t.TempDir() + "/lock"
	for range 2 {
		if ended, err := End(t.Context(), path, 2*time.Minute); !ended || err != nil {
			t.Errorf("%v, %v", ended, err)
		}
		open(t, path)
	}
}
