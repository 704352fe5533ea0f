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
	"sync/atomic"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/metacni/metacni/delegate/thick/wire"
	"github.com/metacni/metacni/internal/durable"
)

// fill puts the DELs of n containers into dir and returns the names of their
// files.
func fill(t *testing.T, dir string, n int) []string {
	t.Helper()
	var names []string
	for i := range n {
		r := request(fmt.Sprint("c", i))
		ok(t, Put(t.Context(), dir, r, away))
		names = append(names, nameOf(t, r))
	}
	slices.Sort(names)
	return names
}

// What could not be done stays, and is told of, with no word of the
// configuration.
func TestReplayKeepsWhatIsNotDone(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
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
		left, err := Replay(t.Context(), dir, 1, do)
		if left != 2 || !errors.Is(err, busy) || len(entries(t, dir)) != 2 || strings.Contains(err.Error(), "secret") {
			t.Errorf("%d, %v; %q", left, err, entries(t, dir))
		}
		for _, want := range []string{`container "c1", interface "eth0": device busy`, `container "c3"`} {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%v does not say %s", err, want)
			}
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

// So many at once, and no more.
func TestReplayWidth(t *testing.T) {
	t.Parallel()
	for _, width := range []int{-1, 0, 1, 3, 99} {
		dir := t.TempDir()
		fill(t, dir, 6)
		want := min(max(width, 1), 6)
		var now atomic.Int64
		all := make(chan struct{})
		var once sync.Once
		left, err := Replay(t.Context(), dir, width, func(ctx context.Context, _ wire.Request) error {
			switch n := now.Add(1); {
			case n > int64(want):
				t.Errorf("width %d: %d at once", width, n)
			case n == int64(want):
				once.Do(func() { close(all) })
			}
			<-all // or it would hang: so many there must be
			now.Add(-1)
			return nil
		})
		if left != 0 || err != nil {
			t.Error(width, left, err)
		}
	}
}

// When the context ends, nothing more is begun, and what is left is not lost.
func TestReplayEndsWithContext(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	fill(t, dir, 9)
	cause := errors.New("draining")
	ctx, cancel := context.WithCancelCause(t.Context())
	n := 0
	left, err := Replay(ctx, dir, 1, func(ctx context.Context, _ wire.Request) error {
		if n++; n == 3 {
			cancel(cause)
			return context.Cause(ctx)
		}
		return nil
	})
	if n != 3 || left != 7 || !errors.Is(err, context.Canceled) || !errors.Is(err, cause) || !strings.Contains(err.Error(), "6 not begun") {
		t.Error(n, left, err)
	}
	if left, err := Replay(ctx, dir, 1, done); left != 7 || !errors.Is(err, context.Canceled) {
		t.Error(left, err)
	}
	if got := containers(t, dir); len(got) != 7 {
		t.Error(got)
	}
}

// The lock is waited for until the context ends, by both sides; while a shim
// waits, it goes on trying to connect.
func TestLockEndsWithContext(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	fill(t, dir, 1)
	began, end := make(chan struct{}), make(chan struct{})
	var replay sync.WaitGroup
	replay.Go(func() {
		left, err := Replay(t.Context(), dir, 1, func(context.Context, wire.Request) error {
			close(began)
			<-end
			return nil
		})
		if left != 0 || err != nil {
			t.Error(left, err)
		}
	})
	<-began
	ctx, cancel := context.WithCancel(t.Context())
	n := 0
	err := Put(ctx, dir, request("c2"), func() (bool, error) {
		if n++; n == 3 {
			cancel()
		}
		return false, nil
	})
	if !errors.Is(err, context.Canceled) || code(t, err) != 11 || n != 3 {
		t.Errorf("put: %d times, %v", n, err)
	}
	if _, err := Replay(ctx, dir, 1, done); !errors.Is(err, context.Canceled) || code(t, err) != 11 {
		t.Errorf("replay: %v", err)
	}
	n = 0
	ok(t, Put(t.Context(), dir, request("c3"), func() (bool, error) { n++; return n == 3, nil }))
	broken := errors.New("another user")
	if err := Put(t.Context(), dir, request("c3"), func() (bool, error) { return false, broken }); err != broken {
		t.Error(err)
	}
	close(end)
	replay.Wait()
	if names := entries(t, dir); len(names) != 0 {
		t.Errorf("left %q", names)
	}
	// Free, the lock is taken by one whose time is over: it is better to write.
	ok(t, Put(ctx, dir, request("c4"), away))
	if got := containers(t, dir); len(got) != 1 {
		t.Error(got)
	}
}

// A writer has the lock while it tries, so that a daemon that has come up
// meanwhile waits for what it writes.
func TestReplayWaitsForWriters(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	fill(t, dir, 1)
	got := make(chan []string, 1)
	ok(t, Put(t.Context(), dir, request("late"), func() (bool, error) {
		go func() { got <- containers(t, dir) }()
		// Others write meanwhile.
		return false, Put(t.Context(), dir, request("other"), away)
	}))
	if diff := cmp.Diff([]string{"c0", "late", "other"}, <-got); diff != "" {
		t.Error(diff)
	}
}

// Whichever byte is changed, and wherever the file ends, what it says is done
// as it was written, or not at all.
func TestDamageAtEveryByte(t *testing.T) {
	t.Parallel()
	_, data, err := encode(request("c1"))
	ok(t, err)
	for n := range data {
		if _, err := decode(data[:n]); err == nil {
			t.Errorf("%d of %d bytes", n, len(data))
		}
		for _, flip := range []byte{1, 2, 4, 8, 16, 32, 64, 128, 255, data[n], data[n] ^ '\n'} {
			if flip == 0 {
				continue
			}
			damaged := bytes.Clone(data)
			damaged[n] ^= flip
			if r, err := decode(damaged); err == nil {
				t.Errorf("byte %d ^ %#x: %v", n, flip, r)
			}
		}
	}
	if _, err := decode(append(bytes.Clone(data), '\n')); err == nil {
		t.Error("one byte more")
	}
	for _, text := range []string{"", "null", "{}", "[1]", string(data[sumLen:]), head([]byte("{null")) + "null", head([]byte(`{]`)) + "]"} {
		if _, err := decode([]byte(text)); err == nil {
			t.Errorf("%q", text)
		}
	}
}

// A damaged file is set aside, told of until somebody removes it, and stops no
// other.
func TestDamagedFiles(t *testing.T) {
	t.Parallel()
	for name, damage := range map[string]func(path string) error{
		"empty":     func(p string) error { return os.Truncate(p, 0) },
		"cut off":   func(p string) error { return os.Truncate(p, 90) },
		"zeros":     func(p string) error { return os.WriteFile(p, make([]byte, 300), 0o600) },
		"too large": func(p string) error { return os.Truncate(p, maxFile+1) },
		"directory": func(p string) error { return errors.Join(os.Remove(p), os.Mkdir(p, 0o700)) },
		"link":      func(p string) error { return errors.Join(os.Rename(p, p+"x"), os.Symlink(p+"x", p)) },
		"pipe":      func(p string) error { return errors.Join(os.Remove(p), unix.Mkfifo(p, 0o600)) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			bad := fill(t, dir, 3)[1]
			ok(t, damage(filepath.Join(dir, bad)))
			aside := damagedName(bad)
			for i, want := range []int{2, 0, 0} {
				n := 0
				left, err := Replay(t.Context(), dir, 1, func(context.Context, wire.Request) error { n++; return nil })
				if left != 0 || n != want || !errors.Is(err, ErrDamaged) || code(t, err) != 5 || !strings.Contains(err.Error(), aside) {
					t.Errorf("time %d: %d done, %d left, %v", i, n, left, err)
				}
			}
			if names := entries(t, dir); !slices.Contains(names, aside) || slices.Contains(names, bad) {
				t.Errorf("%q", names)
			}
			ok(t, os.Remove(filepath.Join(dir, aside)))
			if left, err := Replay(t.Context(), dir, 1, done); left != 0 || err != nil {
				t.Error(left, err)
			}
		})
	}
}

