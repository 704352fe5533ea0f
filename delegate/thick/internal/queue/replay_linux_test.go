package queue

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/metacni/metacni/delegate/thick/wire"
)

// fill puts the DELs of n containers into dir and returns the names of their
// files.
func fill(t *testing.T, dir string, n int) []string {
	t.Helper()
	var names []string
	for i := range n {
		r := request(fmt.Sprint("c", i))
		ok(t, In(dir).Put(t.Context(), r, away))
		names = append(names, nameOf(t, r))
	}
	slices.Sort(names)
	return names
}

// What could not be done stays, and is told of, with no word of the
// configuration.
func TestReplayKeepsWhatIsNotDone(t *testing.T) {
	t.Parallel()
	dir := marked(t)
	names := fill(t, dir, 5)
	busy := errors.New("device busy")
	var order []string
	do := func(_ context.Context, r wire.Request) error {
		order = append(order, nameOf(t, r))
		if c := r.Env["CNI_CONTAINERID"]; c == "c1" || c == "c3" {
			return busy
		}
		return nil
	}
	for range 2 {
		left, err := pass(t.Context(), dir, do)
		if left != 2 || !errors.Is(err, busy) || len(entries(t, dir)) != 2 || strings.Contains(err.Error(), "secret") {
			t.Errorf("%d, %v; %q", left, err, entries(t, dir))
		}
		if diff := cmp.Diff(names, order); diff != "" {
			t.Errorf("not in the order of names: %s", diff)
		}
		names, order = entries(t, dir), nil
	}
	if got := containers(t, dir); !slices.Equal(got, []string{"c1", "c3"}) {
		t.Error(got)
	}
}

// The lock is waited for until the context ends, by both sides; while a shim
// waits, it goes on trying to connect.
func TestLockEndsWithContext(t *testing.T) {
	t.Parallel()
	dir := marked(t)
	fill(t, dir, 1)
	began, end := make(chan struct{}), make(chan struct{})
	var reader sync.WaitGroup
	reader.Go(func() {
		var once sync.Once
		q := Queue{dir: dir, hook: func(call, _ string) error {
			if call == "getdents" { // with the lock
				once.Do(func() { close(began); <-end })
			}
			return nil
		}}
		if left, err := q.pass(t.Context(), done); left != 0 || err != nil {
			t.Error(left, err)
		}
	})
	<-began
	ctx, cancel := context.WithCancel(t.Context())
	n := 0
	err := In(dir).Put(ctx, request("c2"), func() (bool, error) {
		if n++; n == 3 {
			cancel()
		}
		return false, nil
	})
	if !errors.Is(err, context.Canceled) || code(t, err) != 11 || n != 3 {
		t.Errorf("put: %d times, %v", n, err)
	}
	if _, _, err := In(dir).List(ctx); !errors.Is(err, context.Canceled) || code(t, err) != 11 {
		t.Errorf("list: %v", err)
	}
	n = 0
	ok(t, In(dir).Put(t.Context(), request("c3"), func() (bool, error) { n++; return n == 3, nil }))
	broken := errors.New("another user")
	if err := In(dir).Put(t.Context(), request("c3"), func() (bool, error) { return false, broken }); err != broken {
		t.Error(err)
	}
	close(end)
	reader.Wait()
	if names := entries(t, dir); len(names) != 0 {
		t.Errorf("left %q", names)
	}
	// Free, the lock is taken by one whose time is over: it is better to write.
	ok(t, In(dir).Put(ctx, request("c4"), away))
	if got := containers(t, dir); len(got) != 1 {
		t.Error(got)
	}
}

// A writer has the lock while it tries, so that a daemon that has come up
// meanwhile waits for what it writes.
func TestReplayWaitsForWriters(t *testing.T) {
	t.Parallel()
	dir := marked(t)
	fill(t, dir, 1)
	got := make(chan []string, 1)
	ok(t, In(dir).Put(t.Context(), request("late"), func() (bool, error) {
		go func() { got <- containers(t, dir) }()
		// Others write meanwhile.
		return false, In(dir).Put(t.Context(), request("other"), away)
	}))
	if diff := cmp.Diff([]string{"c0", "late", "other"}, <-got); diff != "" {
		t.Error(diff)
	}
}

// A daemon that cannot mark the directory does not read it: nothing would tell
// another one that it does.
func TestListWithoutAMark(t *testing.T) {
	t.Parallel()
	dir := marked(t)
	fill(t, dir, 2)
	ok(t, os.Remove(filepath.Join(dir, markName)))
	names, odd, err := Queue{dir: dir, hook: func(call, _ string) error {
		if call == "create" {
			return unix.EROFS
		}
		return nil
	}}.List(t.Context())
	if names != nil || odd != nil || !errors.Is(err, ErrUnread) || !errors.Is(err, unix.EROFS) {
		t.Errorf("%q, %v, %v", names, odd, err)
	}
}

// Whichever call fails, nothing is taken for done that was not, and what was
// done and is still there is told of.
func TestReplayReportsEveryFailure(t *testing.T) {
	t.Parallel()
	for _, bad := range []bool{false, true} {
		for at := 1; ; at++ {
			dir := marked(t)
			names := fill(t, dir, 2)
			if bad {
				ok(t, os.Truncate(filepath.Join(dir, names[0]), 0))
			}
			calls, did := 0, 0
			hook := func(string, string) error {
				if calls++; calls == at {
					return unix.EIO
				}
				return nil
			}
			left, err := Queue{dir: dir, hook: hook}.pass(t.Context(), func(context.Context, wire.Request) error { did++; return nil })
			if calls < at {
				break
			}
			if !errors.Is(err, unix.EIO) && (did == 0 || left > 0) { // or of no consequence
				t.Errorf("EIO at call %d: %d, %v", at, left, err)
			}
			there := 0
			for _, name := range entries(t, dir) {
				if isEntry(name) {
					there++
				}
			}
			total := 2
			if bad {
				total = 1
			}
			if did+there < total {
				t.Errorf("EIO at call %d: %d done, %d left, %d there: %v", at, did, left, there, err)
			}
		}
	}
}

// Whatever is read back was written: a request comes out as it went in, and a
// file that is none comes out as an error.
func FuzzDecode(f *testing.F) {
	name, data, err := encode(request("c1"))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(data)
	f.Add([]byte(head([]byte("{}")) + "}"))
	f.Fuzz(func(t *testing.T, data []byte) {
		if r, err := decode(name, data); err == nil && !bytes.HasPrefix(data, []byte(head(append([]byte{'{'}, data[sumLen:]...)))) {
			t.Errorf("%q: %v", data, r)
		}
		if !utf8.Valid(data) {
			return // JSON has no such strings, and CNI no such names
		}
		r := request(string(data))
		name, text, err := encode(r)
		ok(t, err)
		back, err := decode(name, text)
		if diff := cmp.Diff(r, back); diff != "" || err != nil {
			t.Error(diff, err)
		}
	})
}

func BenchmarkPut(b *testing.B) {
	dir := marked(b)
	r := request("c1")
	name, _, err := encode(r)
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if err := In(dir).Put(b.Context(), r, away); err != nil {
			b.Fatal(err)
		}
		if err := os.Remove(filepath.Join(dir, name)); err != nil {
			b.Fatal(err)
		}
	}
}
