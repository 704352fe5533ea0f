package queue

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/metacni/metacni/delegate/thick/wire"
	"github.com/metacni/metacni/internal/nodetest"
)

// roleVar tells this test's executable, run once more, to play a part.
const roleVar = "METACNI_QUEUE_ROLE"

// TestRole is not a test: it writes to a queue, and is killed before a system call.
func TestRole(t *testing.T) {
	role := strings.Fields(os.Getenv(roleVar))
	if len(role) != 2 {
		t.Skip("plays a part in other tests")
	}
	n, err := strconv.Atoi(role[1])
	nodetest.OK(t, err)
	calls := 0
	q := Queue{dir: filepath.Join(role[0], "queue"), hook: func(string, string) error {
		if calls++; calls == n {
			return unix.Kill(os.Getpid(), unix.SIGKILL)
		}
		return nil
	}}
	nodetest.OK(t, q.Put(t.Context(), request("c1"), away))
	fmt.Println("survived")
}

// world returns a directory with a queue that a daemon has marked.
func world(t *testing.T) (base string) {
	t.Helper()
	base = t.TempDir()
	nodetest.OK(t, os.Mkdir(filepath.Join(base, "done"), 0o700))
	mark(t, filepath.Join(base, "queue"))
	return base
}

// shim does what a shim does, with a daemon that is there when base has a file
// "up", and that notes what it has done in "done".
func shim(ctx context.Context, base, container string) error {
	try := func() (bool, error) {
		if _, err := os.Stat(filepath.Join(base, "up")); err == nil {
			return true, note(base, container)
		}
		return false, nil
	}
	if done, err := try(); done || err != nil {
		return err
	}
	return In(filepath.Join(base, "queue")).Put(ctx, request(container), try)
}

func note(base, container string) error {
	return os.WriteFile(filepath.Join(base, "done", container), nil, 0o600)
}

// daemon comes up and does what is in the queue, once.
func daemon(t *testing.T, base string) {
	t.Helper()
	nodetest.OK(t, os.WriteFile(filepath.Join(base, "up"), nil, 0o600))
	left, err := pass(t.Context(), filepath.Join(base, "queue"), func(_ context.Context, r wire.Request) error {
		return note(base, r.Env["CNI_CONTAINERID"])
	})
	if left != 0 || err != nil {
		t.Errorf("%d left: %v", left, err)
	}
}

// However a daemon comes up among writers, and although it looks only once: when
// all have returned every DEL is done, and none is in the queue.
func TestNoDelIsLeftBehind(t *testing.T) {
	t.Parallel()
	for round := range 8 {
		base := world(t)
		var all sync.WaitGroup
		first := make(chan struct{}, 32*8)
		for w := range 32 {
			all.Go(func() {
				for i := range 8 {
					if err := shim(t.Context(), base, fmt.Sprintf("c%d-%d", w, i)); err != nil {
						t.Error(err)
					}
					first <- struct{}{}
				}
			})
		}
		for range round * 30 { // so many are written before
			<-first
		}
		daemon(t, base)
		all.Wait()
		if names := entries(t, filepath.Join(base, "queue")); len(names) != 0 {
			t.Fatalf("round %d: left %q", round, names)
		}
		if names := entries(t, filepath.Join(base, "done")); len(names) != 32*8 {
			t.Fatalf("round %d: %d done", round, len(names))
		}
	}
}

