// Package queue has the objects that are to be written to an API server.
package queue

import (
	"sync"
	"time"

	"k8s.io/client-go/util/workqueue"
)

// A Queue has keys of objects that are to be written, each until it has succeeded. Its ShutDown
// ends it.
type Queue[K comparable] struct {
	workqueue.TypedDelayingInterface[K]

	failed, refused workqueue.TypedRateLimiter[K] // the pauses of each key
}

// New returns an empty queue, which has a goroutine until it is shut down.
func New[K comparable]() *Queue[K] {
	return &Queue[K]{
		TypedDelayingInterface: workqueue.NewTypedDelayingQueue[K](),
		failed:                 workqueue.NewTypedItemExponentialFailureRateLimiter[K](100*time.Millisecond, 30*time.Second),
		refused:                workqueue.NewTypedItemExponentialFailureRateLimiter[K](time.Second, 10*time.Minute),
	}
}

// Run calls attempt with each key when it is due, with several keys at a time but never twice with
// the same, until q is shut down.
func (q *Queue[K]) Run(atATime int, attempt func(K)) {
	var running sync.WaitGroup
	defer running.Wait()
	for range atATime {
		running.Go(func() {
			for {
				key, ended := q.Get()
				if ended {
					return
				}
				attempt(key)
				q.Done(key)
			}
		})
	}
}

// Retry has a key attempted again after an attempt that has failed: after 0.1 to 30 s, or after
// 1 s to 10 min if an API server has refused it, and not before least. It returns how often the
// key has failed, or was refused, since Forget.
func (q *Queue[K]) Retry(key K, refused bool, least time.Duration) (times int) {
	pauses := q.failed
	if refused {
		pauses = q.refused
	}
	q.AddAfter(key, max(pauses.When(key), least))
	return pauses.NumRequeues(key)
}

// Forget ends the failures of a key, which has succeeded or is gone.
func (q *Queue[K]) Forget(key K) {
	q.failed.Forget(key)
	q.refused.Forget(key)
}
