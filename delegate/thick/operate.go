package thick

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/types/create"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/plugin"
	"github.com/metacni/metacni/delegate/thick/internal/queue"
	"github.com/metacni/metacni/delegate/thick/wire"
	"github.com/metacni/metacni/internal/fault"
	"github.com/metacni/metacni/status"
)

// decode checks m, which was sent to path. The keys of the Override replace those of its
// configuration, unless it is the one of one more network. Beside an error decode returns
// what it could decode.
func (sv *service) decode(path string, m *wire.Request, header http.Header) (order, error) {
	o := order{path: path, with: m.Attributes, patience: m.DeadlineMs}
	if o.with == nil {
		o.with = &wire.Attributes{}
	}
	name := m.Env["CNI_COMMAND"]
	if name == "" {
		return o, coded(http.StatusBadRequest, types.ErrInvalidEnvironmentVariables, "missing CNI_COMMAND")
	}
	if _, ok := timeouts[delegate.Command(name)]; !ok {
		return o, coded(http.StatusBadRequest, types.ErrInvalidEnvironmentVariables, "unknown CNI_COMMAND %.40q", name)
	}
	o.command = delegate.Command(name)
	o.trace = traceOf(m.Env, header)
	if err := o.environment(m.Env); err != nil {
		return o, err
	}
	if o.more() {
		return o, o.configuration(m.Config, nil)
	}
	if sv.Queue != "" && (o.command == delegate.CommandAdd || o.command == delegate.CommandDel) {
		o.entry, _ = queue.Name(*m) // otherwise a shim could not have queued it
	}
	return o, o.configuration(m.Config, sv.override)
}

// operate executes op and returns its error, which it has not sent to the client. The
// context client ends when the client has gone.
func (sv *service) operate(client context.Context, op *operation) error {
	limit := timeouts[op.command]
	if op.patience > 0 && op.patience < limit.Milliseconds() {
		limit = time.Duration(op.patience) * time.Millisecond
	}
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(client))
	op.cancel = cancel
	defer op.cancel(nil)
	defer context.AfterFunc(client, func() { op.cancel(errGone) })()
	op.gone = func() bool { return client.Err() != nil }
	ctx, stop := context.WithDeadlineCause(ctx, op.start.Add(limit), errDeadline)
	defer stop()

	if err := sv.flight.begin(op); err != nil {
		return op.stop(err, nil)
	}
	defer sv.flight.ops.leave(op)
	return sv.inTurn(ctx, op)
}

// inTurn runs op once it has the turn of its container and then a place among
// those that run. In this order it takes no place while it waits for its
// container. A DEL of the Queue has a place already.
func (sv *service) inTurn(ctx context.Context, op *operation) error {
	l := sv.limiter(op)
	if l != nil {
		if !l.admit() {
			return op.stop(errFull, nil)
		}
		defer l.leave()
	}
	waitCtx, cancel := context.WithTimeoutCause(ctx, waitTimeout, errLate)
	defer cancel()
	if op.ofContainer() {
		turn := sv.containers.LineUp(op.args.ContainerID, op, func(earlier *operation) {
			if op.supersedes(&earlier.order) {
				earlier.cancel(errSuperseded)
			}
		})
		defer turn.Leave()
		if err := turn.Wait(waitCtx); err != nil {
			return op.stop(err, nil)
		}
	}
	if l != nil {
		if err := l.wait(waitCtx); err != nil {
			return op.stop(err, nil)
		}
		defer l.release()
	}
	if ctx.Err() != nil {
		return op.stop(context.Cause(ctx), nil)
	}
	op.queued = time.Since(op.start)
	if err := sv.mayAdd(&op.order); err != nil {
		return op.stop(err, nil)
	}
	if op.replayed {
		if done, err := sv.stale(&op.order, time.Time{}); done || err != nil {
			return err
		}
	}
	return sv.perform(ctx, op)
}

// limiter returns the limiter for op.
func (sv *service) limiter(op *operation) *limiter {
	switch {
	case op.replayed:
		return nil
	case removes(op.command):
		return sv.del
	case op.command == delegate.CommandStatus:
		return sv.status
	}
	return sv.add
}

