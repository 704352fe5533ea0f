package scratch

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/metacni/metacni/internal/durable"
)

func recordPath(s Store[value], k Key) string {
	return filepath.Join(s.Dir, dirName(k.ContainerID), fileName(k))
}

// history is a record's file after Put and two Notes, and what each line says.
func history(t *testing.T, s Store[value], k Key) (data []byte, said []string) {
	t.Helper()
	put(t, s, k, "one")
	ok(t, s.Note(Record[value]{Key: k, State: Added, Value: value{"two"}}))
	ok(t, s.Note(Record[value]{Key: k, State: Deleting, Value: value{"three"}}))
	data, err := os.ReadFile(recordPath(s, k))
	ok(t, err)
	return data, []string{"planned one", "added two", "deleting three"}
}

// Wherever a file is cut off, it says what a line of it said, or is corrupt: no
// line is ever read in part (D3).
func TestG11EveryTruncation(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	data, said := history(t, s, k1)
	now := "corrupt"
	next := 0
	for n := range len(data) + 1 {
		// A line counts from its last byte on; the newline after it does not matter.
		if next < len(said) && n == endOfLine(data, next) {
			now = said[next]
			next++
		}
		if got := check(data[:n]); got != now {
			t.Fatalf("%d of %d bytes: %q, want %q", n, len(data), got, now)
		}
		ok(t, os.WriteFile(recordPath(s, k1), data[:n], 0o600))
		if got := text(s, k1); got != now {
			t.Fatalf("file of %d bytes: %q, want %q", n, got, now)
		}
		ok(t, s.Forget(k1))
		ok(t, os.Mkdir(filepath.Join(s.Dir, "c1"), 0o700))
	}
	if next != len(said) {
		t.Errorf("%d lines seen", next)
	}
}

// endOfLine returns where the nth line that is not empty ends.
func endOfLine(data []byte, n int) int {
	end := 0
	for _, line := range bytes.SplitAfter(data, []byte{'\n'}) {
		end += len(line)
		if len(line) > 1 {
			if n == 0 {
				return end - 1
			}
			n--
		}
	}
	return -1
}

// Whichever byte is changed, to whatever, the file says what a line of it said,
// or is corrupt.
func TestG11EveryByteFlip(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	data, said := history(t, s, k1)
	one := data[:endOfLine(data, 0)+1]
	for i := range data {
		for _, flip := range []byte{1, 2, 4, 8, 16, 32, 64, 128, 255, data[i], data[i] ^ '\n'} {
			if flip == 0 {
				continue
			}
			damaged := bytes.Clone(data)
			damaged[i] ^= flip
			got := check(damaged)
			want := said[2]
			if i > endOfLine(data, 1) && i != len(data)-1 {
				want = said[1]
			}
			if got != want && (i != len(data)-1 && i != endOfLine(data, 1)+1 || got != said[1]) {
				t.Fatalf("byte %d ^ %#x: %q, want %q", i, flip, got, want)
			}
			if i < len(one)-1 {
				if got := check(damaged[:len(one)]); got != "corrupt" {
					t.Fatalf("byte %d ^ %#x of a single line: %q", i, flip, got)
				}
			}
		}
	}
}

