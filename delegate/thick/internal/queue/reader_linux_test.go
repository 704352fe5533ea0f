package queue

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/metacni/metacni/delegate/thick/wire"
	"github.com/metacni/metacni/internal/durable"
	nodetest "github.com/metacni/metacni/internal/test/node"
)

// One daemon reads a queue at a time, whether it writes the mark, finds it, or finds
// that of a daemon with another Override, and also when the mark is taken away.
func TestOneReaderAtATime(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "queue")
	var last *Reader
	for _, override := range []string{`{"cniDir":"/a"}`, `{"cniDir":"/a"}`, `{"cniDir":"/b"}`} {
		first := &Reader{Queue: In(dir), Override: json.RawMessage(override)}
		second := &Reader{Queue: In(dir)}
		for range 2 {
			if _, odd, err := first.List(t.Context()); odd != nil || err != nil {
				t.Fatal(odd, err)
			}
			if _, _, err := second.List(t.Context()); !errors.Is(err, ErrOther) || code(t, err) != 11 {
				t.Errorf("the second: %v", err)
			}
			if got := string(In(dir).Override()); got != override {
				t.Errorf("the mark tells %s, want %s", got, override)
			}
		}
		first.Close()
		last = first
	}
	if _, _, err := last.List(t.Context()); err != nil {
		t.Fatal(err)
	}
	nodetest.OK(t, os.Remove(filepath.Join(dir, markName)))
	if _, _, err := last.List(t.Context()); err != nil {
		t.Error(err)
	}
	if _, _, err := In(dir).List(t.Context()); !errors.Is(err, ErrOther) {
		t.Errorf("after the mark was taken away: %v", err)
	}
	last.Close()
	mark(t, dir)
}

// A mark that is not a daemon's tells no Override.
func TestOverrideOfNobodyIsUnknown(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "queue")
	if got := In(dir).Override(); got != nil {
		t.Errorf("without a directory: %s", got)
	}
	mark(t, dir)
	for _, text := range []string{"", "A daemon", `{"override":`, "null"} {
		nodetest.OK(t, os.WriteFile(filepath.Join(dir, markName), []byte(text), 0o600))
		if got := In(dir).Override(); got != nil {
			t.Errorf("%q: %s", text, got)
		}
	}
}

// A DEL of an attachment that was recorded at another time takes the place of the
// queued one: the queued one would not be done to it.
func TestPutReplacesTheDelOfAnEarlierAttachment(t *testing.T) {
	t.Parallel()
	dir := marked(t)
	early := time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC)
	for _, recorded := range []time.Time{early, early.Add(1), {}, early} {
		r := request("c1")
		r.Recorded = recorded
		put(t, dir, r)
		got, err := In(dir).Read(nameOf(t, r))
		nodetest.OK(t, err)
		if !got.Recorded.Equal(recorded) {
			t.Errorf("queued for %v, want %v", got.Recorded, recorded)
		}
	}
}

