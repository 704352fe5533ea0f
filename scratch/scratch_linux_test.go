package scratch

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/metacni/metacni/internal/bounds"
	"github.com/metacni/metacni/internal/durable"
	"github.com/metacni/metacni/internal/records"
	nodetest "github.com/metacni/metacni/internal/test/node"
)

var (
	k2 = Key{Network: "net", ContainerID: "c1", IfName: "net1"}
	k3 = Key{Network: "other", ContainerID: "c2", IfName: "eth0"}
)

// newStore is a store in memory, if there is a directory for that: tests do not wait for
// the disk.
func newStore(t *testing.T) Store[value] {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "scratch-") //nolint:usetesting // which has no memory
	if err != nil {
		return Store[value]{Dir: t.TempDir()}
	}
	t.Cleanup(func() { nodetest.OK(t, os.RemoveAll(dir)) })
	return Store[value]{Dir: dir}
}

// equal compares what a test got with what it wants. An empty slice equals nil.
func equal[T any](t *testing.T, what string, got, want T) {
	t.Helper()
	nodetest.Equal(t, what, got, want, cmp.AllowUnexported(Record[value]{}))
}

// under calls f with the lock of a container.
func under[T any](s Store[T], id string, f func(*Lock) error) error {
	l, err := s.Lock(context.Background(), id)
	if err != nil {
		return err
	}
	return errors.Join(f(l), l.Unlock())
}

func putRecord[T any](s Store[T], k Key, st State, v T) error {
	return update(s, Record[T]{Key: k, State: st, Value: v})
}

func update[T any](s Store[T], r Record[T]) error {
	return under(s, r.Key.ContainerID, func(l *Lock) error { return s.Put(l, r) })
}

func note[T any](s Store[T], r Record[T]) error {
	return under(s, r.Key.ContainerID, func(l *Lock) error { return s.Note(l, r) })
}

func del[T any](s Store[T], k Key) error {
	return under(s, k.ContainerID, func(l *Lock) error { return s.Delete(l, k) })
}

func forget[T any](s Store[T], k Key) error {
	return under(s, k.ContainerID, func(l *Lock) error { return s.Forget(l, k) })
}

func put(t *testing.T, s Store[value], k Key, text string) {
	t.Helper()
	nodetest.OK(t, putRecord(s, k, Planned, value{text}))
}

// text is what is stored under k, or the name of the error.
func text(s Store[value], k Key) string {
	r, err := s.Get(k)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "none"
	case errors.Is(err, ErrCorrupt):
		return "corrupt"
	case errors.Is(err, ErrVersion):
		return "version"
	case err != nil:
		return err.Error()
	}
	return string(r.State) + " " + r.Value.Text
}

// holds checks what is stored under k, see text.
func holds(t *testing.T, s Store[value], k Key, want string) {
	t.Helper()
	if got := text(s, k); got != want {
		t.Errorf("%v: %.40q, want %.40q", k, got, want)
	}
}

// nothing checks that nothing is left of the store.
func nothing(t *testing.T, s Store[value]) {
	t.Helper()
	equal(t, "left", tree(t, s.Dir), nil)
}

// damaged returns the keys that List has of damaged records, and its other
// errors.
func damaged[T any](ctx context.Context, s Store[T]) (keys []Key, err error) {
	for _, rerr := range s.List(ctx) {
		if e := (*Error)(nil); errors.Is(rerr, ErrCorrupt) && errors.As(rerr, &e) {
			keys = append(keys, e.Key)
		} else {
			err = errors.Join(err, rerr)
		}
	}
	return keys, err
}

// tree lists what is under dir.
func tree(t *testing.T, dir string) []string {
	t.Helper()
	var all []string
	nodetest.OK(t, filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if path != dir {
			all = append(all, strings.TrimPrefix(path, dir+"/"))
		}
		return err
	}))
	return all
}

func code(err error) uint {
	var c interface{ CNICode() uint }
	if errors.As(err, &c) {
		return c.CNICode()
	}
	return 0
}

