package scratch

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// A Watch tells of each record that any program has changed, and of no other.
func TestWatchTellsWhatHasChanged(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	put(t, s, k1, "")
	put(t, s, k3, "")
	ok(t, os.WriteFile(filepath.Join(s.Dir, "README"), nil, 0o600))
	w, err := s.Watch()
	ok(t, err)
	defer w.Close()
	want := func(what string, want ...Key) {
		t.Helper()
		got, known := w.Changed()
		if diff := cmp.Diff(want, got); diff != "" || !known {
			t.Errorf("%s: known %v, %s", what, known, diff)
		}
	}
	if keys, known := w.Changed(); known {
		t.Errorf("the first call knows %v", keys)
	}
	want("nothing")
	put(t, s, k2, "")
	want("a new record", k2)
	put(t, s, k1, "again")
	want("a record put again", k1)
	ok(t, note(s, Record[value]{Key: k3, State: Added}))
	want("a note", k3)
	want("nothing since")
	ok(t, under(s, "c9", func(*Lock) error { return nil }))
	want("a lock")
	ok(t, del(s, k1))
	ok(t, del(s, k3))
	put(t, s, k1, "in a file that was used before")
	want("two deleted, one put", k1, k3)
	ok(t, forget(s, k2))
	want("a record forgotten", k2)
	w.Close()
	if _, known := w.Changed(); known {
		t.Error("it knows something after Close")
	}
}

// Where it cannot tell what has changed, a Watch says so.
func TestWatchSaysWhatItDoesNotKnow(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		change func(t *testing.T, s Store[value])
		last   bool // it knows nothing from then on
	}{
		"a long name": {func(t *testing.T, s Store[value]) {
			t.Helper()
			put(t, s, Key{"net", strings.Repeat("x", 100), "eth0"}, "")
		}, false},
		"too many changes": {func(t *testing.T, s Store[value]) {
			t.Helper()
			text, err := os.ReadFile("/proc/sys/fs/inotify/max_queued_events")
			if err != nil || len(text) > len("65536\n") {
				t.Skipf("at most %s events, %v", text, err)
			}
			f, err := os.OpenFile(recordPath(s, k1), os.O_WRONLY|os.O_APPEND, 0)
			ok(t, err)
			g, err := os.OpenFile(recordPath(s, k3), os.O_WRONLY|os.O_APPEND, 0)
			ok(t, err)
			for range 33_000 { // alternating, because the kernel merges events that are the same
				_, _ = f.WriteString("\n")
				_, _ = g.WriteString("\n")
			}
			ok(t, f.Close())
			ok(t, g.Close())
		}, false},
		"the directory is gone": {func(t *testing.T, s Store[value]) {
			t.Helper()
			ok(t, os.RemoveAll(s.Dir))
		}, true},
		"the directory is another": {func(t *testing.T, s Store[value]) {
			t.Helper()
			ok(t, os.Rename(s.Dir, s.Dir+"-aside"))
			put(t, s, k1, "")
		}, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := Store[value]{Dir: filepath.Join(t.TempDir(), "state")}
			put(t, s, k1, "")
			put(t, s, k3, "")
			w, err := s.Watch()
			ok(t, err)
			defer w.Close()
			w.Changed()
			tt.change(t, s)
			if keys, known := w.Changed(); known {
				t.Errorf("it knows %v", keys)
			}
			if _, known := w.Changed(); known == tt.last {
				t.Errorf("it knows what has changed since: %v", known)
			}
		})
	}
	if w, err := (Store[value]{Dir: t.TempDir() + "/none"}).Watch(); err == nil || code(err) != 5 {
		t.Errorf("without a directory: %v, %v", w, err)
	}
}
