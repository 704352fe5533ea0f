package autoconf

import (
	"cmp"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"github.com/fsnotify/fsnotify"

	"github.com/metacni/metacni/internal/inroot"
)

// A watched says which directories to watch, by paths without links, and whether
// everything in them matters. Otherwise only ready does.
type watched struct {
	dirs  map[string]bool
	ready string // the readiness file
}

// places returns what to watch. missing reports that a directory does not exist, and
// indirect that what links or sub-directories lead to matters, which nobody watches.
func (m *Manager) places() (w watched, missing, indirect bool) {
	w = watched{dirs: map[string]bool{}}
	add := func(dir string, all bool) (real string) {
		real, err := inroot.Resolve(cmp.Or(m.Root, "/"), dir)
		if info, statErr := os.Stat(real); err != nil || statErr != nil || !info.IsDir() {
			missing = true
			return real
		}
		w.dirs[real] = w.dirs[real] || all
		indirect = indirect || real != filepath.Join(cmp.Or(m.Root, "/"), dir)
		return real
	}
	output, _ := m.outputName()
	add(m.Dir, true)
	add(output, true)
	if m.Ready != "" {
		// Not what a link leads to: that goes when a ConfigMap is replaced.
		w.ready = filepath.Join(add(filepath.Dir(filepath.Clean(m.Ready)), false), filepath.Base(m.Ready))
	}
	entries, _ := fs.ReadDir(m.files(), ".") // what could be listed will do
	return w, missing, indirect || slices.ContainsFunc(entries, func(e fs.DirEntry) bool {
		return e.Name()[0] != '.' && e.Type()&(fs.ModeSymlink|fs.ModeDir) != 0
	})
}

// wants reports whether an event about file matters. One about a watched directory
// itself does.
func (w watched) wants(file string) bool {
	_, itself := w.dirs[file]
	return itself || file == w.ready || w.dirs[filepath.Dir(file)]
}

// A source reports events in the directories it watches.
type source interface {
	// Watch watches these directories and no others.
	Watch(watched) error

	// Happened has an element when something that matters has happened since
	// it was received from.
	Happened() <-chan struct{}

	// Lost reports, once, that the readiness file was removed.
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

	mu   sync.Mutex // protects what follows
	want watched
	lost bool
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

func (w *watcher) Watch(want watched) error {
	if w.inner == nil {
		inner, err := fsnotify.NewWatcher()
		if err != nil {
			return fail("watch", "", err)
		}
		w.inner = inner
		w.done.Go(func() { w.receive(inner) })
	}
	w.mu.Lock()
	w.want = want // before the events are there
	w.mu.Unlock()

	live := w.inner.WatchList()
	for dir, before := range w.known {
		_, wanted := want.dirs[dir]
		info, err := os.Stat(dir)
		if !wanted || err != nil || !os.SameFile(before, info) || !slices.Contains(live, dir) {
			_ = w.inner.Remove(dir) // it may be gone, or another directory has its path now
			delete(w.known, dir)
		}
	}
	var errs []error
	for dir := range want.dirs {
		if w.known[dir] != nil {
			continue
		}
		info, err := os.Stat(dir)
		if err == nil {
			err = w.inner.Add(dir)
		}
		if err == nil {
			w.known[dir] = info
		}
		errs = append(errs, fail("watch", dir, err))
	}
	return errors.Join(errs...)
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
