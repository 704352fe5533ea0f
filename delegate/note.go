package delegate

import (
	"slices"
	"sync"
)

// A Note is told what is known of attachment i of an operation each time one
// of its plugins has succeeded: after an ADD a.Result is what that plugin
// printed, after a DEL a.Gone includes that plugin. It is called before the
// next plugin of the attachment runs, so that a caller who writes it down
// knows enough to clean up wherever the process dies. Calls do not overlap.
//
// An error of a Note fails an ADD, which is then undone; a DEL goes on past it.
type Note func(i int, a Attached) error

// notes are the Notes of one operation.
type notes struct {
	mu  sync.Mutex // held while one is called
	all []Note
}

func (n *notes) tell(i int, a Attached) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, note := range n.all {
		if err := note(i, a); err != nil {
			return err
		}
	}
	return nil
}

// without returns a with the plugins from first on as gone, which have not run.
func (a Attached) without(first int) Attached {
	for i := first; i < len(a.Network.Plugins()); i++ {
		a.Gone = withIndex(a.Gone, i)
	}
	return a
}

// withIndex returns the sorted set with i in it, which was not, and leaves set
// itself alone.
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

// Left returns those of as with plugins that are not gone, or nil.
func Left(as []Attached) []Attached {
	var left []Attached
	for _, a := range as {
		if a.left() > 0 {
			left = append(left, a)
		}
	}
	return left
}
