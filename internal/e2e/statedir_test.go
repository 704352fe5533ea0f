package e2e

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// state lists the files in the state directory.
func (w *world) state() []string {
	w.t.Helper()
	return w.list(w.file("state"))
}

// isRecord reports whether name, below a state directory, is p's record:
// CONTAINER@NETWORK@IFNAME.json.
func (p *pod) isRecord(name string) bool {
	return strings.HasPrefix(name, p.id+"@") && strings.HasSuffix(name, "@"+p.ifname+".json")
}

// replace puts another file in the place of p's record. restore removes that
// file and puts the record back.
func (w *world) replace(p *pod, put func(path string) error) (restore func()) {
	w.t.Helper()
	path := w.recordFile(p, "state")
	data, err := os.ReadFile(path)
	if err == nil {
		err = os.Remove(path)
	}
	if err == nil {
		err = put(path)
	}
	if err != nil {
		w.t.Fatal(err)
	}
	return func() {
		w.t.Helper()
		for _, name := range w.state() {
			if strings.HasPrefix(name, p.id+"@") {
				if err := os.RemoveAll(w.file("state", name)); err != nil {
					w.t.Fatal(err)
				}
			}
		}
		err := os.MkdirAll(filepath.Dir(path), 0o700)
		if err == nil {
			err = os.WriteFile(path, data, 0o600)
		}
		if err != nil {
			w.t.Fatal(err)
		}
	}
}

// oddities returns, by kind, functions that create an unexpected file at a
// path.
func (w *world) oddities() map[string]func(path string) error {
	victim := w.file("victim")
	if err := os.WriteFile(victim, []byte("precious"), 0o600); err != nil {
		w.t.Fatal(err)
	}
	return map[string]func(string) error{
		"empty":         func(path string) error { return os.WriteFile(path, nil, 0o600) },
		"FIFO":          func(path string) error { return unix.Mkfifo(path, 0o600) },
		"socket":        func(path string) error { return unix.Mknod(path, unix.S_IFSOCK|0o600, 0) },
		"directory":     func(path string) error { return os.Mkdir(path, 0o700) },
		"full":          func(path string) error { return os.MkdirAll(filepath.Join(path, "inside"), 0o700) },
		"link":          func(path string) error { return os.Symlink(victim, path) },
		"dangling link": func(path string) error { return os.Symlink(w.file("nothing"), path) },
		"link to FIFO":  func(path string) error { return os.Symlink(w.file("fake", "ready"), path) },
		"hard link":     func(path string) error { return os.Link(victim, path) },
	}
}

// unharmed fails the test if the target of the links has changed, or if the
// target of the dangling link exists.
func (w *world) unharmed() {
	w.t.Helper()
	if text, err := os.ReadFile(w.file("victim")); err != nil || string(text) != "precious" {
		w.t.Errorf("the target of a link: %q, %v", text, err)
	}
	if _, err := os.Lstat(w.file("nothing")); err == nil {
		w.t.Error("the target of the dangling link was created")
	}
}

// kinds are the keys of oddities.
var kinds = []string{"empty", "FIFO", "socket", "directory", "full", "link", "dangling link", "link to FIFO", "hard link"}

// TestOtherFilesInPlaceOfARecord: some other file is in the place of a record.
// The container's commands fail with code 5 and run nothing, GC and the
// operator's commands neither hang nor panic, and other containers are not
// affected.
func TestOtherFilesInPlaceOfARecord(t *testing.T) {
	for _, kind := range kinds {
		t.Run(kind, func(t *testing.T) {
			w := newWorld(t)
			conf := w.multinet("1.1.0", w.fake("a"), w.fake("b"))
			p, other := w.pod(conf), w.pod(conf)
			w.ok("ADD", p)
			w.ok("ADD", other)
			w.forget()
			restore := w.replace(p, w.oddities()[kind])
			for range 2 {
				for _, command := range []string{"CHECK", "DEL", "ADD"} {
					w.fails(5, command, p, nil)
				}
				w.fails(5, "GC", p, nil, valid(other))
			}
			for _, c := range w.calls() {
				if c.Container == p.id {
					t.Errorf("%s of %s although the record cannot be read", c.Command, c.ID)
				}
			}
			for _, words := range [][]string{{"list"}, {"damaged"}, {"show", p.id}, {"gc", "--dry-run"}} {
				w.operate(words...)
			}
			if r := w.operate("show", other.id); !strings.Contains(r.stdout, other.id) {
				t.Errorf("show %s: %+v", other.id, r)
			}
			w.ok("CHECK", other)
			w.ok("DEL", other)
			w.ok("ADD", other)
			w.operate("forget", p.id, "--yes")
			w.unharmed()

			restore()
			w.ok("CHECK", p)
			w.ok("DEL", p)
			w.ok("DEL", other)
			w.unharmed()
			w.nothingLeft()
			w.figures("instead of a record: "+kind, 9)
		})
	}
}

