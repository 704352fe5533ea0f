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

// replay does the DELs of the queue, first those in begin, until ctx ends. When those that
// have begun have ended, it lets another daemon read the queue and returns. It reads the
// queue again from time to time, because a shim may fail to connect although the server is
// there.
func (sv *service) replay(ctx context.Context, begin []*try) {
	defer sv.reader.Close()
	var running sync.WaitGroup
	defer running.Wait()
	for ; ctx.Err() == nil; begin = sv.relist(ctx) {
		for _, t := range begin {
			turn := sv.replays.lineUp(0) // in the order of the queue
			running.Go(func() { sv.retry(ctx, t, turn) })
		}
		pause := longestPause
		if sv.backlog.failed() != nil {
			pause = firstPause
		}
		rest(ctx, pause, sv.backlog.wake)
	}
}

// relist reads the queue, if no other daemon does, and returns the DELs that are new.
func (sv *service) relist(ctx context.Context) []*try {
	limited, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	names, odd, err := sv.reader.List(limited)
	begin, news := sv.backlog.listed(names, odd, err)
	if news && ctx.Err() == nil {
		sv.log(ctx, slog.LevelWarn, "reading queued DELs failed", slog.Any("err", errors.Join(odd, err)))
	}
	return begin
}

// retry tries to do a DEL until it is not queued any more, or ctx ends. DELs that have
// failed least often have the first turn, so that one that hangs does not delay the
// others.
func (sv *service) retry(ctx context.Context, t *try, turn *waiter) {
	pause := firstPause
	for failed := 1; sv.replays.wait(ctx, turn) == nil; failed++ {
		err := ctx.Err()
		if err == nil {
			err = sv.replayOne(ctx, t.name)
		}
		sv.replays.release()
		if sv.backlog.tried(t, err) && ctx.Err() == nil {
			sv.log(ctx, slog.LevelWarn, "replaying a queued DEL failed", slog.Any("err", err))
		}
		if err == nil {
			return
		}
		if rest(ctx, pause, t.wanted) {
			rest(ctx, firstPause, nil)
		}
		if ctx.Err() != nil {
			return
		}
		pause = min(2*pause, longestPause)
		turn = sv.replays.lineUp(failed)
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
	op := &operation{uid: -1, start: time.Now(), deliver: func([]byte) error { return nil }}
	op.order, err = decode(wire.PathCNI, &m, nil, sv.override)
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
