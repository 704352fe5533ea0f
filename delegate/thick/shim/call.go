package shim

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"time"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"

	"github.com/metacni/metacni/delegate/thick/internal/override"
	"github.com/metacni/metacni/delegate/thick/internal/queue"
	"github.com/metacni/metacni/delegate/thick/wire"
	"github.com/metacni/metacni/internal/cause"
)

const (
	onceTimeout = 2 * time.Second // of a call that is tried once
	firstPause  = 50 * time.Millisecond
	maxPause    = time.Second
)

// A call is one command that is sent to the daemon.
type call struct {
	client  *Client
	command string
	args    *skel.CmdArgs
	socket  string
	path    string
	request wire.Request
	absence absence
}

// An absence says what a call does while the daemon is away.
type absence int

const (
	waits  absence = iota // for the daemon
	leaves                // the DEL to Away, or to the Queue
	fails                 // at once, also if the daemon is busy
)

func (c *Client) call(command string, a *skel.CmdArgs, with *wire.Attributes) *call {
	path := wire.PathCNI
	if with != nil {
		path = wire.PathAttach
	}
	return &call{
		client:  c,
		command: command,
		args:    a,
		socket:  c.socket(path, a),
		path:    path,
		request: wire.Request{Env: c.environment(command, a), Config: a.StdinData, Attributes: with, APIVersion: wire.Version},
	}
}

// do sends the command until the daemon has done or refused it, and returns its result:
// none for a DEL that Away has done or that is queued.
func (k *call) do(ctx context.Context) (types.Result, error) {
	if k.socket == "" {
		return nil, k.fail(errNoSocket)
	}
	limit := k.client.timeout()
	if k.absence == fails {
		limit = min(limit, onceTimeout)
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	patience, cancel := context.WithTimeout(ctx, k.client.wait())
	defer cancel()
	untilQueued, cancel := context.WithTimeout(ctx, k.client.queueWait())
	defer cancel()
	for pause := firstPause; ; pause = min(2*pause, maxPause) {
		if ctx.Err() != nil {
			return nil, k.fail(cause.Of(ctx))
		}
		conn, err := dial(k.socket)
		if k.absence == leaves && errors.Is(err, errAway) {
			var left bool
			if conn, left, err = k.leave(ctx, untilQueued, err); left {
				return nil, err
			}
		}
		var r *response
		if conn != nil {
			r, err = k.exchange(ctx, conn)
		}
		hint, again := time.Duration(-1), k.repeatable(err)
		switch {
		case r != nil && r.status == 200:
			return k.result(r)
		case r != nil:
			hint, again, err = r.retryAfter, r.status == 503, k.refusal(r)
		}
		if !again || k.absence == fails {
			return nil, k.outcome(err)
		}
		if !rest(patience, pause, hint) {
			if ctx.Err() != nil {
				err = fmt.Errorf("%w; last error: %w", cause.Of(ctx), err)
			}
			return nil, k.outcome(err)
		}
	}
}

// repeatable reports whether the command may be sent again after err.
func (k *call) repeatable(err error) bool {
	return errors.Is(err, errAway) || errors.Is(err, errBusy) || errors.Is(err, errLost) && k.command != "ADD"
}

// leave has a DEL done without the daemon, which is away: by Away, or by the next daemon,
// if none comes until the context untilQueued ends. If one comes, left is false, and
// leave returns a connection, or why there is none.
func (k *call) leave(ctx, untilQueued context.Context, away error) (conn *net.UnixConn, left bool, err error) {
	a := k.effective()
	var undone error
	if k.client.Away != nil && a != nil {
		done, err := k.client.Away(ctx, a)
		if done {
			return nil, true, k.dequeued(err)
		}
		undone = err
	}
	if k.client.Queue == "" {
		if undone == nil {
			undone = k.fail(away)
		}
		return nil, true, undone
	}
	for pause := firstPause; rest(untilQueued, pause, -1); pause = min(2*pause, maxPause) {
		if conn, err = dial(k.socket); !errors.Is(err, errAway) {
			return conn, false, err
		}
	}
	if ctx.Err() != nil {
		return nil, true, k.fail(cause.Of(ctx))
	}
	if a != nil && k.client.Recorded != nil {
		at, known := k.client.Recorded(ctx, a)
		if k.request.Recorded = at; known && at.IsZero() {
			k.request.Unrecorded = time.Now()
		}
	}
	err = queue.In(k.client.Queue).Put(ctx, k.request, func() (bool, error) {
		var err error
		conn, err = dial(k.socket)
		if errors.Is(err, errAway) {
			return false, nil
		}
		return err == nil, err
	})
	if err != nil && undone != nil {
		err = fmt.Errorf("%w; without the daemon: %w", err, undone)
	}
	return conn, conn == nil && err == nil, err
}

// dequeued removes a queued DEL of the attachment, which Away has detached unless there
// is an err.
func (k *call) dequeued(err error) error {
	if err != nil || k.client.Queue == "" {
		return err
	}
	name, err := queue.Name(k.request)
	if err != nil {
		return nil //nolint:nilerr // such a request cannot be queued
	}
	if err := queue.In(k.client.Queue).Remove(name); err != nil {
		return k.fail(fmt.Errorf("detached, but the queued DEL cannot be removed: %w", err))
	}
	return nil
}

// effective returns the arguments with the configuration that the daemon would use,
// or nil if that is not known.
func (k *call) effective() *skel.CmdArgs {
	a := *k.args
	if k.client.Queue == "" {
		return &a
	}
	over, err := override.Parse(queue.In(k.client.Queue).Override())
	if err == nil && len(over) > 0 {
		a.StdinData, err = over.Apply(a.StdinData)
	}
	if err != nil {
		return nil
	}
	return &a
}

// exchange sends the command over conn, returns the response and closes conn.
func (k *call) exchange(ctx context.Context, conn *net.UnixConn) (*response, error) {
	text, err := message(ctx, k.path, k.request)
	if err != nil {
		_ = conn.Close() // nothing was written
		return nil, err
	}
	undo := k.client.undoTimeout()
	if k.absence == fails {
		undo = 0
	}
	r, late, err := exchange(ctx, conn, text, undo)
	if err == nil && late && r.status == 200 && k.command == "ADD" {
		// The daemon has been told to cancel the ADD and may undo it.
		return nil, fmt.Errorf("%w: the result came too late", cause.Of(ctx))
	}
	return r, err
}

// rest waits for pause, less a random part so that shims do not retry all at once,
// and not longer than the hint of the daemon. It returns false if ctx ends first.
func rest(ctx context.Context, pause, hint time.Duration) bool {
	if hint >= 0 {
		pause = min(pause, max(hint, firstPause))
	}
	t := time.NewTimer(pause/2 + rand.N(pause/2))
	defer t.Stop()
	select {
	case <-t.C:
		return ctx.Err() == nil
	case <-ctx.Done():
		return false
	}
}

// outcome returns err as the caller of the Client gets it: unchanged if it is the
// daemon's.
func (k *call) outcome(err error) error {
	if said, ok := err.(*types.Error); ok { //nolint:errorlint // a wrapped one is not all of the error
		return said
	}
	return k.fail(err)
}
