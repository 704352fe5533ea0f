package thick

import (
	"bytes"
	"cmp"
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
	"github.com/metacni/metacni/delegate/lifecycle"
	"github.com/metacni/metacni/delegate/thick/internal/queue"
	"github.com/metacni/metacni/delegate/thick/wire"
	"github.com/metacni/metacni/internal/fault"
	"github.com/metacni/metacni/internal/turns"
	"github.com/metacni/metacni/status"
)

// decode checks m, which was sent to the Path of o, and sets the fields of o. The keys of the
// Override replace those of the configuration, unless it is the one of one more network. After
// an error o has what could be decoded.
func (sv *service) decode(o *operation, m *wire.Request, header http.Header) error {
	o.with, o.patience = cmp.Or(m.Attributes, &wire.Attributes{}), m.DeadlineMs
	name := m.Env["CNI_COMMAND"]
	if name == "" {
		return coded(http.StatusBadRequest, types.ErrInvalidEnvironmentVariables, "missing CNI_COMMAND")
	}
	if _, ok := timeouts[delegate.Command(name)]; !ok {
		return coded(http.StatusBadRequest, types.ErrInvalidEnvironmentVariables, "unknown CNI_COMMAND %.40q", name)
	}
	o.command = delegate.Command(name)
	o.trace = traceOf(m.Env, header)
	if err := o.environment(m.Env); err != nil {
		return err
	}
	if o.step = !o.more() && m.Step() != ""; o.more() || o.step {
		return o.configuration(m.Config, nil)
	}
	if sv.Queue != "" && (o.command == delegate.CommandAdd || o.command == delegate.CommandDel) {
		o.entry, _ = queue.Name(*m) // otherwise a shim could not have queued it
	}
	return o.configuration(m.Config, sv.override)
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
	if !removes(op.command) { // the runtime wants what it removes to be gone, also if it waits no longer
		defer context.AfterFunc(client, func() { op.cancel(errGone) })()
	}
	op.gone = func() bool { return client.Err() != nil }
	ctx, stop := context.WithDeadlineCause(ctx, op.Start.Add(limit), errDeadline)
	defer stop()

	if err := sv.flight.begin(op); err != nil {
		return op.stop(err, nil)
	}
	defer sv.flight.ops.leave(op)
	var err error
	if panicked := sv.guarded(ctx, op.String(), func(ctx context.Context) error {
		if sv.System != nil {
			op.process = sv.System()
		}
		op.process.Env = slices.Concat(op.process.Env, op.trace)
		if sv.Trace != nil {
			op.process = sv.Trace(op.process)
		}
		err = sv.inTurn(ctx, op)
		return nil
	}); panicked != nil {
		return fmt.Errorf("%s: %w", op, panicked)
	}
	return err
}

// inTurn runs op once it has the turn of its container and then a place among
// those that run. In this order it takes no place while it waits for its
// container. A DEL of the Queue has a place already. A step does not wait: the
// operation before it may wait for the lock of the program that sends the step.
func (sv *service) inTurn(ctx context.Context, op *operation) error {
	_, waited := op.process.Stages.Begin(ctx, delegate.StageQueue, op.event())
	refuse := func(why error) error {
		waited(why)
		return op.stop(why, nil)
	}
	l := sv.lane(op)
	if l != nil {
		leave, ok := l.Admit()
		if !ok {
			return refuse(errFull)
		}
		defer leave()
	}
	waitCtx, cancel := context.WithTimeoutCause(ctx, waitTimeout, errLate)
	defer cancel()
	if op.ofContainer() && !op.step {
		turn := sv.containers.LineUp(op.args.ContainerID, op, func(earlier *operation) {
			if op.supersedes(earlier) {
				earlier.cancel(errSuperseded)
			}
		})
		defer turn.Leave()
		if err := turn.Wait(waitCtx); err != nil {
			return refuse(err)
		}
	}
	if l != nil {
		leave, err := l.Enter(waitCtx)
		if err != nil {
			return refuse(err)
		}
		defer leave()
	}
	if ctx.Err() != nil {
		return refuse(context.Cause(ctx))
	}
	op.Queued = time.Since(op.Start)
	if err := sv.mayAdd(op); err != nil {
		return refuse(err)
	}
	waited(nil)
	if op.Replayed {
		if done, err := sv.stale(op, time.Time{}); done || err != nil {
			return err
		}
	}
	return sv.perform(ctx, op)
}

// lane returns the lane for op, or nil if it needs none.
func (sv *service) lane(op *operation) *turns.Lane {
	switch {
	case op.Replayed, op.step:
		return nil
	case op.command == delegate.CommandDel:
		return &sv.del
	case op.command == delegate.CommandGC:
		return &sv.gc
	case op.command == delegate.CommandStatus:
		return &sv.status
	}
	return &sv.add
}

// perform runs op and answers a success. It undoes an ADD if nobody else would.
func (sv *service) perform(ctx context.Context, op *operation) error {
	body, err := sv.call(ctx, op, op.command)
	if err == nil {
		err = sv.dequeue(op)
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

// succeed answers with the body. Only an ADD whose client has gone fails: nobody has its result.
func (op *operation) succeed(body []byte) error {
	err := errGone
	if op.command != delegate.CommandAdd || !op.gone() {
		op.answered = true
		err = op.answer(reply{status: http.StatusOK, body: body})
	}
	if err != nil && op.command == delegate.CommandAdd {
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
				err = status.NotReady(err)
				_, ended := op.process.Stages.Begin(ctx, delegate.StageCommand, op.event())
				ended(err)
				return err
			}
		}
		var stdout bytes.Buffer
		process := op.process
		process.Stdout = &stdout
		process.Timed = func(t lifecycle.Timing) { op.Timing = t }
		if op.Replayed {
			process.Stale = func(recorded time.Time) (bool, error) { return sv.stale(op, recorded) }
		}
		a := op.args
		a.StdinData = bytes.Clone(a.StdinData)
		err := op.plugin.Do(ctx, process, c, a)
		if err == nil && c == delegate.CommandAdd {
			body, err = encode(stdout.Bytes(), op.args.StdinData)
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
	e := op.Event
	e.Command, e.ContainerID, e.IfName, e.Args = string(op.command), op.args.ContainerID, op.args.IfName, op.args.Args
	e.Duration, e.Status, e.Err = time.Since(e.Start), httpStatus(err), err
	slowAfter := cmp.Or(sv.SlowAfter, 2*time.Second)
	e.Slow = op.command == delegate.CommandAdd && slowAfter > 0 && e.Duration > slowAfter
	sv.Observer(e)
}

// encode returns the message with the result that an ADD with the configuration conf has printed.
func encode(printed, conf []byte) ([]byte, error) {
	if text := bytes.TrimSpace(printed); len(text) == 0 || string(text) == "null" {
		return nil, invalid(errors.New("it is empty"))
	}
	var answer wire.Response
	var body []byte
	result, err := create.CreateFromBytes(printed)
	if err == nil {
		var given struct{ CNIVersion string }
		if _ = json.Unmarshal(conf, &given); given.CNIVersion == "" {
			answer.CNIVersion = result.Version()
		}
		result, err = result.GetAsVersion(types100.ImplementedSpecVersion)
	}
	if err == nil {
		answer.Result, err = json.Marshal(result)
	}
	if err == nil {
		body, err = json.Marshal(answer)
	}
	if err == nil && len(body) > wire.MaxBody {
		err = fmt.Errorf("it has more than %d bytes", wire.MaxBody)
	}
	if err != nil {
		return nil, invalid(err)
	}
	return body, nil
}