func TestPutGetDelete(t *testing.T) {
	t.Parallel()
	s := Store[value]{Dir: filepath.Join(t.TempDir(), "made", "when needed")}
	holds(t, s, k1, "none")
	if _, err := os.Stat(s.Dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("reading made the directory: %v", err)
	}
	nodetest.OK(t, del(s, k1))
	before := time.Now()
	put(t, s, k1, "one")
	put(t, s, k2, "two")
	put(t, s, k3, "three")
	want := []string{"c1@lock", "c1@net@eth0.json", "c1@net@net1.json", "c2@lock", "c2@other@eth0.json"}
	equal(t, "files", tree(t, s.Dir), want)
	for name, perm := range map[string]fs.FileMode{"": 0o700, "c1@net@eth0.json": 0o600, "c2@lock": 0o600} {
		if info, err := os.Stat(filepath.Join(s.Dir, name)); err != nil || info.Mode().Perm() != perm {
			t.Errorf("%q: mode %v, want %v", name, info.Mode(), perm)
		}
	}
	r, err := s.Get(k2)
	equal(t, "record", r, Record[value]{Key: k2, State: Planned, Created: r.Created, Updated: r.Created, Value: value{"two"}})
	nodetest.OK(t, err)
	data, err := os.ReadFile(recordPath(s, k2)) // as the package comment has it
	nodetest.OK(t, err)
	equal(t, "file", string(data), line(fmt.Sprintf(`{"version":2,"network":"net","container":"c1","ifname":"net1","state":"planned","created":%q,"updated":%[1]q,"value":{"Text":"two"}}`, r.Created.Format(time.RFC3339Nano))))
	if r.Created.Before(before) || r.Created.After(time.Now()) || r.Created.Location() != time.UTC {
		t.Errorf("created %v", r.Created)
	}
	put(t, s, k1, "again")
	holds(t, s, k1, "planned again")
	nodetest.OK(t, del(s, k1))
	nodetest.OK(t, del(s, k1))
	nodetest.OK(t, del(s, k3))
	equal(t, "files", tree(t, s.Dir), []string{"c1@lock", "c1@net@net1.json"})
}

// A program that puts a record and then writes it again with another state need not read it before.
func TestAZeroCreatedIsKept(t *testing.T) {
	t.Parallel()
	for name, write := range map[string]func(Store[value], *Lock, Record[value]) error{"Put": Store[value].Put, "Note": Store[value].Note} {
		s := newStore(t)
		lock, err := s.Lock(t.Context(), k1.ContainerID)
		nodetest.OK(t, err)
		r := Record[value]{Key: k1, State: Planned}
		nodetest.OK(t, s.Put(lock, r))
		first, err := s.Get(k1)
		nodetest.OK(t, err)
		for range 2 { // the lock knows the record, and then another one does not
			r.State = Added
			nodetest.OK(t, write(s, lock, r))
			got, err := s.Get(k1)
			if err != nil || !got.Created.Equal(first.Created) || got.State != Added || !got.Updated.After(first.Updated) {
				t.Errorf("%s: created %v, then %v, %v", name, first.Created, got, err)
			}
			nodetest.OK(t, lock.Unlock())
			lock, err = s.Lock(t.Context(), k1.ContainerID)
			nodetest.OK(t, err)
		}
		nodetest.OK(t, s.Delete(lock, k1))
		nodetest.OK(t, s.Put(lock, r))
		if got, err := s.Get(k1); err != nil || !got.Created.After(first.Created) {
			t.Errorf("%s: a record that was deleted is created at %v, %v", name, got.Created, err)
		}
		nodetest.OK(t, lock.Unlock())
	}
}

// Note asks for a record, and waits for no disk: it takes no system call that
// does.
func TestNote(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	r := Record[value]{Key: k1, State: Added}
	if err := note(s, r); !errors.Is(err, fs.ErrNotExist) || code(err) != 5 {
		t.Error(err)
	}
	put(t, s, k2, "")
	nodetest.Is(t, note(s, r), fs.ErrNotExist)
	put(t, s, k1, "")
	hook := durable.Hook(func(call, _ string) error {
		if call == "fsync" {
			return errors.New("synced")
		}
		return nil
	})
	s.hook = &hook
	nodetest.OK(t, note(s, r))
	holds(t, s, k1, "added ")
}

