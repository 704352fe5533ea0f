package scratch

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/metacni/metacni/internal/durable"
)

// testdata/former is what the version before the flat layout wrote: two records
// of c1, one of them noted, one of c2 that it found damaged, one of c3 that is
// damaged, and two with long names.
var (
	longKey = Key{strings.Repeat("x", 191), strings.Repeat("x", 191), "é@"}
	midKey  = Key{strings.Repeat("y", 100), strings.Repeat("y", 100), "eth0"}
)

func formerStore(t *testing.T) Store[value] {
	t.Helper()
	s := newStore(t)
	ok(t, os.CopyFS(s.Dir, os.DirFS("testdata/former")))
	ok(t, filepath.WalkDir(s.Dir, func(path string, e fs.DirEntry, err error) error {
		if err == nil && !e.IsDir() {
			err = os.Chmod(path, 0o600)
		}
		return err
	}))
	return s
}

var formerRecords = map[Key]string{
	k1: "added noted <&>", k2: "planned planned", longKey: "planned planned", midKey: "planned planned",
	{"net", "c2", "eth0"}: "corrupt", {"net", "c3", "eth0"}: "corrupt",
}

func listed(t *testing.T, s Store[value]) map[Key]string {
	t.Helper()
	got := map[Key]string{}
	for r, err := range s.List(t.Context()) {
		switch {
		case errors.Is(err, ErrCorrupt):
			got[r.Key] = "corrupt"
		case err != nil:
			t.Error(err)
		default:
			got[r.Key] = string(r.State) + " " + r.Value.Text
		}
	}
	return got
}

// Records of the former layout are read where they are, and nothing is changed.
func TestFormerRecordsAreRead(t *testing.T) {
	t.Parallel()
	s := formerStore(t)
	before := tree(t, s.Dir)
	if diff := cmp.Diff(formerRecords, listed(t, s)); diff != "" {
		t.Error(diff)
	}
	for k, want := range formerRecords {
		if got := text(s, k); got != want {
			t.Errorf("%v: %s, want %s", k, got, want)
		}
	}
	if all, err := s.Container(t.Context(), "c1"); len(all) != 2 || err != nil {
		t.Error(all, err)
	}
	keys, err := damaged(t.Context(), s)
	if diff := cmp.Diff([]Key{{"net", "c2", "eth0"}, {"net", "c3", "eth0"}}, keys); diff != "" || err != nil {
		t.Error(diff, err)
	}
	if diff := cmp.Diff(before, tree(t, s.Dir)); diff != "" {
		t.Error(diff)
	}
}

// Whoever takes the lock takes the container's records over, keeps what they
// say, and what is written of them then is of the new version.
func TestFormerRecordsAreTakenOver(t *testing.T) {
	t.Parallel()
	s := formerStore(t)
	for k := range formerRecords {
		ok(t, under(s, k.ContainerID, func(*Lock) error { return nil }))
	}
	for _, name := range tree(t, s.Dir) {
		if info, err := os.Stat(filepath.Join(s.Dir, name)); err != nil || info.IsDir() {
			t.Errorf("%s is left, %v", name, err)
		}
	}
	checkLockMode(t, s, "c1")
	if diff := cmp.Diff(formerRecords, listed(t, s)); diff != "" {
		t.Error(diff)
	}
	data, err := os.ReadFile(recordPath(s, k1))
	ok(t, err)
	if !strings.Contains(string(data), `"version":1,`) || strings.Contains(string(data), `"version":2,`) {
		t.Errorf("%s", data)
	}
	ok(t, note(s, Record[value]{Key: k1, State: Deleting}))
	data, err = os.ReadFile(recordPath(s, k1))
	ok(t, err)
	if text(s, k1) != "deleting " || strings.Count(string(data), `"version":2,`) != 1 {
		t.Errorf("%s", data)
	}
	for k, want := range formerRecords {
		ok(t, under(s, k.ContainerID, func(l *Lock) error {
			if want == "corrupt" {
				return s.Forget(l, k)
			}
			return s.Consume(t.Context(), l, k, func(context.Context, Record[value]) error { return nil })
		}))
	}
	if left := tree(t, s.Dir); len(left) != 0 {
		t.Errorf("left %q", left)
	}
}

