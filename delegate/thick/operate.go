package thick

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"reflect"
	"time"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/metacni/metacni/delegate/thick/wire"
	"github.com/metacni/metacni/status"
)

// An operation is an accepted order.
type operation struct {
	*order
	commands *Commands // nil until the operation runs
	cancel   context.CancelCauseFunc
	reply    reply
	replied  bool
}

// A reply sends the outcome of an operation to its client. It is called once. A
// success is sent while the operation still has the turn of its container,
// because an ADD is undone if its result does not arrive. An error is sent after
// the turn has ended. Only an ADD has a body.
type reply func(body []byte, err error) error

// operate executes o and returns its error. The context client ends when the
// client has gone. operate sets Queued of ev.
func (sv *service) operate(client context.Context, o *order, ev *Event, answer reply) error {
	ctx := context.WithValue(context.WithoutCancel(client), traceKey{}, o.trace)
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(client, func() { cancel(errGone) })()
	ctx, stop := context.WithDeadlineCause(ctx, ev.Start.Add(o.timeout), errDeadline)
	defer stop()

	op := &operation{order: o, cancel: cancel, reply: answer}
	if err := sv.flight.begin(op); err != nil {
		err = o.stop(http.StatusServiceUnavailable, err, nil)
		_ = answer(nil, err)
		return err
	}
	defer sv.flight.leave(op)
	err := sv.inTurn(ctx, client, op, ev)
	if err != nil && !op.replied {
		_ = answer(nil, err)
	}
	return err
}

// inTurn runs op once it has the turn of its container and then a place among
// those that run. In this order it takes no place while it waits for its
// container.
func (sv *service) inTurn(ctx, client context.Context, op *operation, ev *Event) error {
	l := sv.limiter(op.order)
	if !l.admit() {
		return op.stop(http.StatusServiceUnavailable, errFull, nil)
	}
	defer l.leave()
	waitCtx, cancel := context.WithTimeoutCause(ctx, sv.queueTimeout(), errLate)
	defer cancel()
	if op.ofContainer() {
		turn := sv.containers.LineUp(op.args.ContainerID, claim{op.order, op.cancel}, func(earlier claim) {
			if op.supersedes(earlier.order) {
				earlier.cancel(errSuperseded)
			}
		})
		defer turn.Leave()
		if err := turn.Wait(waitCtx); err != nil {
			return op.unbegun(err)
		}
	}
	if err := l.acquire(waitCtx); err != nil {
		return op.unbegun(err)
	}
	defer l.release()
	if ctx.Err() != nil {
		return op.unbegun(context.Cause(ctx))
	}
	ev.Queued = time.Since(ev.Start)
	if err := sv.mayAdd(op.order); err != nil {
		return op.stop(http.StatusServiceUnavailable, err, nil)
	}
	if op.replayed {
		if done, err := sv.stale(op.order, time.Time{}); done || err != nil {
			return err
		}
		ctx = context.WithValue(ctx, staleKey{}, func(recorded time.Time) (bool, error) { return sv.stale(op.order, recorded) })
	}
	return sv.perform(ctx, client, op)
}

// unbegun returns the error of op, which has done nothing, because of why. Its
// HTTP status is 503 if the client may send the request again, which is pointless
// after a DEL.
func (op *operation) unbegun(why error) error {
	code := http.StatusServiceUnavailable
	switch {
	case errors.Is(why, errSuperseded):
		code = http.StatusInternalServerError
	case errors.Is(why, errGone):
		code = statusGone
	}
	return op.stop(code, why, nil)
}

// perform runs op. It undoes an ADD if nobody else would.
func (sv *service) perform(ctx, client context.Context, op *operation) error {
	body, err := sv.call(ctx, op)
	if err == nil {
		err = sv.dequeue(op.order)
	}
	if err == nil {
		err = op.hand(client, body)
	}
	if err == nil {
		return nil
	}
	var undone error
	if op.command == cmdAdd && unknown(err) {
		undone = sv.undo(ctx, op)
	}
	switch why := context.Cause(ctx); {
	case errors.Is(err, errUnheard):
		err = &fault{statusGone, fmt.Errorf("%s: %w", op, err)}
	case errors.Is(why, errGone):
		err = op.stop(statusGone, why, err)
	case why != nil:
		err = op.stop(http.StatusInternalServerError, why, err)
	case own(err):
		err = fmt.Errorf("%s: %w", op, err)
	}
	if undone != nil {
		sv.log(ctx, slog.LevelError, "undoing an ADD failed", slog.String("operation", op.String()), slog.Any("err", undone), slog.Any("cause", err))
		err = fmt.Errorf("%w; undo: %w", err, undone)
	}
	return err
}