// A DEL that is tried again and again does not fill the disk.
func TestNotesDoNotGrowWithoutEnd(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	long := strings.Repeat("x", 10_000)
	put(t, s, k1, long)
	for range 250 {
		nodetest.OK(t, note(s, Record[value]{Key: k1, State: Deleting, Value: value{long}}))
		nodetest.OK(t, errors.Join(putRecord(s, k2, Planned, value{}), del(s, k2)))
	}
	if fds, err := os.ReadDir("/proc/self/fd"); err != nil || len(fds) > 200 {
		t.Errorf("%d files open, %v", len(fds), err)
	}
	info, err := os.Stat(filepath.Join(s.Dir, fileName(k1)))
	if err != nil || info.Size() > 2*minCompact {
		t.Errorf("%d bytes, %v", info.Size(), err)
	}
	holds(t, s, k1, "deleting "+long)
}

// Values come back as they went in: nothing is escaped, dropped or rounded.
func TestValuesAreLossless(t *testing.T) {
	t.Parallel()
	s := Store[map[string]json.RawMessage]{Dir: t.TempDir()}
	in := map[string]json.RawMessage{
		"number": json.RawMessage(`9007199254740993.10`),
		"html":   json.RawMessage(`"<a href='x'>&amp;\u2028"`),
		"nested": json.RawMessage(`{"b":1,"a":[null,{}],"b":2}`),
		"null":   json.RawMessage(`null`),
	}
	nodetest.OK(t, putRecord(s, k1, Planned, in))
	got, err := s.Get(k1)
	equal(t, "value", got.Value, in)
	nodetest.OK(t, err)
}

func TestKeysAreChecked(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("n", 5000)
	for _, tt := range []struct {
		name string
		key  Key
		code uint
	}{
		{"plain", k1, 0},
		{"long names", Key{long, long, "eth0"}, 0},
		{"odd but fine", Key{"a.b_c-d", "0", "eth0%d@é"}, 0},
		{"no network", Key{"", "c", "eth0"}, 7},
		{"network is a path", Key{"../n", "c", "eth0"}, 7},
		{"network like a hash", Key{records.Part(long), "c", "eth0"}, 7},
		{"no container", Key{"n", "", "eth0"}, 4},
		{"container is above", Key{"n", "..", "eth0"}, 4},
		{"container is another's lock", Key{"n", "c@lock", "eth0"}, 4},
		{"container like a hash", Key{"n", records.Part(long), "eth0"}, 4},
		{"no interface", Key{"n", "c", ""}, 4},
		{"interface of 15 bytes", Key{"n", "c", "123456789012345"}, 0},
		{"interface of 16 bytes", Key{"n", "c", "1234567890123456"}, 4},
		{"interface is a path", Key{"n", "c", "a/b"}, 4},
		{"interface with space", Key{"n", "c", "a b"}, 4},
		{"interface not UTF-8", Key{"n", "c", "a\xff"}, 4},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s := newStore(t)
			r := Record[value]{Key: tt.key, State: Added}
			_, gerr := s.Get(tt.key)
			errs := map[string]error{
				"put": update(s, r), "note": note(s, r),
				"get": gerr, "delete": del(s, tt.key),
			}
			if !records.Hashed(tt.key.Network) && !records.Hashed(tt.key.ContainerID) {
				errs["forget"] = forget(s, tt.key)
			}
			if tt.code == 4 && validIfName(tt.key.IfName) && !records.Hashed(tt.key.ContainerID) {
				_, errs["container"] = s.Container(t.Context(), tt.key.ContainerID)
				_, errs["lock"] = s.Lock(t.Context(), tt.key.ContainerID)
			}
			for verb, err := range errs {
				if errors.Is(err, fs.ErrNotExist) && verb == "get" {
					err = nil
				}
				if code(err) != tt.code {
					t.Errorf("%s: code %d, want %d: %v", verb, code(err), tt.code, err)
				}
			}
			nothing(t, s)
		})
	}
}

