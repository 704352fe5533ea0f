package autoconf

import (
	"cmp"
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/metacni/metacni/internal/nodetest"
)

// net returns a network called name.
func net(name string) string {
	return `{"cniVersion":"1.0.0","name":"` + name + `","plugins":[{"type":"bridge"}]}`
}

// A runner is a manager whose changes of state a test can wait for.
type runner struct {
	*Manager

	changed chan struct{} // has an element when the state has changed
	done    chan error    // what Run comes to
	stop    func()        // ends Run
}

// start has m run.
func start(t *testing.T, m *Manager) *runner {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	r := &runner{m, make(chan struct{}, 1), make(chan error, 1), cancel}
	m.Observer = func(State) {
		select {
		case r.changed <- struct{}{}:
		default: // one that has not been received yet
		}
	}
	go func() { r.done <- m.Run(ctx) }()
	return r
}

// running starts a manager that learns of changes by events alone, and ends with the test. The
// name of the network it publishes is that of the primary one.
func running(t *testing.T, m *Manager) *runner {
	t.Helper()
	m.Template = plugin(`{"type":"multinet"}`)
	m.Debounce, m.resync, m.Grace = time.Millisecond, cmp.Or(m.resync, time.Hour), time.Millisecond
	r := start(t, m)
	t.Cleanup(func() {
		r.stop()
		if err := <-r.done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	return r
}

// until waits for a state. The time is that of a test that has failed.
func (r *runner) until(t *testing.T, what string, is func(State) bool) State {
	t.Helper()
	limit := time.After(30 * time.Second)
	for {
		s := r.State()
		if is(s) {
			return s
		}
		select {
		case <-r.changed:
		case <-limit:
			t.Fatalf("never %s: %+v", what, s)
		}
	}
}

// publishes waits for the network of that name to be the primary one.
func (r *runner) publishes(t *testing.T, name string) {
	t.Helper()
	s := r.until(t, name, func(s State) bool { return s.Network == name && s.Published != "" && s.Degraded == nil })
	nodetest.Equal(t, "what is published", delegate(t, s.Published), name)
}

// where is a directory in a test.
type where struct {
	*testing.T

	dir string
}

// Every way in which a directory can change is noticed: by events alone, unless
// something to watch is missing or links lead elsewhere.
func TestEveryChangeIsNoticed(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name  string
		start func(w where) // has "a" be the primary network
		then  func(w where) // makes it "b"
	}{
		{"written in place", writeA, func(w where) { put(w.T, w.dir, "10-x.conflist", net("b")) }},
		{"in two halves", writeA, func(w where) {
			f, err := os.Create(filepath.Join(w.dir, "10-x.conflist"))
			nodetest.OK(w.T, err)
			_, err = f.WriteString(net("b")[:20])
			nodetest.OK(w.T, err)
			nodetest.OK(w.T, f.Sync())
			_, err = f.WriteString(net("b")[20:])
			nodetest.OK(w.T, err)
			nodetest.OK(w.T, f.Close())
		}},
		{"replaced", writeA, func(w where) {
			put(w.T, w.dir, "10-x.conflist.tmp-1", net("b"))
			nodetest.OK(w.T, os.Rename(filepath.Join(w.dir, "10-x.conflist.tmp-1"), filepath.Join(w.dir, "10-x.conflist")))
		}},
		{"removed, and another there", func(w where) { writeA(w); put(w.T, w.dir, "20-y.conflist", net("b")) }, func(w where) {
			nodetest.OK(w.T, os.Remove(filepath.Join(w.dir, "10-x.conflist")))
		}},
		{"a better one", writeA, func(w where) { put(w.T, w.dir, "05-x.conflist", net("b")) }},
		{"directory made again", writeA, func(w where) {
			for os.RemoveAll(w.dir) != nil { // our file may be restored meanwhile
			}
			nodetest.OK(w.T, os.Mkdir(w.dir, 0o700))
			put(w.T, w.dir, "10-x.conflist", net("b"))
		}},
		{"directory replaced", writeA, func(w where) {
			nodetest.OK(w.T, os.Mkdir(w.dir+".new", 0o700))
			put(w.T, w.dir+".new", "10-x.conflist", net("b"))
			nodetest.OK(w.T, os.Rename(w.dir, w.dir+".old"))
			nodetest.OK(w.T, os.Rename(w.dir+".new", w.dir))
		}},
		{"ConfigMap", configMap, func(w where) { swap(w, "..2", net("b")) }},
		{"target of a link", func(w where) {
			put(w.T, filepath.Dir(w.dir), "x", net("a"))
			nodetest.OK(w.T, os.Symlink("../x", filepath.Join(w.dir, "10-x.conflist")))
		}, func(w where) { put(w.T, filepath.Dir(w.dir), "x", net("b")) }},
		{"sub-directory", func(w where) {
			writeA(w)
			put(w.T, w.dir, "05-b.conflist", `{"cniVersion":"1.0.0","name":"b"}`)
			nodetest.OK(w.T, os.Mkdir(filepath.Join(w.dir, "b"), 0o700))
		}, func(w where) { put(w.T, filepath.Join(w.dir, "b"), "1.conf", `{"type":"bridge"}`) }},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			dir := filepath.Join(t.TempDir(), "net.d")
			nodetest.OK(t, os.Mkdir(dir, 0o700))
			w := where{t, dir}
			tt.start(w)
			m := &Manager{Dir: dir, Output: dir + "/00-multinet.conflist"}
			if slices.Contains([]string{"directory made again", "directory replaced", "target of a link", "sub-directory"}, tt.name) {
				m.resync = 10 * time.Millisecond
			}
			r := running(t, m)
			r.publishes(t, "a")
			tt.then(w)
			r.publishes(t, "b")
		})
	}
}

