package main

import (
	"context"
	"sync"
	"time"
)

// work is everything that the plugin is doing for requests. Its zero value is ready for use.
type work struct {
	running sync.WaitGroup

	mu    sync.Mutex      // guards the fields below
	alive context.Context //nolint:containedctx // until end; nil before it is needed
	cease context.CancelFunc
}

// within starts do, unless work has ended, and waits for it, but not beyond by. The context of
// do ends with work.
func (w *work) within(by time.Time, do func(context.Context)) (started, ended bool) {
	done := make(chan struct{})
	w.mu.Lock()
	alive := w.begin()
	started = alive.Err() == nil
	if started {
		w.running.Go(func() {
			defer close(done)
			do(alive)
		})
	}
	w.mu.Unlock()
	if !started {
		return false, false
	}
	timer := time.NewTimer(time.Until(by))
	defer timer.Stop()
	select {
	case <-done:
		return true, true
	case <-timer.C:
		return true, false
	}
}

// begin returns the context of work. The lock is held.
func (w *work) begin() context.Context {
	if w.alive == nil {
		w.alive, w.cease = context.WithCancel(context.Background())
	}
	return w.alive
}

// end prevents new work, ends the context of the work that runs, and waits for it.
func (w *work) end() {
	w.mu.Lock()
	w.begin()
	w.cease()
	w.mu.Unlock()
	w.running.Wait()
}