func TestErrors(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	var none Store[value]
	_, lerr := none.Lock(t.Context(), "c")
	_, derr := damaged(t.Context(), none)
	_, cerr := none.Container(t.Context(), "c")
	for name, err := range map[string]error{
		"lock": lerr, "damaged": derr, "container": cerr,
	} {
		if !errors.Is(err, errNoDir) {
			t.Errorf("%s without a directory: %v", name, err)
		}
	}
	for _, err := range none.List(t.Context()) {
		nodetest.Is(t, err, errNoDir)
	}
	if err := putRecord(s, k1, "done", value{}); code(err) != 5 {
		t.Errorf("unknown state: %v", err)
	}
	if err := putRecord(Store[func()]{Dir: s.Dir}, k1, Planned, nil); code(err) != 5 {
		t.Errorf("not a JSON value: %v", err)
	}
	if err := putRecord(s, k1, Planned, value{strings.Repeat("x", maxLine)}); code(err) != 7 {
		t.Errorf("too long: %v", err)
	}
	for err, want := range map[error]string{
		&Error{Op: "list", Path: "/d", Err: fs.ErrPermission}:                                                            "list (/d): permission denied",
		&Error{Op: "lock", Key: Key{ContainerID: "c"}, Err: context.Canceled}:                                            `lock container "c": context canceled`,
		putRecord(s, Key{Network: "n", ContainerID: "c", IfName: "a b"}, Planned, value{}):                               `put record "n/c/a b": unusable interface name "a b"`,
		del(s, Key{ContainerID: "c", IfName: "a"}):                                                                       `delete record "/c/a": no network name`,
		fail("get", Key{Network: "net", ContainerID: strings.Repeat("0123456789abcdef", 4), IfName: "eth0"}, ErrCorrupt): `get record "net/0123456789ab/eth0": corrupt record`,
		&Error{Op: "lock", Key: Key{ContainerID: strings.Repeat("0123456789abcdef", 4)}, Err: context.Canceled}:          `lock container "0123456789ab": context canceled`,
		fail("get", k1, &fs.PathError{Op: "openat", Path: "/d/f", Err: fs.ErrPermission}):                                `get record "net/c1/eth0" (/d/f): openat: permission denied`,
	} {
		if err.Error() != want {
			t.Errorf("got  %s\nwant %s", err, want)
		}
	}
}

// A DEL that fails keeps the record, one that succeeds deletes it, and one that
// finds nothing is a success that does nothing. Both remove what a crash has left.
func TestConsumeForgetsOnlyAfterSuccess(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	put(t, s, k1, "one")
	l := lock(t, s)
	busy, calls := errors.New("busy"), 0
	use := func(err error) func(context.Context, Record[value]) error {
		return func(ctx context.Context, r Record[value]) error {
			if calls++; r.Value.Text != "one" || ctx != t.Context() {
				t.Errorf("called with %v, %v", ctx, r)
			}
			return err
		}
	}
	if err := s.Consume(t.Context(), l, k1, use(busy)); err != busy {
		t.Errorf("got %v", err)
	}
	holds(t, s, k1, "planned one")
	for range 2 {
		nodetest.OK(t, os.WriteFile(filepath.Join(s.Dir, durable.TempPrefix+fileName(k1)), []byte("half"), 0o600)) // by a Put that was killed
		nodetest.OK(t, s.Consume(t.Context(), l, k1, use(nil)))
	}
	if got := text(s, k1); got != "none" || calls != 2 {
		t.Errorf("%s after %d calls", got, calls)
	}
	nodetest.OK(t, l.Unlock())
	nothing(t, s)
}