// Only a file of the attachment is owed, and it is gone once paid,
// however often that is asked.
func TestPay(t *testing.T) {
	t.Parallel()
	dir := marked(t)
	hook, calls := trace()
	q := Queue{dir: dir, hook: hook}
	names := fill(t, dir, 2)
	for i, want := range [][]string{
		{"open .", "fstatat ENTRY", "unlinkat ENTRY"},
		{"open .", "fstatat ENTRY"},
	} {
		*calls = nil
		nodetest.OK(t, q.Remove(names[0]))
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
	nodetest.OK(t, missing.Remove(names[1]))
	if owed, err := missing.Has(names[1]); owed || err != nil {
		t.Error(owed, err)
	}
	if names, odd, err := In(filepath.Join(dir, names[1])).List(t.Context()); err == nil || odd != nil || names != nil {
		t.Errorf("a file for a directory: %q, %v, %v", names, odd, err)
	}
}

// A shim writes only where a daemon reads, and says why it does not.
func TestPutOnlyWhereADaemonReads(t *testing.T) {
	t.Parallel()
	unread := func(dir string) {
		t.Helper()
		_, err := In(dir).Put(t.Context(), request("c1"), away)
		if !errors.Is(err, ErrUnread) || code(t, err) != 11 || !strings.Contains(err.Error(), markName) {
			t.Error(err)
		}
	}
	dir := filepath.Join(t.TempDir(), "queue")
	unread(dir)
	if _, err := os.Stat(dir); err == nil {
		t.Error("the directory was made")
	}
	nodetest.OK(t, os.Mkdir(dir, 0o700))
	unread(dir)
	mark(t, dir)
	put(t, dir, request("c1"))
	// Taken away by hand, the mark is back when the daemon looks again.
	nodetest.OK(t, os.Remove(filepath.Join(dir, markName)))
	unread(dir)
	mark(t, dir)
	if got := containers(t, dir); !slices.Equal(got, []string{"c1"}) {
		t.Error(got)
	}
}

// fill puts the DELs of n containers into dir and returns the names of their
// files.
func fill(t *testing.T, dir string, n int) []string {
	t.Helper()
	var names []string
	for i := range n {
		r := request(fmt.Sprint("c", i))
		put(t, dir, r)
		names = append(names, nameOf(t, r))
	}
	slices.Sort(names)
	return names
}

// The lock is waited for until the context ends, by both sides.
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
	cancel()
	if queued, err := In(dir).Put(ctx, request("c2"), away); queued || !errors.Is(err, context.Canceled) || code(t, err) != 11 {
		t.Errorf("put: %v, %v", queued, err)
	}
	if _, _, err := In(dir).List(ctx); !errors.Is(err, context.Canceled) || code(t, err) != 11 {
		t.Errorf("list: %v", err)
	}
	close(end)
	reader.Wait()
	if names := entries(t, dir); len(names) != 0 {
		t.Errorf("left %q", names)
	}
	// Free, the lock is taken by one whose time is over: it is better to write.
	if queued, err := In(dir).Put(ctx, request("c4"), away); !queued || err != nil {
		t.Error(queued, err)
	}
	if got := containers(t, dir); len(got) != 1 {
		t.Error(got)
	}
}

// A writer has the lock while it looks for the daemon, so that a daemon that has come up
// meanwhile waits for what it writes.
func TestReplayWaitsForWriters(t *testing.T) {
	t.Parallel()
	dir := marked(t)
	fill(t, dir, 1)
	got := make(chan []string, 1)
	_, err := In(dir).Put(t.Context(), request("late"), func() bool {
		go func() { got <- containers(t, dir) }()
		put(t, dir, request("other")) // others write meanwhile
		return false
	})
	nodetest.OK(t, err)
	nodetest.Equal(t, "got", <-got, []string{"c0", "late", "other"})
}

