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
