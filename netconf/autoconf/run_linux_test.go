package autoconf

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fsnotify/fsnotify"
	"golang.org/x/sys/unix"

	"github.com/metacni/metacni/internal/flock"
	nodetest "github.com/metacni/metacni/internal/test/node"
)

// net returns a network called name.
func net(name string) string {
	return `{"cniVersion":"1.0.0","name":"` + name + `","plugins":[{"type":"bridge"}]}`
}

// A runner is a manager that runs.
type runner struct {
	*Manager

	done chan error // what Run comes to
	stop func()     // ends Run
}

// start has m run.
func start(t *testing.T, m *Manager) *runner {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	r := &runner{m, make(chan error, 1), cancel}
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

// until waits for a state.
func (r *runner) until(t *testing.T, what string, is func(State) bool) (s State) {
	t.Helper()
	nodetest.Until(t, "it is "+what, func() bool {
		s = r.State()
		return is(s)
	})
	return s
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
	files := []string{"10-x.conflist", net("a"), "20-y.conf", `{"cniVersion":"0.3.1","name":"y","type":"y"}`, "30-z.json", "{", "00-other.cilium_bak", net("c"), ".00-other.tmp-1", "half"}
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

// A fakeSource tells what a test tells it. Time is that of the test, too.
type fakeSource struct {
	t        *testing.T // of the time it is
	happened chan struct{}
	watched  atomic.Int32
	broken   atomic.Bool
}

func (s *fakeSource) Watch(watched) (lost bool, err error) {
	s.watched.Add(1)
	if s.broken.Load() {
		return false, errTest
	}
	return false, nil
}
func (s *fakeSource) Happened() <-chan struct{} { return s.happened }

// loop runs f beside a manager's loop.
func loop(t *testing.T, m *Manager, f func(src *fakeSource)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		src := &fakeSource{t: t, happened: make(chan struct{})}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- m.run(ctx, src) }()
		synctest.Wait()
		f(src)
		cancel()
		nodetest.OK(t, <-done)
	})
}

// written expects the manager to have published so often.
func written(t *testing.T, m *Manager, want int) {
	t.Helper()
	synctest.Wait()
	if got := m.State().Written; got != want {
		t.Fatalf("written %d times, want %d: %+v", got, want, m.State())
	}
}

// With Poll, Run looks every second and watches nothing: it runs in a bubble, in which time
// would stand still while a watch waits for the system.
func TestPollNeedsNoWatch(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := newManager(t, "10-x.conflist", net("a"))
		m.Poll = true
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- m.Run(ctx) }()
		written(t, m, 1)
		put(t, m.Dir, "10-x.conflist", net("b"))
		time.Sleep(pollInterval - time.Nanosecond)
		written(t, m, 1)
		time.Sleep(time.Nanosecond)
		written(t, m, 2)
		cancel()
		nodetest.OK(t, <-done)
	})
}

// Grace and the pauses of a fight pass by themselves.
func TestGraceAndPausesPass(t *testing.T) {
	t.Parallel()
	m := newManager(t, "10-x.conflist", net("a"), "20-y.conflist", net("b"))
	file := m.Output + ".conflist"
	loop(t, m, func(src *fakeSource) {
		t := src.t
		happen := func() {
			src.happened <- struct{}{}
			time.Sleep(100 * time.Millisecond)
			synctest.Wait()
		}
		nodetest.OK(t, os.Remove(filepath.Join(m.Dir, "10-x.conflist")))
		happen()
		time.Sleep(10*time.Second - time.Nanosecond)
		written(t, m, 1)
		nodetest.Is(t, m.State().Degraded, errGone)
		time.Sleep(time.Nanosecond)
		written(t, m, 2)
		nodetest.OK(t, os.Remove(file))
		happen()
		written(t, m, 3)
		nodetest.OK(t, os.Remove(file))
		happen()
		written(t, m, 3)
		if s := m.State(); !errors.Is(s.Degraded, errUndone) || s.Published != "" {
			t.Errorf("%+v", s)
		}
		time.Sleep(900 * time.Millisecond)
		written(t, m, 4)
		if s := m.State(); s.Restored != 2 || s.Degraded != nil {
			t.Errorf("%+v", s)
		}
	})
}

// Where nothing can be watched, it looks every second, and says so.
func TestCannotWatch(t *testing.T) {
	t.Parallel()
	m := newManager(t, "10-x.conflist", net("a"))
	loop(t, m, func(src *fakeSource) {
		t := src.t
		src.broken.Store(true)
		time.Sleep(30 * time.Second) // the next resync learns of it
		synctest.Wait()
		if s := m.State(); !errors.Is(s.Degraded, errTest) || s.Published == "" {
			t.Errorf("%+v", s)
		}
		put(t, m.Dir, "10-x.conflist", net("b"))
		time.Sleep(time.Second)
		written(t, m, 2)
		src.broken.Store(false)
		time.Sleep(time.Second)
		synctest.Wait()
		nodetest.OK(t, m.State().Degraded)
	})
}

