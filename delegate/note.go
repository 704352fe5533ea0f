package delegate

import (
	"slices"
	"sync"
)

// A note is told of each plugin that has succeeded, see [Invoker.AddAll].
type note = func(i int, a Attached) error

// oneAtATime returns a note that calls each of all.
func oneAtATime(all []note) note {
	var mu sync.Mutex // held while one is called
	return func(i int, a Attached) error {
		mu.Lock()
		defer mu.Unlock()
		for _, tell := range all {
			if err := tell(i, a); err != nil {
				return err
			}
		}
		return nil
	}
}

// without returns a with the plugins from first on, which have not run, in Gone.
func (a Attached) without(first int) Attached {
	for i := first; i < len(a.Network.Plugins()); i++ {
		a.Gone = withIndex(a.Gone, i)
	}
	return a
}

// withIndex returns a copy of the sorted set to which i is added.
func withIndex(set []int, i int) []int {
	at, _ := slices.BinarySearch(set, i)
	return slices.Insert(slices.Clone(set), at, i)
}

// left is how many plugins of a may have something in the container.
func (a Attached) left() int {
	n := 0
	for i := range a.Network.Plugins() {
		if !slices.Contains(a.Gone, i) {
			n++
		}
	}
	return n
}