// A disk that damages everything fills neither the queue nor itself.
func TestDamagedFilesAreFew(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for i := range maxDamaged + 3 {
		ok(t, os.WriteFile(filepath.Join(dir, fmt.Sprintf("%064x%s", i, entrySuffix)), nil, 0o600))
	}
	left, err := Replay(t.Context(), dir, 4, done)
	if left != 0 || !errors.Is(err, ErrDamaged) || strings.Count(err.Error(), "; removed, as 64 others are kept") != 3 {
		t.Error(left, err)
	}
	if names := entries(t, dir); len(names) != maxDamaged || slices.ContainsFunc(names, isEntry) {
		t.Errorf("%d: %q", len(names), names)
	}
	ok(t, Put(t.Context(), dir, request("c1"), away))
	if left, err := Replay(t.Context(), dir, 4, done); left != 0 || !errors.Is(err, ErrDamaged) || strings.Contains(err.Error(), "removed") {
		t.Error(left, err)
	}
}

// What is not the queue's own is left alone, and what a dead writer left is not.
func TestForeignFiles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	fill(t, dir, 1)
	foreign := []string{"README", "x.json", strings.Repeat("g", 64) + ".json", strings.Repeat("0", 64), strings.Repeat("0", 64) + ".json~"}
	for _, name := range append(foreign, durable.TempPrefix+"1") {
		ok(t, os.WriteFile(filepath.Join(dir, name), []byte("x"), 0o600))
	}
	if got := containers(t, dir); len(got) != 1 {
		t.Error(got)
	}
	slices.Sort(foreign)
	if diff := cmp.Diff(foreign, entries(t, dir)); diff != "" {
		t.Error(diff)
	}
}