// Killed before any of its system calls, a writer leaves its DEL or none, and
// nothing that keeps others out or is there for good.
func TestWriterKilledAnywhere(t *testing.T) {
	t.Parallel()
	for n := 1; ; n++ {
		base := world(t)
		dir := filepath.Join(base, "queue")
		crash := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestRole$")
		crash.Env = append(os.Environ(), fmt.Sprintf("%s=%s %d", roleVar, base, n))
		said, _ := crash.Output() // it fails, unless it survives
		before := entries(t, dir)
		got := containers(t, dir)
		if strings.HasPrefix(string(said), "survived\n") {
			if len(got) != 1 || n < 10 {
				t.Errorf("survived %d calls: %q", n, got)
			}
			return
		}
		if written := slices.ContainsFunc(before, isEntry); written != (len(got) == 1) {
			t.Errorf("killed before call %d: %q, and in it %q", n, before, got)
		}
		nodetest.OK(t, In(dir).Put(t.Context(), request("c1"), away))
		if got := containers(t, dir); len(got) != 1 {
			t.Errorf("after call %d: %q", n, got)
		}
		if names := entries(t, dir); len(names) != 0 {
			t.Errorf("after call %d: left %q", n, names)
		}
	}
}

// The order is the guarantee: the directories before what is in them, the data
// before its name, the name before the return.
func TestPutSyncs(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "queue")
	hook, calls := trace()
	q := Queue{dir: dir, hook: hook}
	_, _, err := q.List(t.Context())
	nodetest.OK(t, err)
	want := []string{
		"open .", "open .", "fstat .", "mkdirat queue", "open .", "fstat .", "open ..", "fsync .", "fchmod .",
		"open .", "flock .", "fstatat .reader", "openat .reader", "create TEMP", "write TEMP", "fsync TEMP", "close TEMP", "renameat TEMP", "fsync .",
		"openat .reader", "fstat .reader", "getdents .", "unflock .",
	}
	nodetest.Equal(t, "got", *calls, want)
	*calls = nil
	nodetest.OK(t, q.Put(t.Context(), request("c1"), away))
	want = []string{
		"open .", "fstatat .reader", "flock .", "openat ENTRY", "getdents .",
		"create TEMP", "write TEMP", "fsync TEMP", "close TEMP", "renameat TEMP", "fsync .", "unflock .",
	}
	nodetest.Equal(t, "got", *calls, want)
	// Whoever finds its request there does not know whether its writer got to
	// the last of these calls.
	*calls = nil
	nodetest.OK(t, q.Put(t.Context(), request("c1"), away))
	want = []string{"open .", "fstatat .reader", "flock .", "openat ENTRY", "fstat ENTRY", "read ENTRY", "fsync .", "unflock ."}
	nodetest.Equal(t, "got", *calls, want)
	*calls = nil
	_, err = q.pass(t.Context(), done)
	nodetest.OK(t, err)
	want = []string{
		"open .", "fstat .", "open .", "flock .", "fstatat .reader", "openat .reader", "fstat .reader", "read .reader",
		"openat .reader", "fstat .reader", "getdents .", "unflock .",
		"open .", "openat ENTRY", "fstat ENTRY", "read ENTRY", "open .", "fstatat ENTRY", "unlinkat ENTRY", "fsync .",
	}
	nodetest.Equal(t, "got", *calls, want)
}

// Whichever call fails, Put says so, with the code of an I/O failure, and what
// is there can be read or is not there.
func TestPutReportsEveryFailure(t *testing.T) {
	t.Parallel()
	for _, errno := range []unix.Errno{unix.ENOSPC, unix.EIO, unix.EROFS, unix.EDQUOT, unix.EMFILE} {
		for _, there := range []bool{false, true} {
			for at := 1; ; at++ {
				dir := marked(t)
				if there {
					nodetest.OK(t, In(dir).Put(t.Context(), request("c1"), away))
				}
				n := 0
				hook := func(call, name string) error {
					if n++; n == at {
						return errno
					}
					return nil
				}
				err := Queue{dir: dir, hook: hook}.Put(t.Context(), request("c1"), away)
				got := containers(t, dir)
				if err == nil {
					if len(got) != 1 {
						t.Errorf("%v at call %d: nil, and there is %q", errno, at, got)
					}
					if n < at {
						break
					}
					continue // of no consequence
				}
				if !errors.Is(err, errno) || code(t, err) != 5 || len(got) > 1 || there && len(got) == 0 {
					t.Errorf("%v at call %d: %v; there is %q", errno, at, err, got)
				}
			}
		}
	}
}