// A damaged record is set aside by the Get that finds it, stays corrupt for
// every verb, harms no other, and is named until it is forgotten (D4, D5).
func TestG11DamagedUntilForgotten(t *testing.T) {
	t.Parallel()
	for _, find := range []string{"get", "list", "container"} {
		for _, content := range []string{"", "null", "[]", "{}", "\x00\x00\x00", strings.Repeat("\n", 99), "0123456789abcdef {}"} {
			s := newStore(t)
			put(t, s, k1, "one")
			put(t, s, k2, "two")
			ok(t, os.WriteFile(recordPath(s, k1), []byte(content), 0o600))
			var err error
			switch find {
			case "get":
				_, err = s.Get(k1)
			case "list":
				for _, lerr := range s.List() {
					err = errors.Join(err, lerr)
				}
			case "container":
				var all []Record[value]
				if all, err = s.Container("c1"); len(all) != 1 || all[0].Key != k2 {
					t.Errorf("container: %v", all)
				}
			}
			var e *Error
			if !errors.Is(err, ErrCorrupt) || code(err) != 5 || !errors.As(err, &e) || e.Key != k1 || e.Path != recordPath(s, k1)+".corrupt" {
				t.Errorf("%s of %q: %v", find, content, err)
			}
			for range 2 {
				if got := text(s, k1); got != "corrupt" {
					t.Errorf("%s", got)
				}
			}
			l, err := s.Lock(t.Context(), "c1")
			ok(t, err)
			r := Record[value]{Key: k1, State: Added}
			for verb, err := range map[string]error{
				"put": s.Put(k1, Planned, value{}), "update": s.Update(r), "note": s.Note(r),
				"consume": s.Consume(t.Context(), l, k1, nil),
			} {
				if !errors.Is(err, ErrCorrupt) || code(err) != 5 {
					t.Errorf("%s: %v", verb, err)
				}
			}
			ok(t, s.Delete(k1))
			var listed []string
			for r, err := range s.List() {
				listed = append(listed, fmt.Sprint(r.Key, errors.Is(err, ErrCorrupt), err == nil))
			}
			if diff := cmp.Diff([]string{fmt.Sprint(k1, true, false), fmt.Sprint(k2, false, true)}, listed); diff != "" {
				t.Errorf("listed (-want +got):\n%s", diff)
			}
			keys, err := s.Damaged()
			if diff := cmp.Diff([]Key{k1}, keys); diff != "" || err != nil {
				t.Error(diff, err)
			}
			kept, err := os.ReadFile(recordPath(s, k1) + ".corrupt")
			if string(kept) != content || err != nil {
				t.Errorf("kept %q, %v", kept, err)
			}
			ok(t, s.Forget(k1))
			ok(t, s.Forget(k1))
			if got := text(s, k1); got != "none" {
				t.Errorf("after forget: %s", got)
			}
			ok(t, s.Delete(k2))
			ok(t, l.Unlock())
			if left := tree(t, s.Dir); len(left) != 0 {
				t.Errorf("left: %q", left)
			}
		}
	}
}

// Long names are known by their hash, which Forget accepts.
func TestDamagedWithLongNames(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	k := Key{strings.Repeat("n", 191), strings.Repeat("c", 5000), "eth0"}
	put(t, s, k, "one")
	ok(t, os.Truncate(recordPath(s, k), 50))
	if got := text(s, k); got != "corrupt" {
		t.Error(got)
	}
	keys, err := s.Damaged()
	ok(t, err)
	if diff := cmp.Diff([]Key{{part(k.Network), part(k.ContainerID), "eth0"}}, keys); diff != "" {
		t.Fatal(diff)
	}
	ok(t, s.Forget(keys[0]))
	if left := tree(t, s.Dir); len(left) != 0 {
		t.Errorf("left: %q", left)
	}
}

// What has a record's name without being a file is damage like any other, and
// is not followed (G12).
func TestG12NoLinkIsFollowed(t *testing.T) {
	t.Parallel()
	s, out := newStore(t), t.TempDir()
	secret := filepath.Join(out, "secret")
	ok(t, os.WriteFile(secret, []byte("secret"), 0o600))
	put(t, s, k3, "another container's")
	plant := map[string]func(path string) error{
		"eth0": func(p string) error { return os.Symlink(secret, p) },
		"eth1": func(p string) error { return os.Symlink(recordPath(s, k3), p) },
		"eth2": func(p string) error { return os.Symlink("../c2/"+fileName(k3), p) },
		"eth3": func(p string) error { return os.Mkdir(p, 0o700) },
		"eth4": func(p string) error { return unix.Mkfifo(p, 0o600) },
		"eth5": func(p string) error { return os.Truncate(p, maxFile+1) },
		"eth6": func(p string) error { return os.Symlink("nowhere", p) },
	}
	for ifName, f := range plant {
		k := Key{"net", "c1", ifName}
		put(t, s, k, "")
		if ifName != "eth5" {
			ok(t, os.Remove(recordPath(s, k)))
		}
		ok(t, f(recordPath(s, k)))
		if err := s.Note(Record[value]{Key: k, State: Added}); err == nil && ifName != "eth5" {
			t.Errorf("noted in %s", ifName)
		}
		if ifName == "eth5" { // made whole by the note
			ok(t, os.Truncate(recordPath(s, k), maxFile+1))
		}
		if got := text(s, k); got != "corrupt" {
			t.Errorf("%s: %s", ifName, got)
		}
		ok(t, s.Forget(k))
		put(t, s, k, "")
		ok(t, s.Delete(k))
	}
	// A record's file with a second name is replaced, not written through.
	put(t, s, k1, "")
	twin := filepath.Join(out, "twin")
	ok(t, os.Link(recordPath(s, k1), twin))
	before, err := os.ReadFile(twin)
	ok(t, err)
	ok(t, s.Note(Record[value]{Key: k1, State: Added}))
	if after, err := os.ReadFile(twin); string(after) != string(before) || err != nil || text(s, k1) != "added " {
		t.Errorf("twin: %q, %v; record: %s", after, err, text(s, k1))
	}
	if data, err := os.ReadFile(secret); string(data) != "secret" || err != nil {
		t.Errorf("secret: %q, %v", data, err)
	}
	if got := text(s, k3); got != "planned another container's" {
		t.Error(got)
	}
}

