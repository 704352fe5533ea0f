package kube

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// A store has what a watch has brought, of one resource. It keeps of each object what
// keep makes of it. It is a [k8s.io/client-go/tools/cache.ReflectorStore]: the reflector
// alone changes it.
type store[T any] struct {
	// keep returns what matters of an object, or false for one without a name.
	keep func(object any) (types.NamespacedName, T, bool)

	mu    sync.Mutex
	items map[types.NamespacedName]T
	whole bool          // items has been complete
	last  time.Time     // of the last sign of life of the API server
	wake  chan struct{} // closed with the next change
	tell  []func(types.NamespacedName)
}

func newStore[T any](keep func(any) (types.NamespacedName, T, bool)) *store[T] {
	return &store[T]{
		keep: keep, items: make(map[types.NamespacedName]T), last: time.Now(), wake: make(chan struct{}),
	}
}

// get returns an item if there is one, whether the store is complete, and a channel
// that is closed when the answer may be another one.
func (s *store[T]) get(key types.NamespacedName) (item T, found, synced bool, wake <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	item, found = s.items[key]
	return item, found, s.whole, s.wake
}

// age is the time since the last sign of life.
func (s *store[T]) age() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return time.Since(s.last)
}

// synced reports whether the store is complete, as far as the API server has told.
func (s *store[T]) synced() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.whole
}

// each calls do for each item, in no order.
func (s *store[T]) each(do func(types.NamespacedName, T)) (synced bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for key, item := range s.items {
		do(key, item)
	}
	return s.whole
}

// listen makes f be told, from now on, of each item that may have changed. f must not block.
func (s *store[T]) listen(f func(types.NamespacedName)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tell = append(s.tell, f)
}

// changed tells of an item that may have changed.
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
func (s *store[T]) Replace(objects []any, _ string) error {
	items := make(map[types.NamespacedName]T, len(objects))
	touched := make(map[types.NamespacedName]struct{}, len(objects))
	for _, object := range objects {
		if key, item, ok := s.keep(object); ok {
			items[key] = item
			touched[key] = struct{}{}
		}
	}
	s.edit(func() {
		for key := range s.items {
			touched[key] = struct{}{}
		}
		s.items, s.whole = items, true
	})
	for key := range touched {
		s.changed(key)
	}
	return nil
}

// Resync does nothing.
func (s *store[T]) Resync() error { return nil }

// UpdateResourceVersion is called after each event and bookmark of the watch.
func (s *store[T]) UpdateResourceVersion(string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last = time.Now()
}
