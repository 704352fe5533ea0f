package autoconf

import (
	"errors"
	"io/fs"
	"maps"
	"os"
	"slices"
	"sync"

	"github.com/fsnotify/fsnotify"
)

// A source reports events in the directories it watches.
type source interface {
	// Watch watches these directories and no others, and reports whether that
	// changed anything. readyEntry is the entry whose removal Lost reports.
	Watch(w watched, readyEntry string) (changed bool, err error)

	// Happened has an element when something that matters has happened since
	// it was received from.
	Happened() <-chan struct{}

	// Lost reports, once, that readyEntry was removed.
	Lost() bool

	// Close ends the watch.
	Close()
}

// A watcher is the source that the system has.
type watcher struct {
	happened chan struct{}
	inner    *fsnotify.Watcher      // nil while there is none
	known    map[string]fs.FileInfo // the directories watched, to see that they are the same still
	done     sync.WaitGroup

	mu         sync.Mutex // protects what follows
	want       watched
	readyEntry string
	lost       bool
}

func newWatcher() *watcher {
	return &watcher{happened: make(chan struct{}, 1), known: map[string]fs.FileInfo{}}
}

func (w *watcher) Happened() <-chan struct{} { return w.happened }

func (w *watcher) Lost() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	lost := w.lost
	w.lost = false
	return lost
}

func (w *watcher) Close() {
	if w.inner != nil {
		_ = w.inner.Close()
	}
	w.done.Wait()
}

func (w *watcher) Watch(want watched, readyEntry string) (bool, error) {
	if w.inner == nil {
		inner, err := fsnotify.NewWatcher()
		if err != nil {
			return false, fail("watch", "", err)
		}
		w.inner = inner
		w.done.Go(func() { w.receive(inner) })
	}
	w.mu.Lock()
	w.want, w.readyEntry = want, readyEntry // before the events are there
	w.mu.Unlock()

	changed := false
	live := w.inner.WatchList()
	for dir := range w.known {
		if want[dir] == nil {
			_ = w.inner.Remove(dir) // it may be gone
			delete(w.known, dir)
		}
	}
	var errs []error
	for _, dir := range slices.Sorted(maps.Keys(want)) {
		info, err := os.Stat(dir)
		before := w.known[dir]
		if err == nil && before != nil && os.SameFile(before, info) && slices.Contains(live, dir) {
			continue
		}
		if before != nil {
			_ = w.inner.Remove(dir) // another directory has its path now
			delete(w.known, dir)
		}
		if err == nil {
			err = w.inner.Add(dir)
		}
		switch {
		case err == nil:
			w.known[dir] = info
			changed = true
		case errors.Is(err, fs.ErrNotExist):
			changed = true // there is another place to watch now
		default:
			errs = append(errs, fail("watch", dir, err))
		}
	}
	return changed, join("watch", "", errs...)
}

// receive takes what the system tells until inner is closed. It never makes
// inner wait, which holds a lock while it tells of some errors.
func (w *watcher) receive(inner *fsnotify.Watcher) {
	events, errs := inner.Events, inner.Errors
	for events != nil || errs != nil {
		select {
		case e, ok := <-events:
			if !ok {
				events = nil
				continue
			}
			w.event(e)
		case _, ok := <-errs:
			if !ok {
				errs = nil
				continue
			}
			w.tell() // events were lost: the queue was full
		}
	}
}

func (w *watcher) event(e fsnotify.Event) {
	w.mu.Lock()
	matters := w.want.wants(e.Name)
	if e.Name != "" && e.Name == w.readyEntry && (e.Has(fsnotify.Remove) || e.Has(fsnotify.Rename)) {
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
