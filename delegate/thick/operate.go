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

// An operation is an order that the server has taken on.
type operation struct {
	*order
	commands *Commands // nil until they have been asked for
	cancel   context.CancelCauseFunc
	reply    reply
	replied  bool
}

// A reply hands the outcome of an operation to its client. It is called once:
// with a nil error while the operation holds its container, as a result that
// does not get through is undone; with the error once it has let go of all but
// its place in the flight. body is empty but for an ADD.
type reply func(body []byte, err error) error

// operate does what o says for a client that is there until the context client
// ends, and returns what went wrong. Ev gets its times.
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

// inTurn runs op once it has its container and its turn, in this order: what
// waits for its container is in nobody's way.
func (sv *service) inTurn(ctx, client context.Context, op *operation, ev *Event) error {
	l := sv.lane(op.order)
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
	if paid, err := sv.paid(op.order); paid || err != nil {
		return err
	}
	return sv.perform(ctx, client, op)
}

// unbegun returns why op, which has done nothing, ended. What may be tried
// again is 503: not what a DEL has made pointless.
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

// perform runs op, and undoes an ADD that leaves something nobody knows of.
func (sv *service) perform(ctx, client context.Context, op *operation) error {
	body, err := sv.call(ctx, op)
	if err == nil {
		err = sv.pay(op.order)
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
		err = &fault{statusGone, fmt.Errorf("thick: %s: %w", op, err)}
	case errors.Is(why, errGone):
		err = op.stop(statusGone, why, err)
	case why != nil:
		err = op.stop(http.StatusInternalServerError, why, err)
	case own(err):
		err = fmt.Errorf("thick: %s: %w", op, err)
	}
	if undone != nil {
		sv.log(ctx, slog.LevelError, "undo", slog.String("operation", op.String()), slog.Any("err", undone), slog.Any("cause", err))
		err = fmt.Errorf("%w; undo: %w", err, undone)
	}
	return err
}

// hand replies with the body, but not with a result to a client that has gone.
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

// own reports whether err is this package's, of what a handler did.
func own(err error) bool {
	var p *panicError
	var r *resultError
	return errors.As(err, &p) || errors.As(err, &r) || errors.Is(err, errUnpaid)
}

// unknown reports whether an ADD that ended with err may have left something
// behind that it has not undone itself.
func unknown(err error) bool { return errors.Is(err, errUnheard) || own(err) }

// call has the plugin do what op says. body is the message that answers an
// ADD.
func (sv *service) call(ctx context.Context, op *operation) (body []byte, err error) {
	err = sv.guarded(ctx, op, func(ctx context.Context, a *skel.CmdArgs) error {
		if op.command == cmdStatus {
			if err := sv.notReady(ctx); err != nil {
				if !own(err) {
					err = fmt.Errorf("thick: %s: not ready: %w", op, err)
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

// undo removes what the ADD op did, on a budget of its own.
func (sv *service) undo(ctx context.Context, op *operation) error {
	if op.commands == nil {
		return nil // it did not get so far
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
		sv.log(ctx, slog.LevelError, "panic", slog.String("operation", op.String()), slog.Any("value", p.value), slog.String("stack", string(p.stack)))
	}
	return err
}

// encode returns the message that says result.
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
