package scratch

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/metacni/metacni/internal/durable"
)

var errCrash = errors.New("crash")

// at returns s with a hook that answers err to the nth system call, and to
// every later one if the process is to be dead by then. torn cuts a write.
func at(t *testing.T, s Store[value], n int, err error) Store[value] {
	t.Helper()
	calls, dead := 0, errors.Is(err, errCrash)
	hook := durable.Hook(func(call, name string) error {
		if calls++; calls == n || dead && calls > n {
			if call == "write" && calls == n && durable.IsTemp(name) {
				temps, _ := filepath.Glob(filepath.Join(s.Dir, "*", name))
				for _, path := range temps {
					ok(t, os.WriteFile(path, []byte("0123456789abcdef {\"ver"), 0o600))
				}
			}
			return err
		}
		return nil
	})
	s.hook = &hook
	return s
}

// A verb that changes a record, with what may be there when it failed.
type change struct {
	name string
	old  string // what is there before, as text returns it
	new  string // what is there when it succeeded
	do   func(s Store[value]) error
}

func changes(t *testing.T) []change {
	t.Helper()
	r := Record[value]{Key: k1, State: Added, Value: value{"new"}}
	consume := func(s Store[value]) error {
		l, err := s.Lock(t.Context(), "c1")
		if err != nil {
			return err
		}
		err = s.Consume(t.Context(), l, k1, func(context.Context, Record[value]) error { return nil })
		return errors.Join(err, l.Unlock())
	}
	return []change{
		{"first put", "none", "planned new", func(s Store[value]) error { return s.Put(k1, Planned, value{"new"}) }},
		{"put", "planned old", "planned new", func(s Store[value]) error { return s.Put(k1, Planned, value{"new"}) }},
		{"update", "planned old", "added new", func(s Store[value]) error { return s.Update(r) }},
		{"note", "planned old", "added new", func(s Store[value]) error { return s.Note(r) }},
		{"delete", "planned old", "none", func(s Store[value]) error { return s.Delete(k1) }},
		{"forget", "planned old", "none", func(s Store[value]) error { return s.Forget(k1) }},
		{"consume", "planned old", "none", consume},
		{"forget damaged", "corrupt", "none", func(s Store[value]) error { return s.Forget(k1) }},
	}
}

func prepare(t *testing.T, c change) Store[value] {
	t.Helper()
	s := newStore(t)
	if c.old != "none" {
		put(t, s, k1, "old")
	}
	if c.old == "corrupt" {
		ok(t, os.Truncate(recordPath(s, k1), 9))
		_ = text(s, k1)
	}
	return s
}

// After a crash before any system call of any verb the record is the old one or
// the new one, nobody else's record is touched, and the next DEL cleans up all
// that is left (G1, D3).
func TestG1CrashAnywhere(t *testing.T) {
	t.Parallel()
	for _, c := range changes(t) {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			for n := 1; ; n++ {
				s := prepare(t, c)
				put(t, s, k3, "bystander")
				err := c.do(at(t, s, n, errCrash))
				got := text(s, k1)
				if err == nil && got != c.new {
					t.Errorf("nil, and there is %q", got)
				}
				if got != c.old && got != c.new {
					t.Errorf("crash at call %d: %q", n, got)
				}
				if got := text(s, k3); got != "planned bystander" {
					t.Errorf("crash at call %d: bystander %q", n, got)
				}
				if got == "corrupt" {
					ok(t, s.Forget(k1))
				}
				l, lerr := s.Lock(t.Context(), "c1")
				ok(t, lerr)
				ok(t, s.Consume(t.Context(), l, k1, func(context.Context, Record[value]) error { return nil }))
				ok(t, l.Unlock())
				ok(t, s.Delete(k3))
				if left := tree(t, s.Dir); len(left) != 0 {
					t.Errorf("crash at call %d: left %q", n, left)
				}
				if err == nil {
					break
				}
			}
		})
	}
}

// Every system call of every verb that fails is reported with its errno and
// code 5, and leaves the old record or the new.
func TestFailureAnywhere(t *testing.T) {
	t.Parallel()
	for _, c := range changes(t) {
		for _, errno := range []unix.Errno{unix.ENOSPC, unix.EIO, unix.EROFS, unix.EACCES} {
			t.Run(c.name+"/"+errno.Error(), func(t *testing.T) {
				t.Parallel()
				silent := 0
				for n := 1; ; n++ {
					s := prepare(t, c)
					failing := at(t, s, n, errno)
					err := c.do(failing)
					got := text(s, k1)
					switch {
					case err == nil && got != c.new:
						t.Errorf("call %d: nil, and there is %q", n, got)
					case err != nil && (!errors.Is(err, errno) || code(err) != 5):
						t.Errorf("call %d: %v", n, err)
					case got != c.old && got != c.new:
						t.Errorf("call %d: %q", n, got)
					}
					for _, name := range tree(t, s.Dir) {
						if strings.Contains(name, durable.TempPrefix) {
							t.Errorf("call %d: left %s", n, name)
						}
					}
					// One thing is merely looked at and may fail in silence: whether
					// the record that a Put replaces is there.
					if err == nil {
						if silent++; silent > 1 {
							break
						}
					}
				}
			})
		}
	}
}

