package flock

import (
	"os"
	"os/exec"
	"testing"

	"golang.org/x/sys/unix"
)

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

func TestEnded(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]bool{
		"Name:\tsh\nState:\tS (sleeping)\nThreads:\t1\n":         false,
		"Name:\tState:\\nZ\nState:\tR (running)\nThreads:\t1\n":  false,
		"Name:\tsh\nState:\tZ (zombie)\nPid:\t41\nThreads:\t1\n": true,
		"Name:\tsh\nState:\tZ (zombie)\nPid:\t41\nThreads:\t2\n": false,
		"Name:\tsh\nState:\tX (dead)\nThreads:\t1\n":             true,
		"":    false,
		"\n:": false,
	} {
		if got := ended([]byte(text)); got != want {
			t.Errorf("%q: %v", text, got)
		}
	}
}

// A number that is nobody's, or another's by now, is not the taker of a lock; a
// zombie is dead.
func TestMayHold(t *testing.T) {
	t.Parallel()
	zombie := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^$")
	if err := zombie.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = zombie.Wait() }()
	// All its threads are gone, and nobody has waited for it.
	if err := unix.Waitid(unix.P_PID, zombie.Process.Pid, nil, unix.WEXITED|unix.WNOWAIT, nil); err != nil {
		t.Fatal(err)
	}
	for name, pid := range map[string]int{"hidden": 0, "negative": -1, "none": 1 << 30, "has other files": os.Getpid(), "zombie": zombie.Process.Pid} {
		if mayHold(pid) {
			t.Errorf("%s: process %d may hold the lock", name, pid)
		}
	}
}

// A process that was seen to have the lock is spared when it no longer has: its number
// may be another's by now.
func TestProcessesWithoutTheLockAreSpared(t *testing.T) {
	t.Parallel()
	path := t.TempDir() + "/lock"
	fd := open(t, path)
	if held, err := Try(fd, true); !held || err != nil {
		t.Fatal(held, err)
	}
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	innocent := exec.CommandContext(t.Context(), "sleep", "600")
	if err := innocent.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = innocent.Wait() }()
	defer func() { _ = innocent.Process.Kill() }()
	if killed, err := (lockFile{"lock", info}).kill([]int{innocent.Process.Pid}); killed != 0 || err != nil {
		t.Errorf("killed %d, %v", killed, err)
	}
	if err := innocent.Process.Signal(unix.Signal(0)); err != nil {
		t.Error(err)
	}
}

// Nobody is killed for a file that is not there, or that nobody has locked.
func TestKillOrphansOfNobody(t *testing.T) {
	t.Parallel()
	path := t.TempDir() + "/lock"
	for range 2 {
		if killed, err := KillOrphans(path); killed != 0 || err != nil {
			t.Errorf("killed %d, %v", killed, err)
		}
		open(t, path)
	}
}