func TestVerbsWantTheLock(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	put(t, s, k1, "one")
	other, err := s.Lock(t.Context(), k3.ContainerID)
	nodetest.OK(t, err)
	elsewhere, err := newStore(t).Lock(t.Context(), k1.ContainerID)
	nodetest.OK(t, err)
	released, err := s.Lock(t.Context(), k1.ContainerID)
	nodetest.OK(t, err)
	nodetest.OK(t, released.Unlock())
	r := Record[value]{Key: k1, State: Added}
	for name, l := range map[string]*Lock{"none": nil, "another container's": other, "another store's": elsewhere, "released": released} {
		for verb, err := range map[string]error{
			"put": s.Put(l, r), "note": s.Note(l, r), "delete": s.Delete(l, k1), "forget": s.Forget(l, k1),
			"consume": s.Consume(t.Context(), l, k1, func(context.Context, Record[value]) error {
				t.Error("called")
				return nil
			}),
		} {
			if !errors.Is(err, errNotHeld) || code(err) != 5 {
				t.Errorf("%s, %s: %v", verb, name, err)
			}
		}
	}
	holds(t, s, k1, "planned one")
	nodetest.OK(t, other.Unlock())
	nodetest.OK(t, elsewhere.Unlock())
}

// What a crash left before the first record goes with the next lock of the container, and what
// belongs to others stays.
func TestUnlockRemovesWhatACrashLeft(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	other := Key{Network: "n", ContainerID: k1.ContainerID + "x", IfName: "e"}
	for _, k := range []Key{k1, k2, other} {
		nodetest.OK(t, os.WriteFile(filepath.Join(s.Dir, durable.TempPrefix+fileName(k)), []byte("half"), 0o600))
	}
	put(t, s, k2, "whole") // its container has a record
	nodetest.OK(t, lock(t, s).Unlock())
	holds(t, s, k2, "planned whole")
	nodetest.OK(t, os.WriteFile(filepath.Join(s.Dir, durable.TempPrefix+fileName(k2)), []byte("half"), 0o600))
	l := lock(t, s)
	nodetest.OK(t, os.Remove(filepath.Join(s.Dir, fileName(k2))))
	nodetest.OK(t, l.Unlock())
	names, err := filepath.Glob(filepath.Join(s.Dir, "*"))
	if want := []string{filepath.Join(s.Dir, durable.TempPrefix+fileName(other))}; !slices.Equal(names, want) || err != nil {
		t.Errorf("left are %q, want %q: %v", names, want, err)
	}
	l, err = s.Lock(t.Context(), other.ContainerID)
	nodetest.OK(t, err)
	nodetest.OK(t, l.Unlock())
	nothing(t, s)
}

// WriteFile replaces a file of any format, whole and with mode 0600.
func TestWriteFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "state.json")
	for _, want := range []string{"one", "two, longer", ""} {
		nodetest.OK(t, WriteFile(path, []byte(want)))
		info, err := os.Stat(path)
		nodetest.OK(t, err)
		if data, err := os.ReadFile(path); string(data) != want || err != nil || info.Mode() != 0o600 {
			t.Errorf("%q, %v, mode %v", data, err, info.Mode())
		}
	}
	nodetest.OK(t, os.Symlink(path, filepath.Join(dir, "link")))
	nodetest.OK(t, WriteFile(filepath.Join(dir, "link"), []byte("not followed")))
	if data, err := os.ReadFile(path); len(data) != 0 || err != nil {
		t.Errorf("a link was followed: %q, %v", data, err)
	}
	for _, bad := range []string{"", dir + "/", filepath.Join(dir, "none", "f"), filepath.Join(dir, "state.json", "f")} {
		if err := WriteFile(bad, nil); err == nil || code(err) != 5 {
			t.Errorf("%q: %v", bad, err)
		}
	}
	equal(t, "left", tree(t, dir), []string{"link", "state.json"})
}

