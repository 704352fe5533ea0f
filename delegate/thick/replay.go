package thick

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/metacni/metacni/delegate/thick/internal/queue"
	"github.com/metacni/metacni/delegate/thick/wire"
)

const listTimeout = 5 * time.Second // for a shim that writes to the queue

// replay does the DELs of the queue until ctx ends. When those that have begun have ended,
// it lets another daemon read the queue and returns. It reads the queue again from time to
// time, because a shim may fail to connect although the server is there.
func (sv *service) replay(ctx context.Context) {
	defer sv.reader.Close()
	var running sync.WaitGroup
	defer running.Wait()
	for {
		due, wait := sv.backlog.begin()
		for _, d := range due {
			running.Go(func() { sv.try(ctx, d) })
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		case <-sv.backlog.wake:
		}
		sv.relist(ctx)
	}
}

// relist reads the queue, if there is one and no other daemon reads it.
func (sv *service) relist(ctx context.Context) {
	if sv.Queue == "" {
		return
	}
	limited, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	names, odd, err := sv.reader.List(limited)
	if sv.backlog.listed(names, odd, err) && ctx.Err() == nil {
		sv.log(ctx, slog.LevelWarn, "reading queued DELs failed", slog.Any("err", errors.Join(odd, err)))
	}
}

// try tries once to do a DEL. Those that have failed have turns of their own, so that one
// that hangs does not delay a new one.
func (sv *service) try(ctx context.Context, d *queuedDel) {
	turns := sv.replays
	if d.err != nil {
		turns = sv.retries
	}
	err := turns.wait(ctx)
	if err == nil {
		err = sv.replayOne(ctx, d.name)
		turns.release()
	}
	if sv.backlog.tried(d, err) && ctx.Err() == nil {
		sv.log(ctx, slog.LevelWarn, "replaying a queued DEL failed", slog.Any("err", err))
	}
}

// replayOne does the DEL in the file name. It does not end with ctx, because a DEL
// that has begun goes on when the server stops. It returns nil when the DEL is
// not queued any more.
func (sv *service) replayOne(ctx context.Context, name string) error {
	q := queue.In(sv.Queue)
	m, err := q.Read(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	}
	op := &operation{uid: -1, start: time.Now(), answer: func(reply) error { return nil }}
	op.order, err = sv.decode(wire.PathCNI, &m, nil)
	op.replayed, op.recorded, op.without = true, m.Recorded, m.Unrecorded
	if err == nil && op.command != cmdDel {
		err = coded(http.StatusBadRequest, types.ErrInvalidEnvironmentVariables, "%s cannot be queued", op.command)
	}
	if err != nil {
		err = q.SetAside(name, err) // it would always be refused
	} else {
		err = sv.operate(context.WithoutCancel(ctx), op)
	}
	sv.observe(op, err)
	if err != nil {
		return fmt.Errorf("DEL of container %q, interface %q: %w", op.args.ContainerID, op.args.IfName, err)
	}
	return nil
}

// mayAdd returns an error if o is an ADD of an attachment whose DEL is queued. To
// the runtime the DEL has succeeded, so it may use the container's ID again; the
// older DEL would then remove the new attachment.
func (sv *service) mayAdd(o *order) error {
	if o.command != cmdAdd || o.entry == "" {
		return nil
	}
	if err := sv.backlog.failed(); errors.Is(err, queue.ErrOther) {
		return unreadable(err) // after any other error Has tells whether the DEL is queued
	}
	queued, err := queue.In(sv.Queue).Has(o.entry)
	if err != nil {
		return unreadable(err)
	}
	if queued {
		sv.backlog.want(o.entry)
		return errQueued
	}
	return nil
}

// stale reports whether o is a DEL of the queue whose attachment is gone: another
// DEL has been done since o was read, or the attachment was recorded later than the
// one that o is about. recorded is when it was recorded, or zero if unknown.
//
// It is checked before the plugin runs. A plugin that uses package lifecycle checks
// it again while it has the lock of the container, because an ADD by another process
// may come between.
func (sv *service) stale(o *order, recorded time.Time) (bool, error) {
	switch {
	case recorded.IsZero():
	case !o.recorded.IsZero() && !recorded.Equal(o.recorded), !o.without.IsZero() && recorded.After(o.without):
		return true, nil
	}
	queued, err := queue.In(sv.Queue).Has(o.entry)
	return !queued && err == nil, err
}

// dequeue removes the DEL o, which has been done, from the queue, whether it came
// from there or from the runtime.
func (sv *service) dequeue(o *order) error {
	if o.command != cmdDel || o.entry == "" {
		return nil
	}
	if err := queue.In(sv.Queue).Remove(o.entry); err != nil {
		return fmt.Errorf("%w: %w", errNotDequeued, err)
	}
	return nil
}

// usable returns why the DELs in the queue are not done, or why shims cannot write to it.
func (sv *service) usable(ctx context.Context) error {
	if sv.Queue == "" {
		return nil
	}
	if err := sv.backlog.failed(); err != nil {
		return unreadable(err)
	}
	if err := queue.In(sv.Queue).Writable(ctx); err != nil {
		return stopped("no DEL can be queued: "+err.Error(), err)
	}
	return nil
}