// TestOtherFilesInPlaceOfALock: some other file is in the place of a
// container's lock. No command hangs or follows a link, and a DEL that succeeds
// has detached the container.
func TestOtherFilesInPlaceOfALock(t *testing.T) {
	for _, kind := range kinds {
		t.Run(kind, func(t *testing.T) {
			w := newWorld(t)
			conf := w.multinet("1.1.0", w.fake("a"))
			p, other := w.pod(conf), w.pod(conf)
			w.ok("ADD", other)
			put, lock := w.oddities()[kind], w.file("state", p.id+"@lock")
			for _, command := range []string{"ADD", "CHECK", "DEL", "GC", "forget"} {
				w.ok("ADD", p)
				_ = os.RemoveAll(lock)
				if command == "ADD" {
					w.ok("DEL", p)
					_ = os.RemoveAll(lock)
				}
				if err := put(lock); err != nil {
					t.Fatal(err)
				}
				if command == "forget" {
					w.operate("forget", p.id, "--yes")
				} else if a := w.call(command, p, valid(other)); a.err != nil && a.err.Code != 5 {
					t.Errorf("%s: %s", command, a.stdout)
				} else if attached := len(w.leaked(p)); a.err == nil && (command == "ADD" || command == "CHECK") != (attached == 1) {
					t.Errorf("%s succeeded with %d attached", command, attached)
				} else if command == "ADD" && a.err != nil && attached > 0 {
					t.Error("ADD failed and left something attached")
				}
				w.unharmed()
				_ = os.RemoveAll(lock)
				if command == "forget" && !w.recorded(p, "state") {
					_ = os.Remove(w.file("fake", "live", "a@"+p.id+"@eth0"))
				}
				w.ok("DEL", p)
				if t.Failed() {
					t.Fatal(command)
				}
			}
			w.ok("CHECK", other)
			w.ok("DEL", other)
			w.nothingLeft()
			w.figures("instead of a lock: "+kind, 5)
		})
	}
}

// TestForeignFilesInTheStateDirectoryStay: files of other programs in the state
// directory are ignored and not removed.
func TestForeignFilesInTheStateDirectoryStay(t *testing.T) {
	w := newWorld(t)
	conf := w.multinet("1.1.0", w.fake("a"))
	p, stale, forgotten := w.pod(conf), w.pod(conf), w.pod(conf)
	w.ok("ADD", stale)
	w.ok("ADD", forgotten)
	var foreign []string
	for kind, put := range w.oddities() {
		for _, name := range []string{".hidden ", "lost+found ", "NOTES.txt "} {
			name += kind
			foreign = append(foreign, name)
			if err := put(w.file("state", name)); err != nil {
				t.Fatal(err)
			}
		}
	}
	foreign = append(foreign, ".hidden full/inside", "lost+found full/inside", "NOTES.txt full/inside")
	slices.Sort(foreign)
	w.ok("ADD", p)
	w.ok("CHECK", p)
	for _, words := range [][]string{{"list"}, {"damaged"}, {"show", p.id}, {"gc", "--dry-run"}, {"forget", forgotten.id, "--yes"}} {
		if r := w.operate(words...); r.code != 0 {
			t.Errorf("%v: %+v", words, r)
		}
	}
	w.ok("GC", p, valid(p, forgotten))
	same(t, "attached", 2, len(w.live()))
	w.ok("DEL", p)
	got := w.state()
	slices.Sort(got)
	same(t, "left in the state directory", foreign, got)
	w.unharmed()
	w.figures("foreign files in the state directory", 9)
}

// TestOtherFilesInPlaceOfTheStateDirectory: some other file is in the place of
// the state directory. Nothing runs, and the answer is code 5.
func TestOtherFilesInPlaceOfTheStateDirectory(t *testing.T) {
	for _, kind := range []string{"empty", "FIFO", "socket", "link", "dangling link", "link to FIFO", "hard link"} {
		t.Run(kind, func(t *testing.T) {
			w := newWorld(t)
			p := w.pod(w.multinet("1.1.0", w.fake("a")))
			if err := w.oddities()[kind](w.file("state")); err != nil {
				t.Fatal(err)
			}
			for _, command := range []string{"ADD", "CHECK", "DEL"} {
				if kind == "dangling link" && command == "DEL" {
					continue // as without a directory
				}
				w.fails(5, command, p, nil)
			}
			if kind != "dangling link" {
				w.fails(5, "GC", p, nil, valid())
			}
			for _, words := range [][]string{{"list"}, {"damaged"}, {"show", p.id}, {"gc", "--dry-run"}, {"forget", p.id, "--yes"}} {
				w.operate(words...)
			}
			w.trace()
			w.unharmed()
			w.figures("instead of the state directory: "+kind, 9)
		})
	}
}