// A container's directory, or its lock, that is something else is an error,
// and passed over when all are listed (G12).
func TestG12NoContainerElsewhere(t *testing.T) {
	t.Parallel()
	s, out := newStore(t), t.TempDir()
	put(t, s, k3, "another container's")
	for name, f := range map[string]func(path string) error{
		"out":    func(p string) error { return os.Symlink(out, p) },
		"inside": func(p string) error { return os.Symlink("c2", p) },
		"file":   func(p string) error { return os.WriteFile(p, nil, 0o600) },
		"fifo":   func(p string) error { return unix.Mkfifo(p, 0o600) },
	} {
		ok(t, f(filepath.Join(s.Dir, name)))
		ok(t, os.Symlink(filepath.Join(out, "lock"), filepath.Join(s.Dir, name+"@lock")))
		k := Key{"other", name, "eth0"}
		_, gerr := s.Get(k)
		_, cerr := s.Container(name)
		_, lerr := s.Lock(t.Context(), name)
		_, kerr := s.KillOrphans(name)
		for verb, err := range map[string]error{
			"put": s.Put(k, Planned, value{}), "note": s.Note(Record[value]{Key: k, State: Added}), "get": gerr,
			"container": cerr, "delete": s.Delete(k), "forget": s.Forget(k), "lock": lerr, "kill": kerr,
		} {
			if code(err) != 5 {
				t.Errorf("%s, %s: %v", name, verb, err)
			}
		}
	}
	n := 0
	for r, err := range s.List() {
		ok(t, err)
		if n++; r.Key != k3 {
			t.Error(r.Key)
		}
	}
	if keys, err := s.Damaged(); n != 1 || len(keys) != 0 || err != nil {
		t.Error(n, keys, err)
	}
	if left := tree(t, out); len(left) != 0 {
		t.Errorf("written outside: %q", left)
	}
}

// A record that is replaced between reading it and setting it aside is read
// again; one that goes is gone.
func TestQuarantineTakesOnlyWhatWasRead(t *testing.T) {
	t.Parallel()
	for want, meanwhile := range map[string]func(Store[value]) error{
		"planned new": func(s Store[value]) error { return s.Put(k1, Planned, value{"new"}) },
		"none":        func(s Store[value]) error { return s.Delete(k1) },
		"corrupt":     func(s Store[value]) error { _ = text(s, k1); return nil },
	} {
		s := newStore(t)
		put(t, s, k1, "")
		ok(t, os.WriteFile(recordPath(s, k1), []byte("damaged"), 0o600))
		done := false
		hooked := s
		hook := durable.Hook(func(call, name string) error {
			if call == "fstatat" && name == fileName(k1) && !done {
				done = true
				return meanwhile(s)
			}
			return nil
		})
		hooked.hook = &hook
		if got := text(hooked, k1); got != want || !done {
			t.Errorf("%s, want %s", got, want)
		}
	}
}
