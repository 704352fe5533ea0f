package thick

import (
	"cmp"
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

// replay does the DELs of the queue until ctx ends. When those that it has begun
// have ended, it lets another daemon read the queue and returns. It reads the queue
// again from time to time, because a shim may fail to connect although the server is
// there.
func (sv *service) replay(ctx context.Context) {
	defer sv.reader.Close()
	var running sync.WaitGroup
	defer running.Wait()
	for {
		if sv.backlog.old() {
			sv.relist(ctx)
		}
		for ctx.Err() == nil {
			name, found := sv.backlog.next()
			if !found {
				break
			}
			running.Go(func() {
				err := sv.replayOne(ctx, name)
				if sv.backlog.tried(name, err) {
					sv.log(ctx, slog.LevelWarn, "replaying a queued DEL failed", slog.Any("err", err))
				}
			})
		}
		if !sv.backlog.wait(ctx) {
			return
		}
	}
}

// relist reads the queue, if no other daemon does.
func (sv *service) relist(ctx context.Context) {
	limited, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	names, odd, err := sv.reader.List(limited)
	if sv.backlog.listed(names, odd, err) && ctx.Err() == nil {
		sv.log(ctx, slog.LevelWarn, "reading queued DELs failed", slog.Any("err", errors.Join(odd, err)))
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
	ctx = context.WithoutCancel(ctx)
	ev := Event{Path: wire.PathCNI, UID: -1, Replayed: true, Start: time.Now()}
	o, err := sv.order(ev.Path, &m, nil)
	ev.about(o)
	if err == nil && o.command != cmdDel {
		err = coded(http.StatusBadRequest, types.ErrInvalidEnvironmentVariables, "%s cannot be queued", o.command)
	}
	if err != nil {
		err = q.SetAside(name, err) // it would always be refused
	} else {
		o.replayed, o.recorded, o.without = true, m.Recorded, m.Unrecorded
		err = sv.operate(ctx, o, &ev, func([]byte, error) error { return nil })
	}
	sv.observe(ev, err)
	if err != nil {
		return fmt.Errorf("DEL of container %q, interface %q: %w", o.args.ContainerID, o.args.IfName, err)
	}
	return nil
}

// entry returns the name that a DEL of o's attachment has in the queue, or nothing
// if o is no ADD or DEL of the runtime.
func (sv *service) entry(o *order, m *wire.Request) string {
	if sv.Queue == "" || o.more || o.command != cmdAdd && o.command != cmdDel {
		return ""
	}
	name, err := queue.Name(*m)
	if err != nil {
		return "" // a shim could not have queued it
	}
	return name
}

// mayAdd returns an error if o is an ADD of an attachment whose DEL is queued. To
// the runtime the DEL has succeeded, so it may use the container's ID again; the
// older DEL would then remove the new attachment.
func (sv *service) mayAdd(o *order) error {
	if o.command != cmdAdd || o.entry == "" {
		return nil
	}
	if err := sv.readable(); err != nil {
		return err
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

// readable returns why the queue cannot be read, or nil if it can. While it cannot,
// nobody knows which attachments must not be added.
func (sv *service) readable() error {
	if sv.Queue == "" {
		return nil
	}
	other := sv.backlog.failed()
	if !errors.Is(other, queue.ErrOther) {
		other = nil // an ADD looks itself for a DEL of its attachment
	}
	if err := cmp.Or(other, queue.In(sv.Queue).Readable()); err != nil {
		return unreadable(err)
	}
	return nil
}

// usable returns why the DELs in the queue are not done, or why shims cannot write to it.
func (sv *service) usable() error {
	err := sv.readable()
	if err != nil || sv.Queue == "" {
		return err
	}
	if err := sv.backlog.failed(); err != nil {
		return unreadable(err)
	}
	if err := queue.In(sv.Queue).Writable(); err != nil {
		return &stopped{"no DEL can be queued: " + err.Error(), err}
	}
	return nil
}
