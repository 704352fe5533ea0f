package kube

import (
	"context"
	"maps"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// A store holds the objects of one resource that a watch has delivered, each in the form
// that keep returns. It is a [k8s.io/client-go/tools/cache.ReflectorStore]: only the
// reflector changes it.
type store[T any] struct {
	// keep returns the part of an object that is kept, or false for one without a name.
	keep func(object any) (types.NamespacedName, T, bool)

	mu    sync.Mutex
	items map[types.NamespacedName]T
	whole bool          // items has been complete at least once
	last  time.Time     // when the API server was last heard of
	empty time.Time     // when a list without objects has emptied items; zero if none has
	at    string        // the resource version of what was last heard of it
	wake  chan struct{} // closed by the next change
	tell  []func(types.NamespacedName)

	// restored are called when the objects are those of an older version than the last ones.
	restored []func()
}

func newStore[T any](keep func(any) (types.NamespacedName, T, bool)) *store[T] {
	return &store[T]{
		keep: keep, items: make(map[types.NamespacedName]T), last: time.Now(), wake: make(chan struct{}),
	}
}

// get returns an item if there is one.
func (s *store[T]) get(key types.NamespacedName) (item T, found bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	item, found = s.items[key]
	return item, found
}

// next returns a channel that is closed by the next change of the store. Whoever waits for
// something calls it before looking.
func (s *store[T]) next() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.wake
}

// awaitSync waits until the store has synced, and reports whether it has.
func (s *store[T]) awaitSync(ctx context.Context) bool {
	for {
		next := s.next()
		if s.synced() {
			return true
		}
		select {
		case <-next:
		case <-ctx.Done():
			return false
		}
	}
}

// age returns the time since the API server was last heard of.
func (s *store[T]) age() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return time.Since(s.last)
}

// synced reports whether the store has been complete at least once.
func (s *store[T]) synced() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.whole
}

// gone reports whether there is certainly no item with that key. What an empty list has removed is
// only gone when the API server has been heard of for some time after that: a database that is being
// restored, or an API server in trouble, may have answered so.
func (s *store[T]) gone(key types.NamespacedName) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, found := s.items[key]
	return !found && s.whole && (s.empty.IsZero() || s.last.Sub(s.empty) >= emptyFor)
}

// emptyFor is how long a list without objects must be right before they are gone.
const emptyFor = 5 * time.Minute

// all returns all items.
func (s *store[T]) all() map[types.NamespacedName]T {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.items)
}

// follow calls f with each item, and later with each that may have changed. f must not block.
func (s *store[T]) follow(f func(types.NamespacedName)) {
	s.mu.Lock()
	s.tell = append(s.tell, f)
	s.mu.Unlock()
	for key := range s.all() {
		f(key)
	}
}

// changed calls the listeners with an item that may have changed.
func (s *store[T]) changed(key types.NamespacedName) {
	s.mu.Lock()
	tell := s.tell
	s.mu.Unlock()
	for _, f := range tell {
		f(key)
	}
}

// edit changes the store.
func (s *store[T]) edit(do func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	do()
	s.last = time.Now()
	close(s.wake)
	s.wake = make(chan struct{})
}

// Add puts an object into the store.
func (s *store[T]) Add(object any) error {
	if key, item, ok := s.keep(object); ok {
		s.edit(func() { s.items[key] = item })
		s.changed(key)
	}
	return nil
}

// Update is Add.
func (s *store[T]) Update(object any) error { return s.Add(object) }

// Delete removes an object from the store.
func (s *store[T]) Delete(object any) error {
	if key, _, ok := s.keep(object); ok {
		s.edit(func() { delete(s.items, key) })
		s.changed(key)
	}
	return nil
}

// Replace makes objects, which are all there are, the content of the store.
func (s *store[T]) Replace(objects []any, version string) error {
	items := make(map[types.NamespacedName]T, len(objects))
	for _, object := range objects {
		if key, item, ok := s.keep(object); ok {
			items[key] = item
		}
	}
	var touched map[types.NamespacedName]T // the old items and the new ones
	var restored []func()
	s.edit(func() {
		touched = s.items
		if lower(version, s.at) {
			restored = s.restored
		}
		s.empty = time.Time{}
		if len(items) == 0 {
			s.empty = time.Now()
		}
		s.items, s.whole, s.at = items, true, version
	})
	for _, f := range restored {
		f()
	}
	maps.Copy(touched, items)
	for key := range touched {
		s.changed(key)
	}
	return nil
}

// Resync does nothing.
func (s *store[T]) Resync() error { return nil }

// UpdateResourceVersion is called after each event and bookmark of the watch.
func (s *store[T]) UpdateResourceVersion(version string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last, s.at = time.Now(), version
}

// onRestored calls f when the store gets older objects than it had: the database of the API server
// was replaced by an older copy. f must not block.
func (s *store[T]) onRestored(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.restored = append(s.restored, f)
}
