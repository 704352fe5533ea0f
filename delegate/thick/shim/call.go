package shim

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"time"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"

	"github.com/metacni/metacni/delegate/thick/internal/override"
	"github.com/metacni/metacni/delegate/thick/internal/queue"
	"github.com/metacni/metacni/delegate/thick/wire"
	"github.com/metacni/metacni/internal/cause"
)

const (
	onceTimeout = 2 * time.Second // of a STATUS, which is tried once
	firstPause  = 50 * time.Millisecond
	maxPause    = time.Second
)

// A call is one command that is sent to the daemon.
type call struct {
	client  *Client
	command string
	args    *skel.CmdArgs
	path    string
	request wire.Request

	asked   bool   // Away was asked to do the DEL
	undone  error  // why Away could not
	version string // of the result, if the configuration has none and the daemon says it
}

func (c *Client) call(command string, a *skel.CmdArgs, with *wire.Attributes) *call {
	path := wire.PathCNI
	if with != nil {
		path = wire.PathAttach
	}
	return &call{
		client:  c,
		command: command,
		args:    a,
		path:    path,
		request: wire.Request{Env: c.environment(command, a), Config: a.StdinData, Attributes: with, APIVersion: wire.Version},
	}
}

// do sends the command until the daemon has done or refused it, and returns its result:
// none for a DEL that Away has done or that is queued.
func (k *call) do(ctx context.Context) (types.Result, error) {
	if !filepath.IsAbs(k.client.Socket) {
		return nil, k.fail(errSocketPath)
	}
	limit, once := k.client.timeout(), k.command == "STATUS"
	if once {
		limit = min(limit, onceTimeout)
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	patience, cancel := context.WithTimeout(ctx, cmp.Or(k.client.Wait, 30*time.Second))
	defer cancel()
	untilQueued, cancel := context.WithTimeout(ctx, cmp.Or(k.client.QueueWait, 2*time.Second))
	defer cancel()
	for pause := firstPause; ; pause = min(2*pause, maxPause) {
		if ctx.Err() != nil {
			return nil, k.fail(cause.Of(ctx))
		}
		r, err := k.exchange(ctx)
		if errors.Is(err, errAway) && k.delOfRuntime() {
			if left, err := k.leave(ctx, err, func() bool { return rest(untilQueued, pause, -1) }); left {
				return nil, err
			}
			continue
		}
		hint, again := time.Duration(-1), errors.Is(err, errAway) || errors.Is(err, errBusy) || errors.Is(err, errLost) && k.command != "ADD"
		switch {
		case r != nil && r.status == 200:
			return k.result(r)
		case r != nil:
			hint, again, err = r.retryAfter, r.status == 503, k.refusal(r)
		}
		if !again || once {
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

// delOfRuntime reports whether k is a DEL that the runtime sends: not of one more network, nor
// of a step, whose callers can ask again.
func (k *call) delOfRuntime() bool {
	return k.command == "DEL" && k.path == wire.PathCNI && k.request.Step() == ""
}

// leave has a DEL done without the daemon, which is away: by Away, or by the next daemon,
// once wait reports that the DEL need not wait for one any longer. left is false if a daemon
// may be there.
func (k *call) leave(ctx context.Context, away error, wait func() bool) (left bool, err error) {
	a := k.effective()
	if k.client.Away != nil && a != nil && !k.asked {
		k.asked = true
		done, err := k.client.Away(ctx, a)
		if done {
			return true, k.dequeued(err)
		}
		k.undone = err
	}
	if k.client.Queue == "" {
		return true, cmp.Or(k.undone, k.fail(away))
	}
	if wait() {
		return false, nil
	}
	if ctx.Err() != nil {
		return true, k.fail(cause.Of(ctx))
	}
	if a != nil && k.client.Recorded != nil {
		at, known := k.client.Recorded(ctx, a)
		if k.request.Recorded = at; known && at.IsZero() {
			k.request.Unrecorded = time.Now()
		}
	}
	queued, err := queue.In(k.client.Queue).Put(ctx, k.request, func() bool { return !isAway(k.client.Socket) })
	if err != nil && k.undone != nil {
		err = fmt.Errorf("%w; without the daemon: %w", err, k.undone)
	}
	if err != nil {
		return true, k.fail(err)
	}
	return queued, nil
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

// rest waits for pause, less a random part so that shims do not retry all at once,
// and not longer than the hint of the daemon. It returns false if ctx ends first.
func rest(ctx context.Context, pause, hint time.Duration) bool {
	if hint >= 0 {
		pause = min(pause, max(hint, firstPause))
	}
	select {
	case <-time.After(pause/2 + rand.N(pause/2)):
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
