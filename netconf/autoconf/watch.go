package autoconf

import (
	"errors"
	"maps"
	"path/filepath"
	"slices"
	"sync"

	"github.com/fsnotify/fsnotify"
)

// A watched says which directories to watch, by paths without links, and whether
// everything in them matters. Otherwise only ready does.
type watched struct {
	dirs  map[string]bool
	ready string // the readiness file
}

// wants reports whether an event about file matters. One about a watched directory
// itself does.
func (w watched) wants(file string) bool {
	_, itself := w.dirs[file]
	return itself || file == w.ready || w.dirs[filepath.Dir(file)]
}

// A source reports events in the directories it watches.
type source interface {
	// Watch watches these directories and no others. It reports whether the readiness
	// file was removed since the last call.
	Watch(watched) (lost bool, err error)

	// Happened has an element when something that matters has happened since
	// it was received from.
	Happened() <-chan struct{}
}

// A poller is a source that reports nothing.
type poller struct{}

func (poller) Watch(watched) (lost bool, err error) { return false, nil }
func (poller) Happened() <-chan struct{}            { return nil }

// A watcher is the source that the system has.
type watcher struct {
	happened chan struct{}
	inner    *fsnotify.Watcher // nil while there is none
	done     sync.WaitGroup

	mu   sync.Mutex // protects what follows
	want watched
	lost bool
}

func newWatcher() *watcher { return &watcher{happened: make(chan struct{}, 1)} }

func (w *watcher) Happened() <-chan struct{} { return w.happened }

func (w *watcher) Close() {
	if w.inner != nil {
		_ = w.inner.Close()
	}
	w.done.Wait()
}

// Watch adds every directory each time: this does nothing while the watch is right, and
// otherwise watches the directory that has the path now.
func (w *watcher) Watch(want watched) (lost bool, err error) {
	if w.inner == nil {
		if w.inner, err = fsnotify.NewWatcher(); err != nil {
			w.inner = nil
			return false, fail("watch", "", err)
		}
		w.done.Go(func() { w.receive(w.inner.Events, w.inner.Errors) })
	}
	w.mu.Lock()
	w.want = want // before the events are there
	w.mu.Unlock()

	for _, dir := range w.inner.WatchList() {
		if _, wanted := want.dirs[dir]; !wanted {
			_ = w.inner.Remove(dir) // it may be gone
		}
	}
	var errs []error
	for _, dir := range slices.Sorted(maps.Keys(want.dirs)) {
		errs = append(errs, fail("watch", dir, w.inner.Add(dir)))
	}

	w.mu.Lock()
	defer w.mu.Unlock()
	lost, w.lost = w.lost, false
	return lost, errors.Join(errs...)
}

// receive takes what the system tells until that ends. It never makes the system's watcher
// wait, which holds a lock while it tells of some errors.
func (w *watcher) receive(events <-chan fsnotify.Event, errs <-chan error) {
	for {
		select {
		case e, ok := <-events:
			if !ok {
				return
			}
			w.event(e)
		case _, ok := <-errs:
			if !ok {
				return
			}
			w.tell() // events were lost: the queue was full
		}
	}
}

func (w *watcher) event(e fsnotify.Event) {
	w.mu.Lock()
	matters := w.want.wants(e.Name)
	if e.Name != "" && e.Name == w.want.ready && (e.Has(fsnotify.Remove) || e.Has(fsnotify.Rename)) {
		w.lost = true
	}
	w.mu.Unlock()
	if matters {
		w.tell()
	}
}

func (w *watcher) tell() {
	select {
	case w.happened <- struct{}{}:
	default: // an event is waiting already
	}
}