// A daemon that cannot mark the directory does not read it: nothing would tell
// another one that it does.
func TestListWithoutAMark(t *testing.T) {
	t.Parallel()
	dir := marked(t)
	fill(t, dir, 2)
	nodetest.OK(t, os.Remove(filepath.Join(dir, markName)))
	names, odd, err := Queue{dir: dir, hook: func(_, name string) error {
		if name == markName {
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
				nodetest.OK(t, os.Truncate(filepath.Join(dir, names[0]), 0))
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
				if isName(name, entrySuffix) {
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

// Whichever byte is changed, and wherever the file ends, what it says is done
// as it was written, or not at all.
func TestDamageAtEveryByte(t *testing.T) {
	t.Parallel()
	name, data, err := encode(request("c1"))
	nodetest.OK(t, err)
	for n := range data {
		if _, err := decode(name, data[:n]); err == nil {
			t.Errorf("%d of %d bytes", n, len(data))
		}
		for _, flip := range []byte{1, 2, 4, 8, 16, 32, 64, 128, 255, data[n], data[n] ^ '\n'} {
			if flip == 0 {
				continue
			}
			damaged := bytes.Clone(data)
			damaged[n] ^= flip
			if r, err := decode(name, damaged); err == nil {
				t.Errorf("byte %d ^ %#x: %v", n, flip, r)
			}
		}
	}
	if _, err := decode(name, append(bytes.Clone(data), '\n')); err == nil {
		t.Error("one byte more")
	}
	for _, text := range []string{"", "null", "{}", "[1]", string(data[sumLen:]), head([]byte("{null")) + "null", head([]byte(`{]`)) + "]"} {
		if _, err := decode(name, []byte(text)); err == nil {
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
		"link": func(p string) error {
			return errors.Join(os.Rename(p, filepath.Join(p, "../../x")), os.Symlink("../x", p))
		},
		"another's": func(p string) error {
			names, _ := filepath.Glob(filepath.Join(p, "../*.json"))
			data, err := os.ReadFile(names[0])
			return errors.Join(err, os.WriteFile(p, data, 0o600))
		},
		"pipe": func(p string) error { return errors.Join(os.Remove(p), unix.Mkfifo(p, 0o600)) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := marked(t)
			bad := fill(t, dir, 3)[1]
			nodetest.OK(t, damage(filepath.Join(dir, bad)))
			aside := strings.TrimSuffix(bad, entrySuffix) + damagedSuffix
			for i, want := range []int{2, 0, 0} {
				n := 0
				left, err := pass(t.Context(), dir, func(context.Context, wire.Request) error { n++; return nil })
				if left != 0 || n != want || !errors.Is(err, ErrDamaged) || code(t, err) != 5 || !strings.Contains(err.Error(), aside) {
					t.Errorf("time %d: %d done, %d left, %v", i, n, left, err)
				}
			}
			if names := entries(t, dir); !slices.Contains(names, aside) || slices.Contains(names, bad) {
				t.Errorf("%q", names)
			}
			nodetest.OK(t, os.Remove(filepath.Join(dir, aside)))
			if left, err := pass(t.Context(), dir, done); left != 0 || err != nil {
				t.Error(left, err)
			}
		})
	}
}

// What is not the queue's own is left alone and told of. What a dead writer left
// is removed.
func TestForeignFiles(t *testing.T) {
	t.Parallel()
	dir := marked(t)
	fill(t, dir, 1)
	foreign := []string{"README", "x.json", strings.Repeat("g", 64) + ".json", strings.Repeat("0", 64), strings.Repeat("0", 64) + ".json~"}
	for _, name := range append(foreign, durable.TempPrefix+"1") {
		nodetest.OK(t, os.WriteFile(filepath.Join(dir, name), []byte("x"), 0o600))
	}
	if _, odd, err := In(dir).List(t.Context()); !errors.Is(odd, ErrForeign) || !strings.Contains(odd.Error(), `"README"`) || err != nil {
		t.Error(odd, err)
	}
	if got := containers(t, dir); len(got) != 1 {
		t.Error(got)
	}
	slices.Sort(foreign)
	nodetest.Equal(t, "got", entries(t, dir), foreign)
}

// A file of a later version stays as it is, for a daemon of that version. It is
// told of and not done.
func TestFilesOfAnotherVersion(t *testing.T) {
	t.Parallel()
	dir := marked(t)
	name := fill(t, dir, 1)[0]
	for _, text := range []string{"{}", `{"version":2,"del":{"container":"c1"}}`} {
		nodetest.OK(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
		left, err := pass(t.Context(), dir, func(context.Context, wire.Request) error { t.Error("done"); return nil })
		if left != 1 || !errors.Is(err, ErrVersion) || code(t, err) != 5 {
			t.Error(left, err)
		}
		if data, err := os.ReadFile(filepath.Join(dir, name)); err != nil || string(data) != text {
			t.Errorf("%q, %v", data, err)
		}
		if owed, err := In(dir).Has(name); !owed || err != nil {
			t.Error(owed, err)
		}
	}
	// A shim that knows its own version only does not take it for a DEL that
	// will be done.
	put(t, dir, request("c0"))
	if got := containers(t, dir); !slices.Equal(got, []string{"c0"}) {
		t.Error(got)
	}
}

// A DEL that a later release has queued is done, whatever keys it has besides, and the same DEL
// of this release leaves its file alone.
func TestKeysOfALaterReleaseStayInTheQueue(t *testing.T) {
	t.Parallel()
	dir := marked(t)
	name, data, err := encode(request("c1"))
	nodetest.OK(t, err)
	body := append([]byte(`{"later":{"a":[1.0]},`), data[sumLen:]...)
	later := append([]byte(head(body)), body[1:]...)
	nodetest.OK(t, os.WriteFile(filepath.Join(dir, name), later, 0o600))
	put(t, dir, request("c1"))
	there, err := os.ReadFile(filepath.Join(dir, name))
	nodetest.OK(t, err)
	nodetest.Equal(t, "queued", string(there), string(later))
	nodetest.Equal(t, "done", containers(t, dir), []string{"c1"})

	nodetest.OK(t, os.WriteFile(filepath.Join(dir, markName), []byte(`{"later":1,"override":{"a":1},"about":""}`), 0o600))
	nodetest.Equal(t, "override", string(In(dir).Override()), `{"a":1}`)
}

// Writable succeeds while a List removes the files of dead writers, and its own with them.
func TestWritableDuringAList(t *testing.T) {
	t.Parallel()
	dir := marked(t)
	q := Queue{dir: dir, hook: func(call, _ string) error {
		if call == "fsync" {
			_, _, err := In(dir).List(t.Context())
			return err
		}
		return nil
	}}
	nodetest.OK(t, q.Writable())
}
