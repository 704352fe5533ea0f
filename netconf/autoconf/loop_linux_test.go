package autoconf

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/metacni/metacni/internal/nodetest"
)

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
		release(first)
		time.Sleep(time.Second)
		written(t, m, 1)
		if _, err := lock("", m.Lock, ""); !errors.Is(err, ErrLocked) {
			t.Errorf("it does not hold the lock: %v", err)
		}
	})
	f, err := lock("", m.Lock, "")
	nodetest.OK(t, err)
	release(f)
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
