package queue

import (
	"errors"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

// The order is the guarantee: the directories before what is in them, the data
// before its name, the name before the return.
func TestPutSyncs(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "queue")
	hook, calls := trace()
	q := Queue{dir: dir, hook: hook}
	_, _, err := q.List(t.Context())
	ok(t, err)
	want := []string{
		"open .", "open .", "fstat .", "mkdirat queue", "open .", "fstat .", "open ..", "fsync .", "fchmod .",
		"open .", "flock .", "fstatat .reader", "openat .reader", "create TEMP", "write TEMP", "fsync TEMP", "close TEMP", "renameat TEMP", "fsync .",
		"openat .reader", "fstat .reader", "getdents .", "unflock .",
	}
	if diff := cmp.Diff(want, *calls); diff != "" {
		t.Error(diff)
	}
	*calls = nil
	ok(t, q.Put(t.Context(), request("c1"), away))
	want = []string{
		"open .", "fstatat .reader", "flock .", "openat ENTRY", "getdents .",
		"create TEMP", "write TEMP", "fsync TEMP", "close TEMP", "renameat TEMP", "fsync .", "unflock .",
	}
	if diff := cmp.Diff(want, *calls); diff != "" {
		t.Error(diff)
	}
	// Whoever finds its request there does not know whether its writer got to
	// the last of these calls.
	*calls = nil
	ok(t, q.Put(t.Context(), request("c1"), away))
	want = []string{"open .", "fstatat .reader", "flock .", "openat ENTRY", "fstat ENTRY", "read ENTRY", "fsync .", "unflock ."}
	if diff := cmp.Diff(want, *calls); diff != "" {
		t.Error(diff)
	}
	*calls = nil
	_, err = q.pass(t.Context(), done)
	ok(t, err)
	want = []string{
		"open .", "fstat .", "open .", "flock .", "fstatat .reader", "openat .reader", "fstat .reader", "read .reader",
		"openat .reader", "fstat .reader", "getdents .", "unflock .",
		"open .", "openat ENTRY", "fstat ENTRY", "read ENTRY", "open .", "fstatat ENTRY", "unlinkat ENTRY", "fsync .",
	}
	if diff := cmp.Diff(want, *calls); diff != "" {
		t.Error(diff)
	}
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
					ok(t, In(dir).Put(t.Context(), request("c1"), away))
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
