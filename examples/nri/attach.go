package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/containerd/nri/pkg/api"
	"github.com/containernetworking/cni/pkg/types"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/lifecycle"
	multinet "github.com/metacni/metacni/examples/multinet/plugin"
	"github.com/metacni/metacni/scratch"
	"github.com/metacni/metacni/status"
)

const (
	// network is the network in the keys of records.
	network = "nri"

	// detachedTimeout limits work that goes on after the answer, and each job of
	// the reconciler.
	detachedTimeout = 30 * time.Second
)

var (
	errLate = types.NewError(types.ErrTryAgainLater, "not attached within the runtime's timeout",
		"if it is too short, raise plugin_request_timeout of containerd or nri_plugin_request_timeout of CRI-O")
	errReleased = types.NewError(types.ErrTryAgainLater, "the kubelet has released the claims of the pod", "")
	errGone     = errors.New("the runtime has given the pod up")
	errEnds     = types.NewError(types.ErrTryAgainLater, "the plugin is stopping", "")
)

// key returns the key of a sandbox's record. Each sandbox of a pod has its own.
func key(sandbox string) scratch.Key {
	return scratch.Key{Network: network, ContainerID: sandbox, IfName: podInterface}
}

// attachInTime attaches a pod before the runtime's deadline, or not at all.
//
// The ADD goes on if the runtime's request ends, because a runtime that has gone away may
// have started the pod. An ADD that is late is undone, with a time limit of its own.
func (p *Plugin) attachInTime(ctx context.Context, s *api.PodSandbox) error {
	at := progress{by: p.opened.Load().conf.answerBy(ctx)}
	ctx, cancel := context.WithCancelCause(context.WithValue(context.WithoutCancel(ctx), progressKey{}, &at))
	var answered atomic.Bool // whoever sets it first decides the answer
	answer := func() bool { return answered.CompareAndSwap(false, true) }
	late := p.until(at.by)
	err := error(errEnds)
	done := p.start(func(context.Context) {
		defer cancel(nil)
		err = p.attach(ctx, s, namespace(s), func() error {
			if !answer() {
				return errLate
			}
			return nil
		})
		if err != nil && !answer() {
			p.Logger.WarnContext(ctx, "ADD abandoned after its timeout", slog.Any("err", failed("ADD", s, err)))
		}
	})
	select {
	case <-done:
		return err
	case <-late:
	}
	if answer() {
		cancel(errLate)
		return at.late()
	}
	<-done // soon
	return err
}

// start runs do in the background with the context of Run, unless the plugin is ending. done is
// closed when do has returned, or will not run.
func (p *Plugin) start(do func(alive context.Context)) (done chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	done = make(chan struct{})
	if p.ending {
		close(done)
		return done
	}
	p.running.Go(func() {
		defer close(done)
		do(p.alive)
	})
	return done
}

// finish prevents new work, and waits for the work that runs.
func (p *Plugin) finish() {
	p.mu.Lock()
	p.ending = true
	p.mu.Unlock()
	p.running.Wait()
}

// until returns a channel that receives at a time.
func (p *Plugin) until(t time.Time) <-chan time.Time {
	if p.clock != nil {
		return p.clock
	}
	return time.After(time.Until(t))
}

// A progress holds the last plugin that was run for a request, and when the request must be
// answered. It is in the context of the request.
type progress struct {
	atomic.Pointer[delegate.Event]
	by time.Time
}

type progressKey struct{}

// observe is a [delegate.Invoker.Observer].
func observe(ctx context.Context, e delegate.Event) (context.Context, func(error)) {
	if at, ok := ctx.Value(progressKey{}).(*progress); ok {
		at.Store(&e)
	}
	return ctx, func(error) {}
}

// late returns errLate with the plugin that took the time.
func (at *progress) late() error {
	e := at.Load()
	if e == nil {
		return fmt.Errorf("no plugin was run yet, another operation on the pod is running: %w", errLate)
	}
	return fmt.Errorf("network %q (%s): plugin %q: %w", e.Network, e.IfName, e.Plugin, errLate)
}

// attach attaches a pod to the networks that it selects and those of its claims, to all or
// none. last is the last step. attach succeeds if the pod is attached already.
func (p *Plugin) attach(ctx context.Context, s *api.PodSandbox, netns string, last func() error) error {
	o := p.opened.Load()
	planned, err := o.wanted(ctx, s, netns)
	if err != nil {
		return err
	}
	if len(planned) == 0 {
		return errReleased
	}
	added, err := o.life.Add(ctx, key(s.GetId()), lifecycle.Transaction{
		NetNS: netns,
		Plan: func(_ context.Context, taken []string) ([]delegate.Attachment, error) {
			if _, ok := p.pods.get(s.GetId()); !ok {
				return nil, errGone // a DEL has come first and found nothing
			}
			named, err := name(planned, taken)
			if err == nil {
				planned = named
			}
			return named, err
		},
		Prepare: func(ctx context.Context, plan []delegate.Attachment) error { return o.driver.Held(ctx, podIn(s), plan) },
		Report: func(ctx context.Context, _ []delegate.Attached) error {
			if err := o.driver.UpdateMetadata(ctx, s.GetUid()); err != nil {
				o.log.WarnContext(ctx, "containers do not see what their claims are attached to", slog.Any("err", err))
			}
			return last()
		},
	})
	switch {
	case errors.Is(err, lifecycle.ErrAdded):
		return nil
	case err != nil:
		return multinet.About(planned, err)
	}
	networks, _ := status.Annotation(lifecycle.AddRecord{State: scratch.Added, Attached: added}.Networks(nil))
	names := make([]string, len(added)) // that plugins were given
	for i, a := range added {
		names[i] = a.IfName
	}
	o.log.InfoContext(ctx, "attached", who(podIn(s)), slog.Any("ifnames", names), slog.String("networks", networks))
	return nil
}

// detachInTime detaches a pod. If that takes too long, it returns at the runtime's
// deadline, and the DEL goes on.
func (p *Plugin) detachInTime(ctx context.Context, op string, s *api.PodSandbox) {
	p.pods.forget(s.GetId())
	late := p.until(p.opened.Load().conf.answerBy(ctx))
	done := p.start(func(alive context.Context) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), detachedTimeout)
		defer cancel()
		defer context.AfterFunc(alive, cancel)()
		if err := p.detach(ctx, s.GetId(), s.GetUid(), namespace(s)); err != nil {
			p.Logger.ErrorContext(ctx, "still attached", slog.Any("err", failed(op, s, err)))
		}
	})
	select {
	case <-done: // or the plugin is stopping, and the next one detaches what is recorded
	case <-late:
		p.Logger.WarnContext(ctx, "DEL continues after the answer", who(podIn(s)))
	}
}

// detach detaches a sandbox if it has a record. podUID is that of its pod.
func (p *Plugin) detach(ctx context.Context, id, podUID, netns string) error {
	o := p.opened.Load()
	err := o.life.Del(ctx, key(id), lifecycle.DelRequest{NetNS: netns})
	o.driver.Attached(podUID, err)
	return err
}

// failed returns err with the operation and the pod. The code is in the text, because the
// runtime receives nothing else.
func failed(op string, s *api.PodSandbox, err error) error {
	return fmt.Errorf("nri: %s pod %q (%s): %w (CNI code %d)", op, podIn(s), s.GetId(), err, status.Code(err))
}