// Where they cannot be taken over they are used where they are: a container can
// be detached on a file system that is full.
func TestFormerRecordsThatCannotBeMoved(t *testing.T) {
	t.Parallel()
	for _, errno := range []unix.Errno{unix.ENOSPC, unix.EROFS, unix.EACCES} {
		s := formerStore(t)
		ok(t, os.WriteFile(filepath.Join(s.Dir, "c1@lock"), nil, 0o600))
		hook := durable.Hook(func(call, _ string) error {
			if slices.Contains([]string{"renameat2", "renameat", "create", "fchmod"}, call) {
				return errno
			}
			return nil
		})
		s.hook = &hook
		l := lock(t, s)
		if all, err := s.Records(t.Context(), l); len(all) != 2 || err != nil {
			t.Error(all, err)
		}
		if err := s.Put(l, Record[value]{Key: k1, State: Added}); !errors.Is(err, errno) {
			t.Error(err)
		}
		ok(t, s.Note(l, Record[value]{Key: k1, State: Deleting, Value: value{"noted"}}))
		for k, want := range map[Key]string{k1: "deleting noted", k2: "planned planned"} {
			ok(t, s.Consume(t.Context(), l, k, func(_ context.Context, r Record[value]) error {
				if got := string(r.State) + " " + r.Value.Text; got != want {
					t.Errorf("%s, want %s", got, want)
				}
				return nil
			}))
		}
		ok(t, l.Unlock())
		if left, err := filepath.Glob(filepath.Join(s.Dir, "c1*")); len(left) != 0 || err != nil {
			t.Errorf("left %q, %v", left, err)
		}
	}
}

// A program of the former layout does not see the records of this one, and may
// make another under a key. Consume then uses both: one DEL is all that comes.
func TestConsumeUsesTheRecordsOfBothLayouts(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	put(t, s, k1, "flat")
	ok(t, os.Rename(recordPath(s, k1), filepath.Join(s.Dir, "aside")))
	former := formerStore(t)
	ok(t, os.Rename(filepath.Join(former.Dir, "c1"), filepath.Join(s.Dir, "c1")))
	ok(t, os.Rename(filepath.Join(s.Dir, "aside"), recordPath(s, k1)))
	var used []string
	consume := func(fails error) {
		err := under(s, "c1", func(l *Lock) error {
			return s.Consume(t.Context(), l, k1, func(_ context.Context, r Record[value]) error {
				used = append(used, r.Value.Text)
				return fails
			})
		})
		if !errors.Is(err, fails) {
			t.Error(err)
		}
	}
	consume(errCrash)
	consume(nil)
	if d := cmp.Diff([]string{"noted <&>", "noted <&>", "flat"}, used); d != "" {
		t.Error(d)
	}
	ok(t, del(s, k2))
	if left := tree(t, s.Dir); left != nil {
		t.Errorf("left %q", left)
	}
}

// List misses no record that is taken over while it lists.
func TestListWhileOthersTakeOver(t *testing.T) {
	t.Parallel()
	for at := 1; ; at++ {
		s := formerStore(t)
		calls := 0
		hook := durable.Hook(func(string, string) error {
			if calls++; calls == at {
				for _, id := range []string{"c1", "c2", longKey.ContainerID} {
					if err := under(Store[value]{Dir: s.Dir}, id, func(*Lock) error { return nil }); err != nil {
						return err
					}
				}
			}
			return nil
		})
		s.hook = &hook
		if diff := cmp.Diff(formerRecords, listed(t, s)); diff != "" {
			t.Errorf("taken over at call %d: %s", at, diff)
		}
		if calls < at {
			break
		}
	}
	for at := 1; ; at++ {
		s := formerStore(t)
		calls := 0
		hook := durable.Hook(func(string, string) error {
			if calls++; calls == at {
				return under(Store[value]{Dir: s.Dir}, "c1", func(*Lock) error { return nil })
			}
			return nil
		})
		s.hook = &hook
		if got := text(s, k1); got != formerRecords[k1] {
			t.Errorf("get, taken over at call %d: %s", at, got)
		}
		if calls < at {
			break
		}
	}
}

// What else is in such a directory stays.
func TestForeignFilesInAFormerDirectory(t *testing.T) {
	t.Parallel()
	s := formerStore(t)
	ok(t, os.WriteFile(filepath.Join(s.Dir, "c1", "README"), nil, 0o600))
	for range 2 {
		ok(t, under(s, "c1", func(*Lock) error { return nil }))
	}
	if _, err := os.Stat(filepath.Join(s.Dir, "c1", "README")); err != nil || text(s, k1) != formerRecords[k1] {
		t.Error(err, text(s, k1))
	}
}