// Reading that fails is neither "no record" nor "corrupt".
func TestReadFailureAnywhere(t *testing.T) {
	t.Parallel()
	for _, present := range []bool{true, false} {
		for n := 1; ; n++ {
			s := newStore(t)
			put(t, s, k2, "")
			if present {
				put(t, s, k1, "one")
			}
			_, err := at(t, s, n, unix.EIO).Get(k1)
			if err == nil || !errors.Is(err, unix.EIO) {
				break
			}
			if errors.Is(err, ErrCorrupt) || code(err) != 5 {
				t.Errorf("call %d: %v", n, err)
			}
			if got := text(s, k1); present != (got == "planned one") {
				t.Errorf("call %d: %s", n, got)
			}
		}
	}
	// A record that cannot be set aside is corrupt all the same, every time.
	s := newStore(t)
	put(t, s, k1, "one")
	ok(t, os.Truncate(recordPath(s, k1), 9))
	hook := durable.Hook(func(call, _ string) error {
		if call == "renameat" {
			return unix.EROFS
		}
		return nil
	})
	s.hook = &hook
	for range 2 {
		if _, err := s.Get(k1); !errors.Is(err, ErrCorrupt) || !errors.Is(err, unix.EROFS) {
			t.Error(err)
		}
	}
}

// What cannot be listed is reported, and the rest is listed.
func TestListFailures(t *testing.T) {
	t.Parallel()
	for _, call := range []string{"open", "openat", "getdents", "read"} {
		for _, name := range []string{"c1", fileName(k1), "."} {
			s := newStore(t)
			put(t, s, k1, "")
			put(t, s, k3, "")
			done := false
			hook := durable.Hook(func(c, n string) error {
				if c == call && n == name && !done {
					done = true
					return unix.EIO
				}
				return nil
			})
			hooked := s
			hooked.hook = &hook
			records := 0
			var errs []error
			for _, err := range hooked.List() {
				if err != nil {
					errs = append(errs, err)
				} else {
					records++
				}
			}
			if done && (len(errs) != 1 || !errors.Is(errs[0], unix.EIO) || name != "." && records != 1) {
				t.Errorf("list, EIO at %s %s: %v, %d records", call, name, errs, records)
			}
			if !done && records != 2 {
				t.Errorf("list: %d records", records)
			}
			done = false
			if keys, err := hooked.Damaged(); done != errors.Is(err, unix.EIO) {
				t.Errorf("damaged, EIO at %s %s: %v, %v", call, name, keys, err)
			}
			done = false
			if all, err := hooked.Container("c1"); done != errors.Is(err, unix.EIO) {
				t.Errorf("container, EIO at %s %s: %v, %v", call, name, all, err)
			}
		}
	}
}

// Put does not mind, at whatever moment, that somebody else deletes the last
// record of the container and with it the directory.
func TestPutWhileOthersDelete(t *testing.T) {
	t.Parallel()
	for n := 1; ; n++ {
		s := newStore(t)
		put(t, s, k2, "last")
		calls := 0
		hook := durable.Hook(func(string, string) error {
			if calls++; calls == n {
				return s.Delete(k2)
			}
			return nil
		})
		putting := s
		putting.hook = &hook
		if err := putting.Put(k1, Planned, value{"new"}); err != nil {
			t.Errorf("deleted at call %d: %v", n, err)
		}
		if got := text(s, k1); got != "planned new" {
			t.Errorf("deleted at call %d: %s", n, got)
		}
		if got := tree(t, s.Dir); calls >= n && !slices.Equal(got, []string{"c1", "c1/net@eth0.json"}) {
			t.Errorf("deleted at call %d: left %q", n, got)
		}
		if calls < n {
			break
		}
	}
}

// A directory that vanishes for ever is an error in the end.
func TestPutGivesUp(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	tries := 0
	hook := durable.Hook(func(call, name string) error {
		if call == "openat" && name == "c1" {
			tries++
			return os.Remove(filepath.Join(s.Dir, "c1"))
		}
		return nil
	})
	s.hook = &hook
	if err := s.Put(k1, Planned, value{}); !errors.Is(err, os.ErrNotExist) || tries != maxTries {
		t.Errorf("%v after %d tries", err, tries)
	}
}

// The directories are synced when the record is new, its own alone when it is
// replaced, and a note syncs nothing.
func TestSyncsAreFew(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	var syncs []string
	hook := durable.Hook(func(call, name string) error {
		if call == "fsync" {
			if durable.IsTemp(name) {
				name = "file"
			}
			syncs = append(syncs, name)
		}
		return nil
	})
	s.hook = &hook
	for _, step := range []struct {
		name string
		do   func() error
		want []string
	}{
		{"new", func() error { return s.Put(k1, Planned, value{}) }, []string{"file", ".", "."}},
		{"second of the container", func() error { return s.Put(k2, Planned, value{}) }, []string{"file", ".", "."}},
		{"again", func() error { return s.Put(k1, Planned, value{}) }, []string{"file", "."}},
		{"note", func() error { return s.Note(Record[value]{Key: k1, State: Added}) }, nil},
		{"delete", func() error { return s.Delete(k1) }, nil},
	} {
		syncs = nil
		ok(t, step.do())
		if !slices.Equal(syncs, step.want) {
			t.Errorf("%s: %q, want %q", step.name, syncs, step.want)
		}
	}
}
