package resident

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/metacni/metacni/internal/fault"
)

// Start launches the residents of Dir and accepts connections. It returns when
// each launched resident has registered or failed to.
//
// It fails when Dir or StateDir cannot be used, when ctx ends, and when the host
// has been started before; then nothing is left running. A launched resident that
// fails is not an error of Start: see [Host.Plugins]. After Start, the end of ctx
// has no effect.
func (h *Host) Start(ctx context.Context) error {
	registration, err := h.open(ctx)
	if err != nil {
		return err
	}
	err = h.recall(ctx)
	var files []string
	if err == nil {
		files, err = h.scan()
	}
	if err != nil {
		return errors.Join(err, h.Stop(ctx))
	}
	settled := make(chan struct{}, len(files))
	for _, f := range files {
		h.tasks.Go(func() { h.supervise(registration, f, sync.OnceFunc(func() { settled <- struct{}{} })) })
	}
	if h.Listener != nil {
		h.tasks.Go(func() { h.accept(registration) })
	}
	for range files {
		select {
		case <-settled:
		case <-ctx.Done():
			return errors.Join(fault.Of("launch", h.Dir, ended(ctx)), h.Stop(ctx))
		}
	}
	return nil
}

// open begins the life of a host. The context it returns ends when no more
// residents may register.
func (h *Host) open(ctx context.Context) (registration context.Context, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.phase != idle {
		return nil, fault.Of("start", "the host", fmt.Errorf("%w: it can be started once", errStopped))
	}
	h.phase, h.started, h.hurry = running, time.Now(), make(chan struct{})
	registration, h.refuse = context.WithCancel(context.WithoutCancel(ctx))
	return registration, nil
}

// Stop refuses new residents and disconnects the others, all at the same time. A
// launched resident gets SIGTERM and, after 2 seconds, SIGKILL, together with its
// process group and its descendants. When ctx ends, Stop kills at once. When Stop
// returns nothing is left running. From then on calls of residents' types fail with
// code 11. End all operations first: a call that runs is lost.
//
// It fails when the host does not run.
func (h *Host) Stop(ctx context.Context) error {
	h.mu.Lock()
	if h.phase != running {
		h.mu.Unlock()
		return fault.Of("stop", "the host", fmt.Errorf("%w, or was never started", errStopped))
	}
	h.phase = stopped // no resident can claim a type any more
	for _, e := range h.live {
		e.fail(errStopped)
	}
	h.change.Broadcast()
	h.mu.Unlock()
	h.refuse()
	if h.Listener != nil {
		_ = h.Listener.Close()
	}
	defer context.AfterFunc(ctx, func() { close(h.hurry) })()
	h.tasks.Wait()
	return nil
}