// What is written can be read back: Put refuses everything else, and keeps the record
// that is there.
func TestPutRefusesWhatCannotBeReadBack(t *testing.T) {
	t.Parallel()
	s := Store[json.RawMessage]{Dir: t.TempDir()}
	nested := func(levels int) json.RawMessage {
		return json.RawMessage(strings.Repeat("[", levels) + strings.Repeat("]", levels))
	}
	deepest := nested(bounds.RecordDepth - 1) // the line is an object around it
	nodetest.OK(t, putRecord(s, k1, Added, deepest))
	for name, v := range map[string]json.RawMessage{
		"too deep":             nested(bounds.RecordDepth),
		"deeper than can be":   nested(9_999),
		"too large":            json.RawMessage(`"` + strings.Repeat("x", bounds.Record) + `"`),
		"both, and a valid id": json.RawMessage(`[{"id":"c1"},` + string(nested(5_000)) + `,"` + strings.Repeat("x", bounds.Record) + `"]`),
	} {
		err := putRecord(s, k1, Added, v)
		if code(err) != 7 || !strings.Contains(fmt.Sprint(err), "cannot be stored") {
			t.Errorf("%s: %v", name, err)
		}
		if got, err := s.Get(k1); string(got.Value) != string(deepest) || err != nil {
			t.Errorf("%s: then %d bytes, %v", name, len(got.Value), err)
		}
	}
}

// The record of an ADD never is too large for the notes of its undo and of its DEL.
func TestLargestRecordCanBeNotedWhileItIsRemoved(t *testing.T) {
	t.Parallel()
	largest := value{strings.Repeat("x", maxLine-512)}
	longer := value{largest.Text + strings.Repeat("x", 4096)}
	for state, fits := range map[State]bool{Planned: false, Added: false, Partial: true, Deleting: true, Leftover: true} {
		if _, err := encode(Record[value]{Key: k1, State: state, Value: longer}); (err == nil) != fits {
			t.Errorf("%s: %v", state, err)
		}
	}
	s := newStore(t)
	nodetest.OK(t, putRecord(s, k1, Added, largest))
	nodetest.OK(t, note(s, Record[value]{Key: k1, State: Deleting, Value: longer}))
	holds(t, s, k1, "deleting "+longer.Text)
}

// A counted value counts how often all of it is encoded.
type counted struct {
	Text  string
	whole *int
	noted any
}

func (c counted) MarshalJSON() ([]byte, error) {
	*c.whole++
	return json.Marshal(c.Text)
}

func (c *counted) UnmarshalJSON(text []byte) error { return json.Unmarshal(text, &c.Text) }

func (c *counted) Noted() any { return c.noted }

func (c *counted) Make(records.Change) error { return nil }

// The cost of notes does not depend on the size of the record.
func TestNotesOfALargeRecordDoNotEncodeIt(t *testing.T) {
	t.Parallel()
	encoded := 0
	s := Store[counted]{Dir: t.TempDir()}
	r := Record[counted]{Key: k1, State: Planned, Value: counted{Text: strings.Repeat("x", 2*minCompact), whole: &encoded}}
	nodetest.OK(t, update(s, r))
	for want, first := range []func(*Lock) error{
		func(l *Lock) error { return s.Put(l, r) }, // by the process that wrote it
		func(*Lock) error { return nil },           // by another process: once, to know its length
	} {
		nodetest.OK(t, under(s, "c1", func(l *Lock) error {
			nodetest.OK(t, first(l))
			encoded = 0
			for i := range 100 {
				r.Value.noted = i
				nodetest.OK(t, s.Note(l, r))
			}
			return nil
		}))
		equal(t, "times that it was encoded", encoded, want)
	}
}

