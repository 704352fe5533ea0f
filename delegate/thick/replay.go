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
