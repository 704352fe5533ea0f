package scratch

import (
	"github.com/metacni/metacni/internal/durable"
)

// A Watch tells which records have changed, so that a program that needs all of
// them again and again reads only those. It is for one goroutine at a time. It
// must be closed.
type Watch struct {
	watch *durable.Watch // nil once it is closed
	// unknown says that anything may have changed.
	unknown bool
}

// Watch begins to watch the records of s. It fails on systems other than Linux,
// without the directory, and where too many watches are in use (see inotify(7)).
func (s Store[T]) Watch() (*Watch, error) {
	w, err := s.files().watch()
	return w, fail("watch", Key{}, err)
}

func (f files) watch() (*Watch, error) {
	root, err := f.open()
	if err != nil {
		return nil, err
	}
	defer root.Close()
	watch, err := root.Watch()
	if err != nil {
		return nil, err
	}
	return &Watch{watch: watch, unknown: true}, nil
}

// Changed returns the keys of the records that any program has written or removed
// since the last call, in the order of their first change. It sees each change that was complete when it was called.
// known is false if every record may have changed: at the first call, after a great
// many changes, when a record with a very long name has changed, and as long as the
// directory is gone. Then [Store.List] tells what is there, and later calls tell what has
// changed since.
func (w *Watch) Changed() (keys []Key, known bool) {
	if w.watch == nil {
		return nil, false
	}
	names, all := w.watch.Changed()
	all, w.unknown = all || w.unknown, false
	seen := make(map[Key]bool)
	for _, name := range names {
		if k, ok := parseName(name); ok && !seen[k] {
			seen[k] = true
			all = all || hashed(k.ContainerID) || hashed(k.Network)
			keys = append(keys, k)
		}
	}
	if all {
		return nil, false
	}
	return keys, true
}

// Close ends the watch. Later calls do nothing.
func (w *Watch) Close() {
	if w.watch != nil {
		w.watch.Close()
		w.watch = nil
	}
}