func TestListAndContainer(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	for range s.List(t.Context()) {
		t.Error("a record in an empty store")
	}
	for range (Store[value]{Dir: s.Dir + "/none"}).List(t.Context()) {
		t.Error("a record in no store")
	}
	if all, err := s.Container(t.Context(), "c1"); len(all) != 0 || err != nil {
		t.Error(all, err)
	}
	long := Key{strings.Repeat("n", 300), strings.Repeat("c", 300), "eth0"}
	for _, k := range []Key{k3, k2, long, k1} {
		put(t, s, k, k.String())
	}
	// Foreign files are none of our business (and stay).
	for _, name := range []string{"README", "c9@lock", "x@y.json", "#notahash", ".hidden", ".tmp-1", "c1@notes.json", "c1@a@%65th0.json", "c1@@.json", "c1@net@eth0.json~", "c1"} {
		nodetest.OK(t, os.WriteFile(filepath.Join(s.Dir, name), []byte("foreign"), 0o600))
	}
	nodetest.OK(t, os.Mkdir(filepath.Join(s.Dir, "lost+found"), 0o700))
	before := tree(t, s.Dir)
	var got []Key
	for r, err := range s.List(t.Context()) {
		nodetest.OK(t, err)
		if r.Value.Text != r.Key.String() {
			t.Errorf("%v holds %v", r.Key, r.Value)
		}
		got = append(got, r.Key)
	}
	equal(t, "keys", got, []Key{long, k1, k2, k3})
	for r, err := range s.List(t.Context()) { // stops when told to
		nodetest.OK(t, err)
		if r.Key != long {
			t.Error(r.Key)
		}
		break
	}
	all, err := s.Container(t.Context(), "c1")
	nodetest.OK(t, err)
	got = nil
	for _, r := range all {
		got = append(got, r.Key)
	}
	equal(t, "keys", got, []Key{k1, k2})
	if keys, err := damaged(t.Context(), s); len(keys) != 0 || err != nil {
		t.Error(keys, err)
	}
	equal(t, "files", tree(t, s.Dir), before)
}

// ListChanged reads what was written or noted since, and nothing else.
func TestListChanged(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	for _, k := range []Key{k1, k2, k3} {
		put(t, s, k, "first")
	}
	versions := make(map[Key]string)
	read := func() (changed []Key) {
		now := make(map[Key]string)
		for r, err := range s.ListChanged(t.Context(), func(k Key, version string) bool {
			now[k] = version
			return versions[k] == version
		}) {
			nodetest.OK(t, err)
			changed = append(changed, r.Key)
		}
		versions = now
		return changed
	}
	equal(t, "at first", read(), []Key{k1, k2, k3})
	equal(t, "unchanged", read(), nil)
	put(t, s, k2, "other")
	equal(t, "written", read(), []Key{k2})
	l, err := s.Lock(t.Context(), k3.ContainerID)
	nodetest.OK(t, err)
	r, err := s.Get(k3)
	nodetest.OK(t, err)
	r.Value.Text = "noted"
	nodetest.OK(t, s.Note(l, r))
	equal(t, "noted", read(), []Key{k3})
	nodetest.OK(t, l.Unlock())
	equal(t, "unchanged again", read(), nil)
}

// List goes on while records come and go under it.
func TestListWhileOthersWrite(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	for _, id := range []string{"a", "b", "c"} {
		put(t, s, Key{"net", id, "eth0"}, id)
		put(t, s, Key{"net", id, "eth1"}, id)
	}
	var got []string
	for r, err := range s.List(t.Context()) {
		nodetest.OK(t, err)
		got = append(got, r.Key.ContainerID+r.Key.IfName)
		nodetest.OK(t, del(s, Key{"net", "a", "eth1"})) // its name has been read
		nodetest.OK(t, del(s, Key{"net", "b", "eth0"}))
		nodetest.OK(t, del(s, Key{"net", "b", "eth1"}))
	}
	want := []string{"aeth0", "ceth0", "ceth1"}
	equal(t, "listed", got, want)
}

// List says that its context has ended instead of pretending to be complete.
func TestListEndsWithItsContext(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	put(t, s, k1, "")
	put(t, s, k3, "")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var got []string
	for r, err := range s.List(ctx) {
		cancel()
		got = append(got, fmt.Sprint(r.Key, code(err)))
	}
	equal(t, "listed", got, []string{fmt.Sprint(k1, 0), fmt.Sprint(Key{}, 11)})
	if _, err := s.Container(ctx, "c1"); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if _, err := damaged(ctx, s); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}
