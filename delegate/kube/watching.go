package kube

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/watch"
)

// A watching is a watch whose end its source knows, and over which something comes.
type watching struct {
	watch.Interface

	source  *source
	initial bool             // it began with the initial events
	events  chan watch.Event // of Interface
	ending  chan struct{}    // closed by Stop
	stop    sync.Once
}

func newWatching(s *source, w watch.Interface, initial bool) *watching {
	g := &watching{Interface: w, source: s, initial: initial, events: make(chan watch.Event), ending: make(chan struct{})}
	go g.forward()
	return g
}

// ResultChan returns the events.
func (w *watching) ResultChan() <-chan watch.Event { return w.events }

// forward forwards events until the watch has ended, or nothing has come for too long: the
// reflector sees the end and stops the watch. Initial events may take as long as they come: an API
// server that many nodes ask at once would have to send them again.
func (w *watching) forward() {
	defer close(w.events)
	from := w.Interface.ResultChan()
	last, heard := time.Now(), false
	silence := time.NewTimer(w.limit())
	defer silence.Stop()
	for {
		select {
		case e, more := <-from:
			if !more {
				return
			}
			last, heard = time.Now(), true
			select {
			case w.events <- e:
			case <-w.ending:
				return
			}
		case <-silence.C:
			if left := w.limit() - time.Since(last); left > 0 {
				silence.Reset(left)
				continue
			}
			if !w.initial && !heard {
				w.source.doubt()
			}
			return
		case <-w.ending:
			return
		}
	}
}

// limit is how long a watch may be silent.
func (w *watching) limit() time.Duration {
	if w.initial && !w.source.store.synced() {
		return initialLimit
	}
	return silentFor
}

// Stop ends the watch. The reflector stops each watch, those that ended by themselves
// too, and some twice.
func (w *watching) Stop() {
	w.stop.Do(func() {
		close(w.ending)
		w.Interface.Stop()
		for range w.events { // until forward has ended
		}
		w.source.ended(w.initial)
	})
}