func writeA(w where) { put(w.T, w.dir, "10-x.conflist", net("a")) }

// configMap lays a directory out as the kubelet does.
func configMap(w where) {
	nodetest.OK(w.T, os.Mkdir(filepath.Join(w.dir, "..1"), 0o700))
	put(w.T, filepath.Join(w.dir, "..1"), "10-x.conflist", net("a"))
	nodetest.OK(w.T, os.Symlink("..1", filepath.Join(w.dir, "..data")))
	nodetest.OK(w.T, os.Symlink("..data/10-x.conflist", filepath.Join(w.dir, "10-x.conflist")))
}

func swap(w where, to, content string) {
	old, err := os.Readlink(filepath.Join(w.dir, "..data"))
	nodetest.OK(w.T, err)
	nodetest.OK(w.T, os.Mkdir(filepath.Join(w.dir, to), 0o700))
	put(w.T, filepath.Join(w.dir, to), "10-x.conflist", content)
	nodetest.OK(w.T, os.Symlink(to, filepath.Join(w.dir, "..data_tmp")))
	nodetest.OK(w.T, os.Rename(filepath.Join(w.dir, "..data_tmp"), filepath.Join(w.dir, "..data")))
	nodetest.OK(w.T, os.RemoveAll(filepath.Join(w.dir, old)))
}

// It waits for a directory, for a network and for the readiness file
// as long as it takes.
func TestRunWaitsForWhatIsMissing(t *testing.T) {
	t.Parallel()
	up := t.TempDir()
	dir, ready := filepath.Join(up, "etc", "cni", "net.d"), filepath.Join(up, "run", "flannel", "subnet.env")
	m := running(t, &Manager{Dir: dir, Output: filepath.Join(dir, "00-multinet"), Ready: ready, resync: 10 * time.Millisecond})
	m.until(t, "not ready", func(s State) bool { return errors.Is(s.Degraded, ErrNotReady) })
	nodetest.OK(t, os.MkdirAll(dir, 0o700))
	put(t, dir, "10-x.conflist", net("a"))
	nodetest.OK(t, os.MkdirAll(filepath.Dir(ready), 0o700))
	nodetest.Equal(t, "published before it was ready", len(list(t, dir)), 1)
	put(t, filepath.Dir(ready), "subnet.env", "")
	m.publishes(t, "a")
}

// No file of another is touched, whatever happens.
func TestForeignFilesAreNotTouched(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	files := []string{"10-x.conflist", net("a"), "20-y.conf", `{"cniVersion":"0.3.1","name":"y","type":"y"}`, "30-z.json", "{", "00-other.cilium_bak", net("c")}
	put(t, dir, files...)
	stamp := func() (s string) {
		for i := 0; i < len(files); i += 2 {
			var st unix.Stat_t
			nodetest.OK(t, unix.Stat(filepath.Join(dir, files[i]), &st))
			data, err := os.ReadFile(filepath.Join(dir, files[i]))
			nodetest.OK(t, err)
			s += string(data) + time.Unix(st.Mtim.Unix()).String() + time.Unix(st.Ctim.Unix()).String()
		}
		return s
	}
	before := stamp()
	m := running(t, &Manager{Dir: dir, Output: filepath.Join(dir, "00-multinet")})
	m.publishes(t, "a")
	put(t, dir, "05-b.conf", `{"cniVersion":"0.4.0","name":"b","type":"b"}`)
	m.publishes(t, "b")
	nodetest.OK(t, os.Remove(filepath.Join(dir, "05-b.conf")))
	m.publishes(t, "a")
	nodetest.Equal(t, "got", stamp(), before)
}