// hand replies with the body. A result for a client that has gone is an error.
func (op *operation) hand(client context.Context, body []byte) error {
	if op.command == cmdAdd && client.Err() != nil {
		return fmt.Errorf("%w: %w", errUnheard, errGone)
	}
	op.replied = true
	if err := op.reply(body, nil); err != nil {
		return fmt.Errorf("%w: %w", errUnheard, err)
	}
	return nil
}

// own reports whether err was made by this package because of what the plugin
// did.
func own(err error) bool {
	var p *panicError
	var r *resultError
	return errors.As(err, &p) || errors.As(err, &r) || errors.Is(err, errNotDequeued)
}

// unknown reports whether an ADD that ended with err may have left something that
// the plugin has not undone.
func unknown(err error) bool { return errors.Is(err, errUnheard) || own(err) }

// call calls the plugin for op. body is the message that answers an ADD.
func (sv *service) call(ctx context.Context, op *operation) (body []byte, err error) {
	err = sv.guarded(ctx, op, func(ctx context.Context, a *skel.CmdArgs) error {
		if op.command == cmdStatus {
			if err := sv.notReady(ctx); err != nil {
				if !own(err) {
					err = fmt.Errorf("%s: not ready: %w", op, err)
				}
				return status.NotReady(err)
			}
		}
		result, err := op.commands.run(ctx, op.command, a)
		if err == nil && op.command == cmdAdd {
			body, err = encode(result)
		}
		return err
	})
	return body, err
}

// undo removes what the ADD op did, within UndoTimeout.
func (sv *service) undo(ctx context.Context, op *operation) error {
	if op.commands == nil {
		return nil // the plugin was not called
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), sv.undoTimeout())
	defer cancel()
	return sv.guarded(ctx, op, func(ctx context.Context, a *skel.CmdArgs) error {
		_, err := op.commands.run(ctx, cmdDel, a)
		return err
	})
}

// guarded calls f within Begin, with arguments that f may change. It logs a
// panic and returns it as an error.
func (sv *service) guarded(ctx context.Context, op *operation, f func(context.Context, *skel.CmdArgs) error) error {
	err := guard(func() error {
		ctx := ctx
		if sv.Begin != nil && op.command != cmdStatus {
			var end func()
			ctx, end = sv.Begin(ctx)
			defer end()
		}
		if op.commands == nil {
			c := sv.Commands
			if op.more {
				c = sv.Attach(op.with)
			}
			op.commands = &c
		}
		a := op.args
		a.StdinData = bytes.Clone(a.StdinData)
		return f(ctx, &a)
	})
	var p *panicError
	if errors.As(err, &p) {
		sv.log(ctx, slog.LevelError, "the plugin panicked", slog.String("operation", op.String()), slog.Any("value", p.value), slog.String("stack", string(p.stack)))
	}
	return err
}

// encode returns the message with the result.
func encode(result types.Result) ([]byte, error) {
	if v := reflect.ValueOf(result); !v.IsValid() || v.Kind() == reflect.Pointer && v.IsNil() {
		return nil, &resultError{errEmpty}
	}
	result, err := result.GetAsVersion(types100.ImplementedSpecVersion)
	if err != nil {
		return nil, &resultError{err}
	}
	raw, err := json.Marshal(result)
	if err != nil {
		return nil, &resultError{err}
	}
	body, err := json.Marshal(wire.Response{Result: raw})
	if err != nil {
		return nil, &resultError{err}
	}
	if len(body) > wire.MaxBody {
		return nil, &resultError{errTooLong}
	}
	return body, nil
}
