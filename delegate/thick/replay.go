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

// replay does the DELs of the queue until ctx ends, and returns once those that
// have begun have ended. It looks for more from time to time: a shim may not
// have been able to connect although the server was there.
func (sv *service) replay(ctx context.Context) {
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
				err := sv.redo(ctx, name)
				if sv.backlog.tried(name, err) {
					sv.log(ctx, slog.LevelWarn, "queue", slog.Any("err", err))
				}
			})
		}
		if !sv.backlog.wait(ctx) {
			return
		}
	}
}

// relist reads the queue.
func (sv *service) relist(ctx context.Context) {
	limited, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	names, odd, err := queue.In(sv.Queue).List(limited)
	if sv.backlog.listed(names, odd, err) && ctx.Err() == nil {
		sv.log(ctx, slog.LevelWarn, "queue", slog.Any("err", errors.Join(odd, err)))
	}
}

// redo does the DEL in the file name. It does not end with ctx: nothing that has
// begun does when the server stops. It returns nil when the DEL is not owed any
// more.
func (sv *service) redo(ctx context.Context, name string) error {
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
		err = coded(http.StatusBadRequest, types.ErrInvalidEnvironmentVariables, "%s: not for a queue", o.command)
	}
	if err != nil {
		err = q.SetAside(name, err) // it would be refused for ever
	} else {
		o.replayed = true
		err = sv.operate(ctx, o, &ev, func([]byte, error) error { return nil })
	}
	sv.observe(ev, err)
	if err != nil {
		return fmt.Errorf("DEL of container %q, interface %q: %w", o.args.ContainerID, o.args.IfName, err)
	}
	return nil
}

// debt is the name of o's file in the queue, or empty where there can be none:
// only the runtime's commands meet there.
func (sv *service) debt(o *order, m *wire.Request) string {
	if sv.Queue == "" || o.more || o.command != cmdAdd && o.command != cmdDel {
		return ""
	}
	name, err := queue.Name(*m)
	if err != nil {
		return "" // a shim could not have queued it either
	}
	return name
}

// mayAdd returns why o must not begin because of what is in the queue. A runtime
// that has been told that its DEL is done may use the container's ID again, so an
// ADD must not come before a DEL that is older: it would be removed by it.
func (sv *service) mayAdd(o *order) error {
	if o.command != cmdAdd || o.debt == "" {
		return nil
	}
	owed, err := queue.In(sv.Queue).Owes(o.debt)
	if err != nil {
		return unreadable(err)
	}
	if owed {
		sv.backlog.want(o.debt)
		return errOwed
	}
	return nil
}

// paid reports whether o is a DEL of the queue that has been done by another
// since it was read. What it would remove now may be newer.
func (sv *service) paid(o *order) (bool, error) {
	if !o.replayed {
		return false, nil
	}
	owed, err := queue.In(sv.Queue).Owes(o.debt)
	return !owed && err == nil, err
}

// pay takes the DEL o, which has been done, out of the queue, whoever asked for
// it.
func (sv *service) pay(o *order) error {
	if o.command != cmdDel || o.debt == "" {
		return nil
	}
	if err := queue.In(sv.Queue).Pay(o.debt); err != nil {
		return fmt.Errorf("%w: %w", errUnpaid, err)
	}
	return nil
}

// readable returns why the queue cannot be read, if it cannot: then nobody
// knows which attachments must not be added.
func (sv *service) readable() error {
	if sv.Queue == "" {
		return nil
	}
	if err := queue.In(sv.Queue).Readable(); err != nil {
		return unreadable(err)
	}
	return nil
}
