package scratch

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/metacni/metacni/internal/durable"
	"github.com/metacni/metacni/internal/records"
	nodetest "github.com/metacni/metacni/internal/test/node"
)

func recordPath(s Store[value], k Key) string {
	return filepath.Join(s.Dir, fileName(k))
}

// history is a record's file after Put and two Notes, and what each line says.
func history(t *testing.T, s Store[value], k Key) (data []byte, said []string) {
	t.Helper()
	put(t, s, k, "one")
	nodetest.OK(t, note(s, Record[value]{Key: k, State: Added, Value: value{"two"}}))
	nodetest.OK(t, note(s, Record[value]{Key: k, State: Deleting, Value: value{"three"}}))
	data, err := os.ReadFile(recordPath(s, k))
	nodetest.OK(t, err)
	return data, []string{"planned one", "added two", "deleting three"}
}

// Wherever a file is cut off, it says what a line of it said, or is corrupt: no
// line is ever read in part.
func TestEveryTruncation(t *testing.T) {
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
		nodetest.OK(t, os.WriteFile(recordPath(s, k1), data[:n], 0o600))
		if got := text(s, k1); got != now {
			t.Fatalf("file of %d bytes: %q, want %q", n, got, now)
		}
		nodetest.OK(t, forget(s, k1))
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
func TestEveryByteFlip(t *testing.T) {
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

// A damaged record stays where it is, is corrupt for every verb, harms no other,
// and is named until it is forgotten.
func TestDamagedUntilForgotten(t *testing.T) {
	t.Parallel()
	for _, find := range []string{"get", "list", "container"} {
		for _, content := range []string{"", "null", "[]", "{}", "\x00\x00\x00", strings.Repeat("\n", 99), "0123456789abcdef {}"} {
			s := newStore(t)
			put(t, s, k1, "one")
			put(t, s, k2, "two")
			nodetest.OK(t, os.WriteFile(recordPath(s, k1), []byte(content), 0o600))
			var err error
			switch find {
			case "get":
				_, err = s.Get(k1)
			case "list":
				for _, lerr := range s.List(t.Context()) {
					err = errors.Join(err, lerr)
				}
			case "container":
				var all []Record[value]
				if all, err = s.Container(t.Context(), "c1"); len(all) != 1 || all[0].Key != k2 {
					t.Errorf("container: %v", all)
				}
			}
			var e *Error
			if !errors.Is(err, ErrCorrupt) || code(err) != 5 || !errors.As(err, &e) || e.Key != k1 || e.Path != recordPath(s, k1) {
				t.Errorf("%s of %q: %v", find, content, err)
			}
			for range 2 {
				holds(t, s, k1, "corrupt")
			}
			l := lock(t, s)
			r := Record[value]{Key: k1, State: Added}
			for verb, err := range map[string]error{
				"put": s.Put(l, r), "note": s.Note(l, r), "delete": s.Delete(l, k1),
			} {
				if !errors.Is(err, ErrCorrupt) || code(err) != 5 {
					t.Errorf("%s: %v", verb, err)
				}
			}
			var listed []string
			for r, err := range s.List(t.Context()) {
				listed = append(listed, fmt.Sprint(r.Key, errors.Is(err, ErrCorrupt), err == nil))
			}
			equal(t, "listed", listed, []string{fmt.Sprint(k1, true, false), fmt.Sprint(k2, false, true)})
			keys, err := damaged(t.Context(), s)
			equal(t, "damaged", keys, []Key{k1})
			nodetest.OK(t, err)
			kept, err := os.ReadFile(recordPath(s, k1))
			if string(kept) != content || err != nil {
				t.Errorf("kept %q, %v", kept, err)
			}
			nodetest.OK(t, s.Forget(l, k1))
			nodetest.OK(t, s.Forget(l, k1))
			holds(t, s, k1, "none")
			nodetest.OK(t, s.Delete(l, k2))
			nodetest.OK(t, l.Unlock())
			nothing(t, s)
		}
	}
}

// Long names are known by their hash, which Forget accepts.
func TestDamagedWithLongNames(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	k := Key{strings.Repeat("n", 191), strings.Repeat("c", 5000), "eth0"}
	put(t, s, k, "one")
	nodetest.OK(t, os.Truncate(recordPath(s, k), 50))
	holds(t, s, k, "corrupt")
	keys, err := damaged(t.Context(), s)
	nodetest.OK(t, err)
	if diff := cmp.Diff([]Key{{records.Part(k.Network), records.Part(k.ContainerID), "eth0"}}, keys); diff != "" {
		t.Fatal(diff)
	}
	nodetest.OK(t, forget(s, keys[0]))
	nothing(t, s)
}

// What has a record's name without being a file is damage like any other, and
// is not followed.
func TestNoLinkIsFollowed(t *testing.T) {
	t.Parallel()
	s, out := newStore(t), newStore(t).Dir
	secret := filepath.Join(out, "secret")
	nodetest.OK(t, os.WriteFile(secret, []byte("secret"), 0o600))
	put(t, s, k3, "another container's")
	plant := map[string]func(path string) error{
		"eth0": func(p string) error { return os.Symlink(secret, p) },
		"eth1": func(p string) error { return os.Symlink(recordPath(s, k3), p) },
		"eth2": func(p string) error { return os.Symlink(fileName(k3), p) },
		"eth3": func(p string) error { return os.Mkdir(p, 0o700) },
		"eth4": func(p string) error { return unix.Mkfifo(p, 0o600) },
		"eth5": func(p string) error { return os.Truncate(p, maxFile+1) },
		"eth6": func(p string) error { return os.Symlink("nowhere", p) },
	}
	for ifName, f := range plant {
		k := Key{"net", "c1", ifName}
		put(t, s, k, "")
		if ifName != "eth5" {
			nodetest.OK(t, os.Remove(recordPath(s, k)))
		}
		nodetest.OK(t, f(recordPath(s, k)))
		r := Record[value]{Key: k, State: Added}
		for verb, err := range map[string]error{"put": update(s, r), "note": note(s, r), "delete": del(s, k)} {
			if !errors.Is(err, ErrCorrupt) {
				t.Errorf("%s, %s: %v", ifName, verb, err)
			}
		}
		holds(t, s, k, "corrupt")
		nodetest.OK(t, forget(s, k))
		put(t, s, k, "")
		nodetest.OK(t, del(s, k))
	}
	// A record's file with a second name is replaced, not written through.
	put(t, s, k1, "")
	twin := filepath.Join(out, "twin")
	nodetest.OK(t, os.Link(recordPath(s, k1), twin))
	before, err := os.ReadFile(twin)
	nodetest.OK(t, err)
	nodetest.OK(t, note(s, Record[value]{Key: k1, State: Added}))
	if after, err := os.ReadFile(twin); string(after) != string(before) || err != nil || text(s, k1) != "added " {
		t.Errorf("twin: %q, %v; record: %s", after, err, text(s, k1))
	}
	if data, err := os.ReadFile(secret); string(data) != "secret" || err != nil {
		t.Errorf("secret: %q, %v", data, err)
	}
	holds(t, s, k3, "planned another container's")
}

// A lock that is something else than a file is an error that names it, for
// whoever wants to write; it is not followed, and nobody hangs.
func TestLockThatIsNoFile(t *testing.T) {
	t.Parallel()
	s, out := newStore(t), t.TempDir()
	put(t, s, k3, "another container's")
	for name, f := range map[string]func(path string) error{
		"out":    func(p string) error { return os.Symlink(filepath.Join(out, "lock"), p) },
		"inside": func(p string) error { return os.Symlink("c2@lock", p) },
		"fifo":   func(p string) error { return unix.Mkfifo(p, 0o600) },
		"dir":    func(p string) error { return os.Mkdir(p, 0o700) },
		"socket": func(p string) error { return unix.Mknod(p, unix.S_IFSOCK|0o600, 0) },
	} {
		path := filepath.Join(s.Dir, name+"@lock")
		nodetest.OK(t, f(path))
		_, lerr := s.Lock(t.Context(), name)
		if !errors.Is(lerr, durable.ErrNotRegular) || code(lerr) != 5 || !strings.Contains(lerr.Error(), path) {
			t.Errorf("%s: %v", name, lerr)
		}
	}
	// Other programs, such as flannel and Multus, keep files named like containers.
	for name, f := range map[string]func(path string) error{
		"flink":   func(p string) error { return os.Symlink(out, p) },
		"flannel": func(p string) error { return os.WriteFile(p, []byte("{}"), 0o600) },
		"ffifo":   func(p string) error { return unix.Mkfifo(p, 0o600) },
	} {
		nodetest.OK(t, f(filepath.Join(s.Dir, name)))
		k := Key{"other", name, "eth0"}
		put(t, s, k, "x")
		holds(t, s, k, "planned x")
		if all, err := s.Container(t.Context(), name); len(all) != 1 || err != nil {
			t.Errorf("%s: %v, %v", name, all, err)
		}
		nodetest.OK(t, del(s, k))
		if _, err := os.Lstat(filepath.Join(s.Dir, name)); err != nil {
			t.Error(err)
		}
	}
	n := 0
	for r, err := range s.List(t.Context()) {
		nodetest.OK(t, err)
		if n++; r.Key != k3 {
			t.Error(r.Key)
		}
	}
	if keys, err := damaged(t.Context(), s); n != 1 || len(keys) != 0 || err != nil {
		t.Error(n, keys, err)
	}
	equal(t, "written outside", tree(t, out), nil)
}

// A record of another version is left alone by every verb, and named by those
// that read all; the rest of the store goes on.
func TestUnknownVersionIsLeftAlone(t *testing.T) {
	t.Parallel()
	for _, version := range []string{"0", "1", "3", "99"} {
		s := newStore(t)
		put(t, s, k2, "two")
		content := line(`{"version":` + version + `,"anything":[]}`)
		path := recordPath(s, k1)
		nodetest.OK(t, os.WriteFile(path, []byte(content), 0o600))
		listed := 0
		for r, err := range s.List(t.Context()) {
			if r.Key == k1 && errors.Is(err, ErrVersion) && !errors.Is(err, ErrCorrupt) {
				listed++
			}
		}
		_, gerr := s.Get(k1)
		_, cerr := s.Container(t.Context(), "c1")
		if keys, err := damaged(t.Context(), s); len(keys) != 0 || !errors.Is(err, ErrVersion) || listed != 1 {
			t.Errorf("%v, %v, listed %d times", keys, err, listed)
		}
		l := lock(t, s)
		r := Record[value]{Key: k1, State: Added}
		for verb, err := range map[string]error{
			"get": gerr, "container": cerr,
			"put": s.Put(l, r), "note": s.Note(l, r), "delete": s.Delete(l, k1), "forget": s.Forget(l, k1),
		} {
			if !errors.Is(err, ErrVersion) || errors.Is(err, ErrCorrupt) || code(err) != 5 || !strings.Contains(err.Error(), "version "+version+",") {
				t.Errorf("version %s, %s: %v", version, verb, err)
			}
		}
		nodetest.OK(t, l.Unlock())
		if data, err := os.ReadFile(recordPath(s, k1)); string(data) != content || err != nil {
			t.Errorf("it says %q now, %v", data, err)
		}
		holds(t, s, k2, "planned two")
	}
}

// notes are a value to which each note adds one.
type notes struct {
	All   []json.RawMessage
	noted json.RawMessage
}

func (n *notes) Noted() any {
	if n.noted == nil {
		return nil
	}
	return n.noted
}

func (n *notes) Make(text records.Change) error {
	if string(text) == `"refused"` {
		return errors.New("refused")
	}
	n.All = append(n.All, json.RawMessage(text))
	return nil
}

// Changes are made in the order in which they were noted. One that is refused or damaged
// is left out, with its state.
func TestNotedChangesCountInOrder(t *testing.T) {
	t.Parallel()
	s := Store[notes]{Dir: t.TempDir()}
	r := Record[notes]{Key: k1, State: Planned}
	noted := func(state State, text string) {
		t.Helper()
		r.State, r.Value.noted = state, json.RawMessage(text)
		nodetest.OK(t, note(s, r))
	}
	nodetest.OK(t, update(s, r))
	noted(Added, `"one"`)
	noted(Partial, `"two"`)
	noted(Deleting, `"refused"`)
	path := filepath.Join(s.Dir, fileName(k1))
	want := func(state State, all ...string) {
		t.Helper()
		got, err := s.Get(k1)
		nodetest.OK(t, err)
		texts := []string{}
		for _, text := range got.Value.All {
			texts = append(texts, string(text))
		}
		if diff := cmp.Diff(all, texts); diff != "" || got.State != state {
			t.Errorf("%s (-want +got):\n%s", got.State, diff)
		}
	}
	want(Partial, `"one"`, `"two"`)
	data, err := os.ReadFile(path)
	nodetest.OK(t, err)
	nodetest.OK(t, os.WriteFile(path, bytes.Replace(data, []byte(`"one"`), []byte(`"0ne"`), 1), 0o600))
	want(Partial, `"two"`)
	// A file with a second name is replaced by the whole record.
	nodetest.OK(t, os.Link(path, path+".copy"))
	r.Value.All = []json.RawMessage{json.RawMessage(`"all"`)}
	noted(Added, `"three"`)
	want(Added, `"all"`)
}

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
					nodetest.OK(t, err)
					_, err = f.WriteString("0123456789abcdef {\"ver")
					nodetest.OK(t, errors.Join(err, f.Close()))
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
		nodetest.OK(t, os.Truncate(recordPath(s, k1), 9))
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
				holds(t, s, k3, "planned bystander")
				checkLock(t, s)
				if got == "corrupt" {
					nodetest.OK(t, forget(s, k1))
				}
				nodetest.OK(t, del(s, k1))
				nodetest.OK(t, del(s, k3))
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
	nodetest.OK(t, err)
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
			nodetest.OK(t, del(s, k))
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
	nodetest.Is(t, putRecord(s, k2, Planned, value{}), unix.ENOSPC)
	if err := putRecord(s, k3, Planned, value{}); !errors.Is(err, unix.ENOSPC) || !strings.Contains(err.Error(), filepath.Join(s.Dir, "c2@lock")+"): create: ") {
		t.Errorf("a lock that cannot be made: %v", err)
	}
	nodetest.OK(t, note(s, Record[value]{Key: k1, State: Deleting}))
	nodetest.OK(t, del(s, k1))
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
	nodetest.OK(t, under(s, "c1", func(*Lock) error { return nil }))
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
	nodetest.OK(t, under(s, "c1", func(l *Lock) error {
		nodetest.OK(t, s.Put(l, Record[value]{Key: k1, State: Planned, Value: value{"short"}}))
		broken = true
		nodetest.Is(t, s.Put(l, Record[value]{Key: k1, State: Planned, Value: value{strings.Repeat("long", 100)}}), unix.EIO)
		return s.Note(l, Record[value]{Key: k1, State: Added, Value: value{"noted"}})
	}))
	holds(t, s, k1, "added noted")
	data, err := os.ReadFile(recordPath(s, k1))
	nodetest.OK(t, err)
	if got := check(data[:bytes.LastIndexByte(data[:len(data)-1], '\n')]); got != "planned "+strings.Repeat("long", 100) {
		t.Errorf("before it: %.20s", got)
	}
}

// What a later release has stored in a line, in a note too, is there after this one has written
// the record again, whether whole or as a note.
func TestUnknownKeysOfALineAreKept(t *testing.T) {
	t.Parallel()
	s := Store[notes]{Dir: t.TempDir()}
	r := Record[notes]{Key: k1, State: Planned}
	nodetest.OK(t, update(s, r))
	path := filepath.Join(s.Dir, fileName(k1))
	last := func() string {
		t.Helper()
		data, err := os.ReadFile(path)
		nodetest.OK(t, err)
		lines := strings.Split(strings.TrimSpace(string(data)), "\n")
		return lines[len(lines)-1][prefix:]
	}
	whole := last()
	later := strings.Replace(whole, `"state":`, `"later":{"a":[ 1e400]},"other":"<",  "state":`, 1)
	noted := strings.Replace(whole[:strings.Index(whole, `"value"`)], `"state":"planned"`, `"state":"added","other":"noted"`, 1) + `"change":"one","more":null}`
	refused := strings.Replace(noted, `"one","more":null`, `"refused","more":1`, 1)
	nodetest.OK(t, os.WriteFile(path, []byte(line(later)+line(noted)+line(refused)), 0o600))

	r, err := s.Get(k1)
	nodetest.OK(t, err)
	r.State, r.Value.noted = Deleting, json.RawMessage(`"two"`)
	nodetest.OK(t, note(s, r))
	r, err = s.Get(k1)
	nodetest.OK(t, err)
	equal(t, "changes", len(r.Value.All), 2)
	nodetest.OK(t, update(s, r))
	if got, want := last(), `,"later":{"a":[ 1e400]},"other":"noted","more":null}`; !strings.HasSuffix(got, want) {
		t.Errorf("%s, want at the end %s", got, want)
	}
	r, err = s.Get(k1)
	nodetest.OK(t, err)
	r.Value.noted = nil
	nodetest.OK(t, note(s, r)) // all of it may have changed
	if got := last(); !strings.Contains(got, `"other":"noted"`) {
		t.Error(got)
	}
	nodetest.OK(t, del(s, k1))
}
