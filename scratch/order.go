package scratch

import (
	"iter"
	"sync"
	"sync/atomic"
)

// inOrder yields do of each of all, in order. That many workers call do, at most
// two calls each ahead of what is yielded. None is left when it returns.
func inOrder[A, B any](all []A, workers int, do func(A) B) iter.Seq[B] {
	return func(yield func(B) bool) {
		if workers = min(workers, len(all)); workers < 2 {
			for _, a := range all {
				if !yield(do(a)) {
					return
				}
			}
			return
		}
		done := make([]chan B, len(all))
		for i := range done {
			done[i] = make(chan B, 1)
		}
		var wg sync.WaitGroup
		turns := make(chan struct{}, 2*workers)
		for range cap(turns) {
			turns <- struct{}{}
		}
		defer func() {
			close(turns)
			for range turns { // nobody needs what is left
			}
			wg.Wait()
		}()
		var next atomic.Int64
		for range workers {
			wg.Go(func() {
				for range turns {
					i := int(next.Add(1)) - 1
					if i >= len(all) {
						return
					}
					done[i] <- do(all[i])
				}
			})
		}
		for _, c := range done {
			if !yield(<-c) {
				return
			}
			turns <- struct{}{}
		}
	}
}
