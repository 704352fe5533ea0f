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
	once    bool // try once
	leave   bool // without a daemon it is left to Away or to the Queue

	asked  bool  // Away has been called, or cannot be
	undone error // why Away could not do it
}

func (c *Client) call(path, command string, a *skel.CmdArgs) *call {
	return &call{
		client:  c,
		command: command,
		args:    a,
		socket:  c.socket(path, a),
		path:    path,
		request: wire.Request{Env: c.environment(command, a), Config: a.StdinData, APIVersion: wire.Version},
	}
}

// do sends the command and returns its result.
func (k *call) do(ctx context.Context) (types.Result, error) {
	r, err := k.send(ctx)
	if err != nil || r == nil {
		return nil, err
	}
	return k.result(r)
}

// send sends the command until it gets a response with the status 200, and returns
// that. It returns nil for a DEL that Away has done or that is queued.
func (k *call) send(ctx context.Context) (*response, error) {
	if k.socket == "" {
		return nil, k.fail(errNoSocket)
	}
	limit := k.client.timeout()
	if k.once {
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
		if k.leave && errors.Is(err, ErrAway) {
			if done, err := k.away(ctx); done {
				return nil, err
			}
			switch {
			case k.client.Queue == "" && k.undone != nil:
				return nil, k.undone
			case k.client.Queue == "":
			case rest(untilQueued, pause, -1):
				continue
			case ctx.Err() != nil:
				continue
			default:
				conn, err = k.queue(ctx)
			}
		}
		var r *response
		if conn != nil {
			r, err = k.exchange(ctx, conn)
		}
		if err == nil && (r == nil || r.status == 200) {
			return r, nil
		}
		hint := time.Duration(-1)
		again := k.repeatable(err)
		if r != nil {
			hint, again, err = r.retryAfter, r.status == 503, k.refusal(r)
		}
		if !again || k.once {
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
	switch {
	case errors.Is(err, ErrAway):
		return !k.leave // such a DEL has been queued, or cannot be
	case errors.Is(err, ErrLost):
		return k.command != "ADD"
	}
	return errors.Is(err, errBusy)
}

// away calls Away, once. When Away has done the DEL, away also removes one of the
// attachment that is queued.
func (k *call) away(ctx context.Context) (done bool, err error) {
	if k.client.Away == nil || k.asked {
		return false, nil
	}
	k.asked = true
	a := k.effective()
	if a == nil {
		return false, nil
	}
	if done, err = k.client.Away(ctx, a); !done {
		k.undone = err
		return false, nil
	}
	if err == nil && k.client.Queue != "" {
		name, nameErr := queue.Name(k.request)
		if nameErr == nil {
			err = queue.In(k.client.Queue).Remove(name)
		}
		if err != nil {
			err = k.fail(fmt.Errorf("detached, but the queued DEL cannot be removed: %w", err))
		}
	}
	return true, err
}

// effective returns the arguments with the configuration that the daemon would use,
// or nil if that is not known.
func (k *call) effective() *skel.CmdArgs {
	a := *k.args
	if k.client.Queue == "" {
		return &a
	}
	over, err := override.Parse(queue.In(k.client.Queue).Override())
	if err == nil {
		a.StdinData, err = over.Apply(a.StdinData)
	}
	if err != nil {
		return nil
	}
	return &a
}

// queue writes the DEL to the queue. If the daemon has come meanwhile, queue writes
// nothing and returns a connection.
func (k *call) queue(ctx context.Context) (conn *net.UnixConn, err error) {
	if a := k.effective(); a != nil && k.client.Recorded != nil {
		at, known := k.client.Recorded(ctx, a)
		if k.request.Recorded = at; known && at.IsZero() {
			k.request.Unrecorded = time.Now()
		}
	}
	err = queue.In(k.client.Queue).Put(ctx, k.request, func() (bool, error) {
		var err error
		conn, err = dial(k.socket)
		if errors.Is(err, ErrAway) {
			return false, nil
		}
		return err == nil, err
	})
	if err != nil && k.undone != nil {
		err = fmt.Errorf("%w; without the daemon: %w", err, k.undone)
	}
	return conn, err
}

// exchange sends the command over conn, returns the response and closes conn.
func (k *call) exchange(ctx context.Context, conn *net.UnixConn) (*response, error) {
	text, err := message(ctx, k.path, k.request)
	if err != nil {
		_ = conn.Close() // nothing was written
		return nil, err
	}
	undo := k.client.undoTimeout()
	if k.once {
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

// fail returns an Error of the command.
func (k *call) fail(err error) error {
	e := &Error{Command: k.command, Socket: k.socket, Err: err}
	if k.request.Env["CNI_CONTAINERID"] != "" {
		e.ContainerID, e.IfName = k.args.ContainerID, k.args.IfName
	}
	return e
}