// perform runs op and answers a success. It undoes an ADD if nobody else would.
func (sv *service) perform(ctx context.Context, op *operation) error {
	body, err := sv.call(ctx, op, op.command)
	if err == nil {
		err = sv.dequeue(&op.order)
	}
	if err == nil {
		err = op.succeed(body)
	}
	if err == nil {
		return nil
	}
	var undone error
	if op.command == delegate.CommandAdd && unknown(err) {
		undone = sv.undo(ctx, op)
	}
	switch why := context.Cause(ctx); {
	case errors.Is(err, errUnheard):
		err = &answered{statusGone, fmt.Errorf("%s: %w", op, err)}
	case why != nil:
		err = op.stop(why, err)
	case own(err):
		err = fmt.Errorf("%s: %w", op, err)
	}
	if undone != nil {
		sv.log(ctx, slog.LevelError, "undoing an ADD failed", slog.String("operation", op.String()), slog.Any("err", undone), slog.Any("cause", err))
		err = fmt.Errorf("%w; undo: %w", err, undone)
	}
	return err
}

// succeed answers with the body. A result for a client that has gone is an error.
func (op *operation) succeed(body []byte) error {
	err := errGone
	if op.command != delegate.CommandAdd || !op.gone() {
		op.answered = true
		err = op.answer(reply{status: http.StatusOK, body: body})
	}
	if err != nil {
		return fmt.Errorf("%w: %w", errUnheard, err)
	}
	return nil
}

// stop returns the error of an operation that was ended, or not begun, because of
// why. err is the error of the command, or nil if nothing was begun. The HTTP status is
// 503 if the client may send the request again, which is pointless after a DEL.
func (op *operation) stop(why, err error) error {
	code := http.StatusServiceUnavailable
	switch {
	case errors.Is(why, errGone):
		code = statusGone
	case err != nil, errors.Is(why, errSuperseded):
		code = http.StatusInternalServerError
	}
	switch {
	case err == nil:
		err = fmt.Errorf("%s: %w", op, why)
	case !errors.Is(err, why):
		err = fmt.Errorf("%s: %w: %w", op, why, err)
	default:
		err = fault.With(types.ErrTryAgainLater, err)
	}
	if op.command == delegate.CommandStatus {
		err = status.NotReady(err)
	}
	return &answered{code, err}
}

// call calls the command c of the plugin for op, with arguments that the plugin may change.
// body is the message that answers an ADD.
func (sv *service) call(ctx context.Context, op *operation, c delegate.Command) (body []byte, err error) {
	err = sv.guarded(ctx, op.String(), func(ctx context.Context) error {
		if op.plugin == nil {
			its := sv.Plugin
			if op.more() {
				its = sv.Attach(op.with)
			}
			op.plugin = &its
		}
		if c == delegate.CommandStatus {
			if err := failed(sv.checks(ctx)); err != nil {
				if !own(err) {
					err = fmt.Errorf("%s: %w", op, err)
				}
				return status.NotReady(err)
			}
		}
		var process plugin.Process
		if sv.Process != nil {
			process = sv.Process()
		}
		var stdout bytes.Buffer
		process.Stdout, process.Env = &stdout, slices.Concat(process.Env, op.trace)
		if op.replayed {
			process.Stale = func(recorded time.Time) (bool, error) { return sv.stale(&op.order, recorded) }
		}
		a := op.args
		a.StdinData = bytes.Clone(a.StdinData)
		err := op.plugin.Do(ctx, process, c, a)
		if err == nil && c == delegate.CommandAdd {
			body, err = encode(stdout.Bytes())
		}
		return err
	})
	return body, err
}

// undo removes what the ADD op did, within UndoTimeout.
func (sv *service) undo(ctx context.Context, op *operation) error {
	if op.plugin == nil {
		return nil // it was not called
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), sv.undoTimeout())
	defer cancel()
	_, err := sv.call(ctx, op, delegate.CommandDel)
	return err
}

// observe tells the Observer of op, which ended with err.
func (sv *service) observe(op *operation, err error) {
	if sv.Observer == nil {
		return
	}
	sv.Observer(Event{
		Path: op.path, Command: string(op.command), Network: op.network,
		ContainerID: op.args.ContainerID, IfName: op.args.IfName, Args: op.args.Args,
		UID: op.uid, Replayed: op.replayed,
		Start: op.start, Queued: op.queued, Duration: time.Since(op.start),
		Status: httpStatus(err), Err: err,
	})
}

// encode returns the message with the result that an ADD has printed.
func encode(printed []byte) ([]byte, error) {
	if text := bytes.TrimSpace(printed); len(text) == 0 || string(text) == "null" {
		return nil, invalid(errEmpty)
	}
	var answer wire.Response
	var body []byte
	result, err := create.CreateFromBytes(printed)
	if err == nil {
		result, err = result.GetAsVersion(types100.ImplementedSpecVersion)
	}
	if err == nil {
		answer.Result, err = json.Marshal(result)
	}
	if err == nil {
		body, err = json.Marshal(answer)
	}
	if err == nil && len(body) > wire.MaxBody {
		err = errTooLong
	}
	if err != nil {
		return nil, invalid(err)
	}
	return body, nil
}