// Whichever call fails, nothing is taken for done that was not, and what was
// done and is still there is told of.
func TestReplayReportsEveryFailure(t *testing.T) {
	t.Parallel()
	for _, bad := range []bool{false, true} {
		for at := 1; ; at++ {
			dir := t.TempDir()
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
			left, err := queue{dir: dir, hook: hook}.replay(t.Context(), 1, func(context.Context, wire.Request) error { did++; return nil })
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
			if did+there < total || left > there {
				t.Errorf("EIO at call %d: %d done, %d left, %d there: %v", at, did, left, there, err)
			}
		}
	}
}

// Whatever is read back was written: a request comes out as it went in, and a
// file that is none comes out as an error.
func FuzzDecode(f *testing.F) {
	_, data, err := encode(request("c1"))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(data)
	f.Add([]byte(head([]byte("{}")) + "}"))
	f.Fuzz(func(t *testing.T, data []byte) {
		if r, err := decode(data); err == nil && !bytes.HasPrefix(data, []byte(head(append([]byte{'{'}, data[sumLen:]...)))) {
			t.Errorf("%q: %v", data, r)
		}
		if !utf8.Valid(data) {
			return // JSON has no such strings, and CNI no such names
		}
		r := request(string(data))
		_, text, err := encode(r)
		ok(t, err)
		back, err := decode(text)
		if diff := cmp.Diff(r, back); diff != "" || err != nil {
			t.Error(diff, err)
		}
	})
}

func BenchmarkPut(b *testing.B) {
	dir := b.TempDir()
	r := request("c1")
	name, _, err := encode(r)
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if err := Put(b.Context(), dir, r, away); err != nil {
			b.Fatal(err)
		}
		if err := os.Remove(filepath.Join(dir, name)); err != nil {
			b.Fatal(err)
		}
	}
}
