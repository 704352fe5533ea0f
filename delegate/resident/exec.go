package resident

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/types"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/thick/wire"
)

const (
	// scheme makes a type a path that is no file's: none has a zero byte.
	scheme = "\x00resident/"

	// maxLate is after how many timeouts in a row a resident is closed.
	maxLate = 3
)

// Exec returns an Exec that hands calls of the types that residents serve to
// these, and all others to base; nil is the zero [delegate.Process].
//
// A call returns what the plugin printed, byte for byte, or its
// [*types.Error], or an [*Error]. When its context ends the handler's context
// does too, the connection stays, and what the resident does about it is not
// waited for: a [Plugin] has the DEL of the same container wait for it.
//
// DEL, CHECK and GC wait for a resident that has just gone, see
// [Host.ReturnTimeout]; ADD and STATUS wait only while one joins. A resident that
// was not there, or could not be asked, has done nothing: then there is a
// [delegate.ErrNotRun] in the error. Of the environment the
// resident receives the variables of the specification and of a trace.
//
// It is safe for concurrent use as far as base is. A [Plugin] does one call of
// a container at a time, also with [delegate.Invoker.Parallel].
func (r *Host) Exec(base invoke.Exec) invoke.Exec {
	if base == nil {
		base = &delegate.Process{}
	}
	return &executor{base, r}
}

type executor struct {
	invoke.Exec
	host *Host
}

// FindInPath returns a path that no file has for a type that is a resident's,
// and asks the Exec below for any other.
func (x *executor) FindInPath(plugin string, paths []string) (string, error) {
	if x.host.owns(plugin) {
		return scheme + plugin, nil
	}
	return x.Exec.FindInPath(plugin, paths)
}

// ExecPlugin calls the resident for what FindInPath has returned for its type,
// and for what has become a resident's since.
func (x *executor) ExecPlugin(ctx context.Context, path string, stdin []byte, environ []string) ([]byte, error) {
	plugin, own := strings.CutPrefix(path, scheme)
	if !own {
		plugin = filepath.Base(path)
		x.host.use(operationOf(ctx), plugin) // a resident that comes from now on waits for it
		own = x.host.owns(plugin)
	}
	if own {
		return x.host.call(ctx, plugin, stdin, environ)
	}
	return x.Exec.ExecPlugin(ctx, path, stdin, environ)
}

// errLate is why the context of a call ends that takes too long.
var errLate = errors.New("too late")

// call has the resident of a type do one command.
func (r *Host) call(ctx context.Context, plugin string, stdin []byte, environ []string) ([]byte, error) {
	m := message(stdin, environ)
	command := m.Env["CNI_COMMAND"]
	patient := command == "DEL" || command == "CHECK" || command == "GC"
	patient = patient && time.Since(r.missedSince(plugin)) < r.returnTimeout()
	waiting, cancel := context.WithTimeoutCause(ctx, r.returnTimeout(), errLate)
	defer cancel()
	for {
		e, err := r.await(waiting, plugin, patient)
		if err != nil {
			return nil, &Error{Op: command, Which: plugin, Err: notRun(r.advise(plugin, err))}
		}
		out, err := r.ask(ctx, e, plugin, m)
		if !patient || !errors.Is(err, ErrGone) {
			return out, err
		}
	}
}

// ask has e do one command, as the plugin of a type.
func (r *Host) ask(ctx context.Context, e *entry, plugin string, m *wire.Request) ([]byte, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, r.callTimeout(), errLate)
	defer cancel()
	if end, ok := ctx.Deadline(); ok {
		// A little later than here: it is to hear from us that the time is up,
		// and not to answer that it is.
		m.DeadlineMs = max(0, time.Until(end).Milliseconds()) + 100
	}
	out, err := e.call(ctx, plugin, m, r.maxStdout())
	var said *types.Error
	switch late := errors.Is(context.Cause(ctx), errLate); {
	case err == nil || errors.As(err, &said):
		e.late.Store(0)
		return out, err
	case late:
		err = r.tooLate(e, err)
	case ctx.Err() != nil && !errors.Is(err, ctx.Err()):
		err = fmt.Errorf("%w: %w", err, ended(ctx))
	}
	return nil, &Error{Op: m.Env["CNI_COMMAND"], Which: e.String(), Err: err}
}

// tooLate is what becomes of a call that e has not answered in time, and of e
// when that has happened too often.
func (r *Host) tooLate(e *entry, err error) error {
	unasked := errors.Is(err, delegate.ErrNotRun)
	err = fmt.Errorf("%w (%v): %w", ErrTimeout, r.callTimeout(), context.DeadlineExceeded)
	if unasked {
		return notRun(err)
	}
	if e.late.Add(1) >= maxLate {
		r.leave(e, fmt.Errorf("%w, %d times in a row", ErrTimeout, maxLate))
	}
	return err
}

// call has e do m in its turn.
func (e *entry) call(ctx context.Context, plugin string, m *wire.Request, limit int) ([]byte, error) {
	release, err := e.link.slot(ctx)
	if err != nil {
		return nil, notRun(err)
	}
	defer release()
	return e.link.call(ctx, plugin, m, limit)
}

// message makes a message of what a process would be given.
func message(stdin []byte, environ []string) *wire.Request {
	m := &wire.Request{Env: make(map[string]string), Config: stdin, APIVersion: wire.Version}
	for _, kv := range environ {
		k, v, _ := strings.Cut(kv, "=")
		if strings.HasPrefix(k, "CNI_") || k == wire.TraceEnv[0] || k == wire.TraceEnv[1] || k == wire.TraceEnv[2] {
			m.Env[k] = v
		}
	}
	return m
}
