package scratch

import (
	"bytes"
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
// every later one if the process is to be dead by then. A write that a crash
// stops has written a part. reached reports whether there was an nth call.
func at(t *testing.T, s Store[value], n int, err error) (hooked Store[value], reached func() bool) {
	t.Helper()
	calls, dead := 0, errors.Is(err, errCrash)
	hook := durable.Hook(func(call, name string) error {
		if calls++; calls == n || dead && calls > n {
			if call == "write" && calls == n && dead {
				if durable.IsTemp(name) {
					f, err := os.OpenFile(filepath.Join(s.Dir, name), os.O_WRONLY, 0)
					ok(t, err)
					_, err = f.WriteString("0123456789abcdef {\"ver")
					ok(t, errors.Join(err, f.Close()))
				}
			}
			return err
		}
		return nil
	})
	s.hook = &hook
	return s, func() bool { return calls >= n }
}

// A verb that changes a record, with what may be there when it failed.
type change struct {
	name string
	old  string // what is there before, as text returns it
	new  string // what is there when it succeeded
	do   func(s Store[value]) error
}

func changes() []change {
	r := Record[value]{Key: k1, State: Added, Value: value{"new"}}
	return []change{
		{"first put", "none", "added new", func(s Store[value]) error { return update(s, r) }},
		{"put", "planned old", "added new", func(s Store[value]) error { return update(s, r) }},
		{"note", "planned old", "added new", func(s Store[value]) error { return note(s, r) }},
		{"delete", "planned old", "none", func(s Store[value]) error { return del(s, k1) }},
		{"forget", "planned old", "none", func(s Store[value]) error { return forget(s, k1) }},
		{"forget damaged", "corrupt", "none", func(s Store[value]) error { return forget(s, k1) }},
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
	}
	return s
}

// After a crash before any system call of any verb the record is the old one or
// the new one, nobody else's record is touched, there is a
// lock's file, and the next DEL cleans up all that is left.
func TestCrashAnywhere(t *testing.T) {
	t.Parallel()
	for _, c := range changes() {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			for n := 1; ; n++ {
				s := prepare(t, c)
				put(t, s, k3, "bystander")
				hooked, reached := at(t, s, n, errCrash)
				err := c.do(hooked)
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
				checkLock(t, s)
				if got == "corrupt" {
					ok(t, forget(s, k1))
				}
				ok(t, del(s, k1))
				ok(t, del(s, k3))
				if left := tree(t, s.Dir); len(left) != 0 {
					t.Errorf("crash at call %d: left %q", n, left)
				}
				if !reached() {
					break
				}
			}
		})
	}
}

// checkLock checks that c1 has a lock's file as long as it has records.
func checkLock(t *testing.T, s Store[value]) {
	t.Helper()
	all, err := filepath.Glob(filepath.Join(s.Dir, "c1@*@*"))
	ok(t, err)
	if _, err := os.Stat(filepath.Join(s.Dir, "c1@lock")); len(all) > 0 && err != nil {
		t.Errorf("%d records without a lock's file: %v", len(all), err)
	}
}

// The same while a container has several records, which come and go under one
// lock or under several.
func TestCrashAmongSeveralRecords(t *testing.T) {
	t.Parallel()
	k4 := Key{"net", "c1", "net2"}
	for n := 1; ; n++ {
		s := newStore(t)
		put(t, s, k1, "one")
		hooked, reached := at(t, s, n, errCrash)
		_ = under(hooked, "c1", func(l *Lock) error {
			return errors.Join(s.Put(l, Record[value]{Key: k2, State: Planned}), s.Delete(l, k1), s.Put(l, Record[value]{Key: k4, State: Planned}))
		})
		checkLock(t, s)
		_ = under(hooked, "c1", func(l *Lock) error { return s.Delete(l, k2) })
		checkLock(t, s)
		for _, k := range []Key{k1, k2, k4} {
			ok(t, del(s, k))
		}
		if left := tree(t, s.Dir); len(left) != 0 {
			t.Errorf("crash at call %d: left %q", n, left)
		}
		if !reached() {
			break
		}
	}
}

