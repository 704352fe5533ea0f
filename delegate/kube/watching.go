package kube

import (
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/watch"
)

// A watching is a watch whose end its source knows, and over which something comes.
type watching struct {
	watch.Interface

	source  *source
	initial bool // it began with the initial events
	began   time.Time
	heard   atomic.Int64     // nanoseconds from then to the last event; 0: none
	events  chan watch.Event // of Interface
	ending  chan struct{}    // closed by Stop
	ended   chan struct{}    // closed when no more events come
	timer   *time.Timer
	stopped atomic.Bool
}

func newWatching(s *source, w watch.Interface, initial bool) *watching {
	g := &watching{
		Interface: w, source: s, initial: initial, began: time.Now(),
		events: make(chan watch.Event), ending: make(chan struct{}), ended: make(chan struct{}),
	}
	g.timer = time.AfterFunc(g.limit(), g.look)
	go g.forward()
	return g
}

// ResultChan returns the events.
func (w *watching) ResultChan() <-chan watch.Event { return w.events }

// forward notes when events come.
func (w *watching) forward() {
	defer close(w.ended)
	defer close(w.events)
	from := w.Interface.ResultChan()
	for {
		select {
		case e, more := <-from:
			if !more {
				return
			}
			w.heard.Store(max(1, int64(time.Since(w.began))))
			select {
			case w.events <- e:
			case <-w.ending:
				return
			}
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

// look cuts the watch if nothing has come lately. Initial events may take as long as they
// come: an API server that many nodes ask at once would have to send them again.
func (w *watching) look() {
	heard := w.heard.Load()
	left := w.limit() - time.Since(w.began) + time.Duration(heard)
	switch {
	case w.stopped.Load():
		return
	case left > 0:
		w.timer.Reset(left)
		return
	case !w.initial && heard == 0:
		w.source.doubt()
	}
	w.Interface.Stop() // the reflector sees the end
}

// Stop ends the watch. The reflector stops each watch, those that ended by themselves
// too, and some twice.
func (w *watching) Stop() {
	if w.stopped.Swap(true) {
		return
	}
	w.timer.Stop()
	close(w.ending)
	w.Interface.Stop()
	<-w.ended
	w.source.ended(w.initial)
}