// A second manager stands by, and takes over when the first has ended.
func TestTakesOver(t *testing.T) {
	t.Parallel()
	m := newManager(t, "10-x.conflist", net("a"))
	m.Lock = filepath.Join(t.TempDir(), "lock")
	first, err := lock("", m.Lock, "")
	nodetest.OK(t, err)
	loop(t, m, func(src *fakeSource) {
		t := src.t
		time.Sleep(time.Minute)
		written(t, m, 0)
		if s := m.State(); !errors.Is(s.Degraded, ErrLocked) || src.watched.Load() != 0 {
			t.Errorf("%+v", s)
		}
		flock.Release(first)
		time.Sleep(time.Second)
		written(t, m, 1)
		if _, err := lock("", m.Lock, ""); !errors.Is(err, ErrLocked) {
			t.Errorf("it does not hold the lock: %v", err)
		}
	})
	f, err := lock("", m.Lock, "")
	nodetest.OK(t, err)
	flock.Release(f)
}

// When the system has lost events, everything is looked at.
func TestQueueOverflow(t *testing.T) {
	t.Parallel()
	w := newWatcher()
	events, errs := make(chan fsnotify.Event), make(chan error)
	w.done.Go(func() { w.receive(events, errs) })
	for range 3 { // it never blocks, whoever does not listen
		errs <- fsnotify.ErrEventOverflow
	}
	events <- fsnotify.Event{Name: "/elsewhere/x", Op: fsnotify.Write}
	<-w.Happened()
	close(events)
	w.done.Wait()
	if len(w.happened) > 0 {
		t.Error("what does not matter is told")
	}
}

// What others do in the directories above, or next to a readiness file, does
// not wake anybody up.
func TestMatters(t *testing.T) {
	t.Parallel()
	up, err := filepath.EvalSymlinks(t.TempDir())
	nodetest.OK(t, err)
	nodetest.OK(t, errors.Join(os.Mkdir(filepath.Join(up, "net.d"), 0o700), os.Mkdir(filepath.Join(up, "run"), 0o700), os.Symlink("run", filepath.Join(up, "link"))))
	m := &Manager{Dir: up + "/net.d", Output: up + "/net.d/00-multinet", Ready: up + "/link/../link/ready"}
	w, missing := m.places()
	if missing {
		t.Error("missing")
	}
	for file, want := range map[string]bool{
		"net.d/x": true, "net.d": true, "run/ready": true, "run": true, "run/x": false, "link": false, "x": false, "net.d/sub/1.conf": false,
	} {
		nodetest.Equal(t, file, w.wants(filepath.Join(up, file)), want)
	}
}

// A look follows each event after a short while, and comes by itself without any: more often
// where something to watch is missing.
func TestWhenToLook(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		event   bool
		missing bool
		after   time.Duration
	}{
		"event":                  {event: true, after: defaultDebounce},
		"resync":                 {after: defaultResync},
		"a directory is missing": {missing: true, after: pollInterval},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := newManager(t, "10-x.conflist", net("a"))
			if tt.missing {
				m.Dir += "/none"
			}
			loop(t, m, func(src *fakeSource) {
				t := src.t
				before := m.State().Written
				nodetest.OK(t, os.MkdirAll(m.Dir, 0o700))
				put(t, m.Dir, "10-x.conflist", net("b"))
				if tt.event {
					src.happened <- struct{}{}
				}
				time.Sleep(tt.after - time.Nanosecond)
				written(t, m, before)
				time.Sleep(time.Nanosecond)
				written(t, m, before+1)
			})
		})
	}
}

// Each state is observed once, and is the manager's when it is.
func TestObserverSeesEachStateOnce(t *testing.T) {
	t.Parallel()
	m := &Manager{}
	var seen []string
	m.Observer = func(s State) {
		nodetest.Equal(t, "the state is another (-observed +is)", fmt.Sprint(m.State()), fmt.Sprint(s))
		seen = append(seen, fmt.Sprint(s.Skipped))
	}
	for _, s := range []State{{}, {Skipped: []error{errTest}}, {Skipped: []error{errTest}}, {Skipped: []error{errTest, fs.ErrExist}}, {}} {
		m.setState(s)
	}
	want := []string{fmt.Sprint([]error{errTest}), fmt.Sprint([]error{errTest, fs.ErrExist}), "[]"}
	nodetest.Equal(t, "got", seen, want)
}

// A directory is watched again when its watch has ended, or when its path leads
// to another directory.
func TestWatchIsMadeAgain(t *testing.T) {
	t.Parallel()
	for name, lose := range map[string]func(w *watcher, dir string) error{
		"ended by the system": func(w *watcher, dir string) error { return w.inner.Remove(dir) },
		"replaced with its parent": func(_ *watcher, dir string) error {
			parent := filepath.Dir(dir)
			if err := os.Rename(parent, parent+".old"); err != nil {
				return err
			}
			return os.MkdirAll(dir, 0o700)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := filepath.Join(t.TempDir(), "etc", "net.d")
			nodetest.OK(t, os.MkdirAll(dir, 0o700))
			w := newWatcher()
			defer w.Close()
			want := watched{dirs: map[string]bool{dir: true}}
			for range 2 {
				_, err := w.Watch(want)
				nodetest.OK(t, err)
			}
			nodetest.OK(t, lose(w, dir))
			_, err := w.Watch(want)
			nodetest.OK(t, err)
			for len(w.happened) > 0 {
				<-w.happened
			}
			put(t, dir, "10-x.conf", "")
			nodetest.Come(t, w.Happened(), "the event")
		})
	}
}