// Whatever others do to our file is undone.
func TestPublishedFileIsRestored(t *testing.T) {
	t.Parallel()
	for name, do := range map[string]func(file string) error{
		"removed":   os.Remove,
		"renamed":   func(file string) error { return os.Rename(file, file+".cilium_bak") },
		"truncated": func(file string) error { return os.Truncate(file, 0) },
		"changed":   func(file string) error { return os.WriteFile(file, []byte(net("c")), 0o600) },
		"opened":    func(file string) error { return os.Chmod(file, 0o644) },
		"linked": func(file string) error {
			if err := os.Symlink("10-x.conflist", file+".new"); err != nil {
				return err
			}
			return os.Rename(file+".new", file)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := running(t, newManager(t, "10-x.conflist", net("a")))
			m.publishes(t, "a")
			nodetest.OK(t, do(m.Output+".conflist"))
			m.until(t, "restored", func(s State) bool { return s.Restored == 1 && s.Degraded == nil })
			m.publishes(t, "a")
			if info, err := os.Lstat(m.Output + ".conflist"); err != nil || info.Mode() != 0o600 {
				t.Errorf("%v, %v", info, err)
			}
		})
	}
}

// The loss of the readiness file ends Run, even where it is made again at
// once, or was lost before Run looked for the first time. The process goes on,
// and the file stays.
func TestLossOfReadinessEndsRun(t *testing.T) {
	t.Parallel()
	for name, lose := range map[string]func(ready string) error{
		"removed": os.Remove,
		"renamed": func(ready string) error { return os.Rename(ready, ready+".old") },
		"directory removed": func(ready string) error {
			return os.RemoveAll(filepath.Dir(ready))
		},
		"removed and made": func(ready string) error {
			if err := os.Remove(ready); err != nil {
				return err
			}
			return os.WriteFile(ready, nil, 0o600)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ready := filepath.Join(t.TempDir(), "run", "..", "run", "ready") // not as an event spells it
			nodetest.OK(t, os.Mkdir(filepath.Dir(ready), 0o700))
			put(t, filepath.Dir(ready), "ready", "")
			m := newManager(t, "10-x.conflist", net("a"))
			m.Ready, m.Debounce, m.resync = ready, time.Millisecond, time.Hour
			r := start(t, m)
			defer r.stop()
			s := r.until(t, "published", func(s State) bool { return s.Published != "" })
			nodetest.OK(t, lose(m.Ready))
			nodetest.Is(t, <-r.done, ErrReadinessLost)
			nodetest.Is(t, m.State().Degraded, ErrReadinessLost)
			if delegate(t, s.Published) != "a" {
				t.Error("removed")
			}
			nodetest.OK(t, m.Uninstall())
		})
	}
}

// A readiness file that is replaced, or that is in a ConfigMap which is, is not
// lost.
func TestReplacedReadinessFileIsNotLost(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	w := where{t, dir}
	configMap(w)
	put(t, dir, "ready", "")
	for _, ready := range []string{"ready", "10-x.conflist"} {
		m := newManager(t, "10-x.conflist", net("a"))
		m.Ready = filepath.Join(dir, ready)
		r := running(t, m)
		r.publishes(t, "a")
		put(t, dir, "ready.new", "")
		nodetest.OK(t, os.Rename(filepath.Join(dir, "ready.new"), filepath.Join(dir, "ready")))
		swap(w, "..for-"+ready, net("a"))
		put(t, m.Dir, "05-x.conflist", net("b"))
		r.publishes(t, "b")
	}
}

// The file stays when Run ends, and one call is at work at a time.
func TestPublishedFileStaysWhenRunEnds(t *testing.T) {
	t.Parallel()
	m := start(t, newManager(t, "10-x.conflist", net("a")))
	m.until(t, "published", func(s State) bool { return s.Published != "" })
	for verb, do := range map[string]func() error{"publish": m.Publish, "run": func() error { return m.Run(t.Context()) }, "uninstall": m.Uninstall} {
		if err := do(); !errors.Is(err, ErrLocked) {
			t.Errorf("%s beside Run: %v", verb, err)
		}
	}
	m.stop()
	nodetest.OK(t, <-m.done)
	nodetest.Equal(t, "got", list(t, m.Dir), []string{"00-multinet.conflist", "10-x.conflist"})
	if s := m.State(); !strings.HasSuffix(s.Published, "/00-multinet.conflist") {
		t.Errorf("%+v", s)
	}
}
