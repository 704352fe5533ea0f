package scratch

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/metacni/metacni/internal/durable"
)

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
		ok(t, os.WriteFile(filepath.Join(s.Dir, name), []byte("foreign"), 0o600))
	}
	ok(t, os.Mkdir(filepath.Join(s.Dir, "lost+found"), 0o700))
	before := tree(t, s.Dir)
	var got []Key
	for r, err := range s.List(t.Context()) {
		ok(t, err)
		if r.Value.Text != r.Key.String() {
			t.Errorf("%v holds %v", r.Key, r.Value)
		}
		got = append(got, r.Key)
	}
	if diff := cmp.Diff([]Key{long, k1, k2, k3}, got); diff != "" {
		t.Error(diff)
	}
	for r, err := range s.List(t.Context()) { // stops when told to
		ok(t, err)
		if r.Key != long {
			t.Error(r.Key)
		}
		break
	}
	all, err := s.Container(t.Context(), "c1")
	ok(t, err)
	got = nil
	for _, r := range all {
		got = append(got, r.Key)
	}
	if diff := cmp.Diff([]Key{k1, k2}, got); diff != "" {
		t.Error(diff)
	}
	if keys, err := damaged(t.Context(), s); len(keys) != 0 || err != nil {
		t.Error(keys, err)
	}
	if diff := cmp.Diff(before, tree(t, s.Dir)); diff != "" {
		t.Error(diff)
	}
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
		ok(t, err)
		got = append(got, r.Key.ContainerID+r.Key.IfName)
		ok(t, del(s, Key{"net", "a", "eth1"})) // its name has been read
		ok(t, del(s, Key{"net", "b", "eth0"}))
		ok(t, del(s, Key{"net", "b", "eth1"}))
	}
	want := []string{"aeth0", "ceth0", "ceth1"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
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
	if diff := cmp.Diff([]string{fmt.Sprint(k1, 0), fmt.Sprint(Key{}, 11)}, got); diff != "" {
		t.Error(diff)
	}
	if _, err := s.Container(ctx, "c1"); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if _, err := damaged(ctx, s); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// Records says what Container says, however much the lock knows.
func TestRecordsIsContainerUnderTheLock(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	put(t, s, k3, "another container's")
	for _, before := range [][]Key{nil, {k1}, {k1, k2}} {
		for _, k := range before {
			put(t, s, k, "before")
		}
		ok(t, under(s, "c1", func(l *Lock) error {
			for range 2 {
				want, err := s.Container(t.Context(), "c1")
				ok(t, err)
				got, err := s.Records(t.Context(), l)
				ok(t, err)
				if diff := cmp.Diff(want, got); diff != "" || len(got) != len(before) {
					t.Errorf("%d records: %s", len(before), diff)
				}
			}
			k := Key{"net", "c1", "new"}
			ok(t, s.Put(l, Record[value]{Key: k, State: Planned}))
			if got, err := s.Records(t.Context(), l); len(got) != len(before)+1 || err != nil {
				t.Errorf("%v, %v after a put", got, err)
			}
			ok(t, s.Delete(l, k))
			for _, k := range before {
				ok(t, s.Delete(l, k))
			}
			if got, err := s.Records(t.Context(), l); len(got) != 0 || err != nil {
				t.Errorf("%v, %v after all were deleted", got, err)
			}
			return nil
		}))
		if diff := cmp.Diff([]string{"c2@lock", "c2@other@eth0.json"}, tree(t, s.Dir)); diff != "" {
			t.Error(diff)
		}
	}
	if _, err := s.Records(t.Context(), nil); !errors.Is(err, errNotHeld) {
		t.Error(err)
	}
}

// Taking and releasing the lock of a container costs the same however many
// records others have: the directory is listed only after a record was deleted
// that may have been the last of several.
func TestLockDoesNotListTheDirectory(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	lists := 0
	hook := durable.Hook(func(call, _ string) error {
		if call == "getdents" {
			lists++
		}
		return nil
	})
	s.hook = &hook
	step := func(name string, want int, err error) {
		t.Helper()
		if err != nil || lists != want {
			t.Errorf("%s: listed %d times, %v; want %d", name, lists, err, want)
		}
		lists = 0
	}
	nothing := func(*Lock) error { return nil }
	step("no record", 0, under(s, "c1", nothing))
	step("put", 0, putRecord(s, k1, Added, value{}))
	step("one record", 0, under(s, "c1", nothing))
	step("put another", 0, putRecord(s, k2, Added, value{}))
	step("two records", 0, under(s, "c1", nothing))
	step("delete one of two", 1, del(s, k1))
	step("delete the last", 1, del(s, k2))
	if left := tree(t, s.Dir); len(left) != 0 {
		t.Errorf("left %q", left)
	}
}
