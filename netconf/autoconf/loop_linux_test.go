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
	"github.com/google/go-cmp/cmp"
)

// A fakeSource tells what a test tells it. Time is that of the test, too.
type fakeSource struct {
	t        *testing.T // of the time it is
	happened chan struct{}
	watched  atomic.Int32
	broken   atomic.Bool
}

func (s *fakeSource) Watch(watched, string) (bool, error) {
	s.watched.Add(1)
	if s.broken.Load() {
		return false, errTest
	}
	return false, nil
}
func (s *fakeSource) Happened() <-chan struct{} { return s.happened }
func (s *fakeSource) Lost() bool                { return false }
func (s *fakeSource) Close()                    {}

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
		if err := <-done; err != nil {
			t.Error(err)
		}
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

// Events are taken together; what goes on without end is not waited for.
func TestDebounce(t *testing.T) {
	t.Parallel()
	m := newManager(t, "10-x.conflist", net("a"))
	loop(t, m, func(src *fakeSource) {
		t := src.t
		written(t, m, 1)
		change := func(i int) { put(t, m.Dir, "10-x.conflist", net("a"+string(rune('a'+i)))) }
		change(0)
		for range 3 {
			src.happened <- struct{}{}
			time.Sleep(99 * time.Millisecond)
			written(t, m, 1)
		}
		time.Sleep(time.Millisecond)
		written(t, m, 2)
		for i := range 20 {
			change(i)
			src.happened <- struct{}{}
			time.Sleep(50*time.Millisecond - time.Nanosecond)
		}
		written(t, m, 2)
		time.Sleep(20 * time.Nanosecond)
		written(t, m, 3)
	})
}

// Without any event, the resync finds what changed.
func TestResync(t *testing.T) {
	t.Parallel()
	m := newManager(t, "10-x.conflist", net("a"))
	loop(t, m, func(src *fakeSource) {
		t := src.t
		put(t, m.Dir, "10-x.conflist", net("b"))
		time.Sleep(30*time.Second - time.Nanosecond)
		written(t, m, 1)
		time.Sleep(time.Nanosecond)
		written(t, m, 2)
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
		ok(t, os.Remove(filepath.Join(m.Dir, "10-x.conflist")))
		happen()
		time.Sleep(10*time.Second - time.Nanosecond)
		written(t, m, 1)
		if !errors.Is(m.State().Degraded, errGone) {
			t.Errorf("%+v", m.State())
		}
		time.Sleep(time.Nanosecond)
		written(t, m, 2)
		ok(t, os.Remove(file))
		happen()
		written(t, m, 3)
		ok(t, os.Remove(file))
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
		if s := m.State(); s.Degraded != nil {
			t.Errorf("%+v", s)
		}
	})
}

// A second manager stands by, and takes over when the first has ended.
func TestTakesOver(t *testing.T) {
	t.Parallel()
	m := newManager(t, "10-x.conflist", net("a"))
	m.Lock = filepath.Join(t.TempDir(), "lock")
	first, err := lock(m.Lock)
	ok(t, err)
	loop(t, m, func(src *fakeSource) {
		t := src.t
		time.Sleep(time.Hour)
		written(t, m, 0)
		if s := m.State(); !errors.Is(s.Degraded, ErrLocked) || src.watched.Load() != 0 {
			t.Errorf("%+v", s)
		}
		release(first)
		time.Sleep(time.Second)
		written(t, m, 1)
		if f, err := lock(m.Lock); f != nil || err != nil {
			t.Errorf("it does not hold the lock: %v", err)
		}
		// A lock whose file was removed is taken anew.
		ok(t, os.Remove(m.Lock))
		time.Sleep(30 * time.Second)
		synctest.Wait()
		if f, err := lock(m.Lock); f != nil || err != nil {
			t.Errorf("it does not hold the new lock: %v", err)
		}
	})
	f, err := lock(m.Lock)
	if f == nil || err != nil {
		t.Fatalf("not released: %v", err)
	}
	release(f)
}

// When the system has lost events, everything is looked at.
func TestQueueOverflow(t *testing.T) {
	t.Parallel()
	w := newWatcher()
	inner := &fsnotify.Watcher{Events: make(chan fsnotify.Event), Errors: make(chan error)}
	w.done.Go(func() { w.receive(inner) })
	for range 3 { // it never blocks, whoever does not listen
		inner.Errors <- fsnotify.ErrEventOverflow
	}
	inner.Events <- fsnotify.Event{Name: "/elsewhere/x", Op: fsnotify.Write}
	<-w.Happened()
	close(inner.Events)
	close(inner.Errors)
	w.done.Wait()
	select {
	case <-w.Happened():
		t.Error("what does not matter is told")
	default:
	}
}

// What others do in the directories above, or next to a readiness file, does
// not wake anybody up.
func TestMatters(t *testing.T) {
	t.Parallel()
	up := t.TempDir()
	real, err := filepath.EvalSymlinks(up)
	ok(t, err)
	put(t, up, "target", net("a"))
	dir := filepath.Join(up, "net.d")
	ok(t, os.Mkdir(dir, 0o700))
	ok(t, os.Mkdir(filepath.Join(dir, "sub"), 0o700))
	ok(t, os.Symlink("../target", filepath.Join(dir, "10-x.conf")))
	ok(t, os.Symlink("loop", filepath.Join(up, "loop")))
	considers := finder{own: our()}.considers
	w, entry := places("", dir, filepath.Join(up, "out", "put"), filepath.Join(up, "run", "ready"), considers)
	if entry != "" {
		t.Errorf("readiness entry %q without a directory", entry)
	}
	for file, want := range map[string]bool{
		"net.d/x": true, "net.d": true, "target": true, "out": true, "run": true, "net.d/sub/1.conf": true,
		"other": false, "net.d/sub/1.json": false, "net.d/sub/deep/1.conf": false, "out/put": false,
	} {
		if w.wants(filepath.Join(real, file)) != want {
			t.Errorf("%s: %v", file, !want)
		}
	}
	for file, there := range map[string]bool{"": true, "net.d/../net.d": true, "loop": false, "loop/x": false, "target/x": false, "none": false, "net.d/10-x.conf": true} {
		w := watched{}
		if last, ok := w.follow("", up+"/"+file); ok != there || !ok && len(w) == 0 {
			t.Errorf("%q: %s, %v", file, last, ok)
		}
	}
	// A directory that exists tells of itself: the one above it may be busy.
	w = watched{}
	w.watchDir("", filepath.Join(dir, "sub"), considers)
	if len(w) != 1 || w[filepath.Join(real, "net.d", "sub")] == nil {
		t.Errorf("watches %v", w)
	}
}

// Each state is observed once, and is the manager's when it is.
func TestObserverSeesEachStateOnce(t *testing.T) {
	t.Parallel()
	m := &Manager{}
	var seen []string
	m.Observer = func(s State) {
		if diff := cmp.Diff(fmt.Sprint(s), fmt.Sprint(m.State())); diff != "" {
			t.Errorf("the state is another (-observed +is):\n%s", diff)
		}
		seen = append(seen, fmt.Sprint(s.Skipped))
	}
	for _, s := range []State{{}, {Skipped: []error{errTest}}, {Skipped: []error{errTest}}, {Skipped: []error{errTest, fs.ErrExist}}, {}} {
		m.setState(s)
	}
	want := []string{fmt.Sprint([]error{errTest}), fmt.Sprint([]error{errTest, fs.ErrExist}), "[]"}
	if diff := cmp.Diff(want, seen); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
