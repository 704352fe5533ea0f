package queue

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

// Only a file of the attachment is owed, and it is gone for good once paid,
// however often that is asked.
func TestPay(t *testing.T) {
	t.Parallel()
	dir := marked(t)
	hook, calls := trace()
	q := Queue{dir: dir, hook: hook}
	names := fill(t, dir, 2)
	for i, want := range [][]string{
		{"open .", "fstatat ENTRY", "unlinkat ENTRY", "fsync ."},
		{"open .", "fstatat ENTRY"},
	} {
		*calls = nil
		ok(t, q.Remove(names[0]))
		if diff := cmp.Diff(want, *calls); diff != "" {
			t.Errorf("time %d: %s", i, diff)
		}
	}
	for i, want := range []bool{false, true} {
		if owed, err := q.Has(names[i]); owed != want || err != nil {
			t.Errorf("%d: %v, %v", i, owed, err)
		}
	}
	missing := In(filepath.Join(dir, "missing"))
	ok(t, missing.Remove(names[1]))
	if owed, err := missing.Has(names[1]); owed || err != nil {
		t.Error(owed, err)
	}
	if names, odd, err := In(filepath.Join(dir, names[1])).List(t.Context()); err == nil || odd != nil || names != nil {
		t.Errorf("a file for a directory: %q, %v, %v", names, odd, err)
	}
}

// What cannot be removed is still owed, and what cannot be looked at is not
// taken for paid.
func TestPayReportsEveryFailure(t *testing.T) {
	t.Parallel()
	for _, errno := range []unix.Errno{unix.EIO, unix.EROFS, unix.EACCES, unix.EMFILE} {
		for at := 1; ; at++ {
			dir := marked(t)
			name := fill(t, dir, 1)[0]
			calls := 0
			q := Queue{dir: dir, hook: func(string, string) error {
				if calls++; calls == at {
					return errno
				}
				return nil
			}}
			err := q.Remove(name)
			if calls < at {
				ok(t, err)
				break
			}
			if owed, _ := In(dir).Has(name); err == nil && owed {
				t.Errorf("%v at call %d: nil, and it is owed", errno, at)
			} else if err != nil && (!errors.Is(err, errno) || code(t, err) != 5) {
				t.Errorf("%v at call %d: %v", errno, at, err)
			}
		}
	}
}

// A shim writes only where a daemon reads, and says why it does not.
func TestPutOnlyWhereADaemonReads(t *testing.T) {
	t.Parallel()
	unread := func(dir string) {
		t.Helper()
		err := In(dir).Put(t.Context(), request("c1"), away)
		if !errors.Is(err, ErrUnread) || code(t, err) != 11 || !strings.Contains(err.Error(), markName) {
			t.Error(err)
		}
	}
	dir := filepath.Join(t.TempDir(), "queue")
	unread(dir)
	if _, err := os.Stat(dir); err == nil {
		t.Error("the directory was made")
	}
	ok(t, os.Mkdir(dir, 0o700))
	unread(dir)
	mark(t, dir)
	ok(t, In(dir).Put(t.Context(), request("c1"), away))
	// Taken away by hand, the mark is back when the daemon looks again.
	ok(t, os.Remove(filepath.Join(dir, markName)))
	unread(dir)
	mark(t, dir)
	if got := containers(t, dir); !slices.Equal(got, []string{"c1"}) {
		t.Error(got)
	}
}
