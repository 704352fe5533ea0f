package main

import (
	"context"
	"sync"
)

// work is everything that the plugin is doing for requests. Its zero value is ready for use.
type work struct {
	running sync.WaitGroup

	mu    sync.Mutex      // guards the fields below
	alive context.Context //nolint:containedctx // until end; nil before it is needed
	cease context.CancelFunc
}

// start runs do in the background, unless work has ended. The context of do ends with work.
// done is closed when do has returned, or will not run.
func (w *work) start(ctx context.Context, do func(alive context.Context)) (done chan struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	done = make(chan struct{})
	alive := w.begin(ctx)
	if alive.Err() != nil {
		close(done)
		return done
	}
	w.running.Go(func() {
		defer close(done)
		do(alive)
	})
	return done
}

// begin returns the context of work, which the end of ctx does not end. The lock is held.
func (w *work) begin(ctx context.Context) context.Context {
	if w.alive == nil {
		w.alive, w.cease = context.WithCancel(context.WithoutCancel(ctx))
	}
	return w.alive
}

// end prevents new work, ends the context of the work that runs, and waits for it.
func (w *work) end(ctx context.Context) {
	w.mu.Lock()
	w.begin(ctx)
	w.cease()
	w.mu.Unlock()
	w.running.Wait()
}