// Every system call of every verb that fails is reported with its errno and
// code 5, or does not matter, and leaves the old record or the new.
func TestFailureAnywhere(t *testing.T) {
	t.Parallel()
	for _, c := range changes() {
		for _, errno := range []unix.Errno{unix.ENOSPC, unix.EIO, unix.EROFS, unix.EACCES} {
			t.Run(c.name+"/"+errno.Error(), func(t *testing.T) {
				t.Parallel()
				for n := 1; ; n++ {
					s := prepare(t, c)
					failing, reached := at(t, s, n, errno)
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
					checkLock(t, s)
					for _, name := range tree(t, s.Dir) {
						if strings.HasPrefix(name, durable.TempPrefix) {
							t.Errorf("call %d: left %s", n, name)
						}
					}
					if !reached() {
						break
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
			hooked, reached := at(t, s, n, unix.EIO)
			_, err := hooked.Get(k1)
			if !reached() {
				break
			}
			if !errors.Is(err, unix.EIO) || errors.Is(err, ErrCorrupt) || code(err) != 5 {
				t.Errorf("call %d: %v", n, err)
			}
			if got := text(s, k1); present != (got == "planned one") {
				t.Errorf("call %d: %s", n, got)
			}
		}
	}
}

// What cannot be listed is reported, and the rest is listed.
func TestListFailures(t *testing.T) {
	t.Parallel()
	for _, at := range []string{"open .", "getdents .", "openat " + fileName(k1), "read " + fileName(k1)} {
		s := newStore(t)
		put(t, s, k1, "")
		put(t, s, k3, "")
		hook := durable.Hook(func(call, name string) error {
			if call+" "+name == at {
				return unix.EIO
			}
			return nil
		})
		s.hook = &hook
		var listed []Key
		var errs []error
		for r, err := range s.List(t.Context()) {
			if err != nil {
				errs = append(errs, err)
			} else {
				listed = append(listed, r.Key)
			}
		}
		if len(errs) != 1 || !errors.Is(errs[0], unix.EIO) || strings.Contains(at, "json") != slices.Equal(listed, []Key{k3}) {
			t.Errorf("EIO at %s: %v, %v", at, listed, errs)
		}
		if all, err := s.Container(t.Context(), "c1"); !errors.Is(err, unix.EIO) {
			t.Errorf("container, EIO at %s: %v, %v", at, all, err)
		}
	}
}

// A Put syncs the file and the directory, whatever was there and whether an
// earlier one failed; the other verbs sync nothing.
func TestSyncsAreTwo(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	var syncs []string
	failing := ""
	hook := durable.Hook(func(call, name string) error {
		if call != "fsync" {
			return nil
		}
		if durable.IsTemp(name) {
			name = "file"
		}
		syncs = append(syncs, name)
		if name == failing {
			return unix.EIO
		}
		return nil
	})
	s.hook = &hook
	r := Record[value]{Key: k1, State: Added}
	for _, step := range []struct {
		name, fail string
		do         func() error
		want       []string
	}{
		{"the directory's fails", ".", func() error { return update(s, r) }, []string{"file", "."}},
		{"after it failed", "", func() error { return update(s, r) }, []string{"file", "."}},
		{"the file's fails", "file", func() error { return update(s, r) }, []string{"file"}},
		{"again", "", func() error { return update(s, r) }, []string{"file", "."}},
		{"second of the container", "", func() error { return putRecord(s, k2, Planned, value{}) }, []string{"file", "."}},
		{"note", "", func() error { return note(s, r) }, nil},
		{"delete", "", func() error { return del(s, k1) }, nil},
		{"after a delete", "", func() error { return update(s, r) }, []string{"file", "."}},
	} {
		syncs, failing = nil, step.fail
		if err := step.do(); (err != nil) != (step.fail != "") {
			t.Errorf("%s: %v", step.name, err)
		}
		if !slices.Equal(syncs, step.want) {
			t.Errorf("%s: %q, want %q", step.name, syncs, step.want)
		}
	}
}

// Want of descriptors or memory passes: the runtime is told to try again.
func TestShortageIsTryAgain(t *testing.T) {
	t.Parallel()
	for errno, want := range map[unix.Errno]uint{unix.EMFILE: 11, unix.ENFILE: 11, unix.ENOMEM: 11, unix.EIO: 5, unix.ENOSPC: 5} {
		s, _ := at(t, newStore(t), 1, errno)
		if _, err := s.Get(k1); !errors.Is(err, errno) || code(err) != want {
			t.Errorf("%v has code %d, want %d", err, code(err), want)
		}
	}
}

// Without a free inode a recorded container can be locked and deleted; what
// cannot be done says why.
func TestDeleteWithoutAFreeInode(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	put(t, s, k1, "one")
	hook := durable.Hook(func(call, _ string) error {
		if call == "create" || call == "mkdirat" {
			return unix.ENOSPC
		}
		return nil
	})
	s.hook = &hook
	if err := putRecord(s, k2, Planned, value{}); !errors.Is(err, unix.ENOSPC) {
		t.Error(err)
	}
	if err := putRecord(s, k3, Planned, value{}); !errors.Is(err, unix.ENOSPC) || !strings.Contains(err.Error(), filepath.Join(s.Dir, "c2@lock")+"): create: ") {
		t.Errorf("a lock that cannot be made: %v", err)
	}
	ok(t, note(s, Record[value]{Key: k1, State: Deleting}))
	ok(t, del(s, k1))
}

// On a read-only file system the lock of a recorded container can be taken, for
// CHECK and for a DEL whose plugins can work.
func TestLockOnAReadOnlyFileSystem(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	put(t, s, k1, "one")
	hook := durable.Hook(func(call, _ string) error {
		if slices.Contains([]string{"create", "mkdirat", "write", "unlinkat", "renameat", "renameat2", "fchmod"}, call) {
			return unix.EROFS
		}
		return nil
	})
	s.hook = &hook
	if err := del(s, k1); !errors.Is(err, unix.EROFS) || text(s, k1) != "planned one" {
		t.Error(err)
	}
	ok(t, under(s, "c1", func(*Lock) error { return nil }))
}

// After a Put that fails at its end, nobody knows which record is there. The next Note
// under the same lock finds out.
func TestNoteAfterAFailedPut(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	broken := false
	hook := durable.Hook(func(call, name string) error {
		if broken && call == "fsync" && name == "." {
			return unix.EIO
		}
		return nil
	})
	s.hook = &hook
	ok(t, under(s, "c1", func(l *Lock) error {
		ok(t, s.Put(l, Record[value]{Key: k1, State: Planned, Value: value{"short"}}))
		broken = true
		if err := s.Put(l, Record[value]{Key: k1, State: Planned, Value: value{strings.Repeat("long", 100)}}); !errors.Is(err, unix.EIO) {
			t.Error(err)
		}
		return s.Note(l, Record[value]{Key: k1, State: Added, Value: value{"noted"}})
	}))
	holds(t, s, k1, "added noted")
	data, err := os.ReadFile(recordPath(s, k1))
	ok(t, err)
	if got := check(data[:bytes.LastIndexByte(data[:len(data)-1], '\n')]); got != "planned "+strings.Repeat("long", 100) {
		t.Errorf("before it: %.20s", got)
	}
}
