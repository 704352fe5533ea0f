package resident

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/types"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/thick/wire"
)

const (
	// scheme begins the path of a resident's type. No file has a zero byte in
	// its path.
	scheme = "\x00resident/"

	// maxLate is after how many timeouts in a row a resident is disconnected.
	maxLate = 3
)

// Exec returns an Exec that calls residents for their types and base for all
// others. A nil base means the zero [delegate.Process].
//
// A call returns the plugin's stdout byte for byte, its [*types.Error], or an
// [*Error]. When its context ends, it returns and the handler's context ends as
// well, without waiting for the handler: the [Plugin] then runs the DEL of the
// same container after it.
//
// DEL, CHECK and GC wait for a resident that has just gone, see
// [Host.ReturnTimeout]. ADD and STATUS wait only while one registers. When the
// plugin was not called the error is a [delegate.ErrNotRun].
//
// A resident receives the CNI variables and those of a trace, and nothing else of
// the environment. It runs one call of a container at a time, even with
// [delegate.Invoker.Parallel]. The Exec is safe for concurrent use if base is.
func (h *Host) Exec(base invoke.Exec) invoke.Exec {
	if base == nil {
		base = &delegate.Process{}
	}
	return &executor{base, h}
}

type executor struct {
	invoke.Exec
	host *Host
}

// FindInPath returns a path that is no file's for a resident's type, and asks
// base for all others.
func (x *executor) FindInPath(plugin string, paths []string) (string, error) {
	if x.host.owns(plugin) {
		return scheme + plugin, nil
	}
	return x.Exec.FindInPath(plugin, paths)
}

// ExecPlugin calls the resident for a path of FindInPath, and also for one whose
// type a resident has claimed since.
func (x *executor) ExecPlugin(ctx context.Context, path string, stdin []byte, environ []string) ([]byte, error) {
	plugin, own := strings.CutPrefix(path, scheme)
	if !own {
		plugin = filepath.Base(path)
		x.host.use(operationOf(ctx), plugin) // from now on a resident that registers waits for it
		own = x.host.owns(plugin)
	}
	if own {
		c := newCommand(plugin, stdin, environ)
		out, err := x.host.call(ctx, c)
		if x.host.Called != nil {
			x.host.Called(plugin, c.Env["CNI_COMMAND"], err)
		}
		return out, err
	}
	return x.Exec.ExecPlugin(ctx, path, stdin, environ)
}

// A command is the message of a call.
type command struct {
	Type       string            `json:"type"`
	Env        map[string]string `json:"env"`
	Config     []byte            `json:"config,omitempty"`     // stdin
	DeadlineMs int64             `json:"deadlineMs,omitempty"` // how long the host waits
}

func newCommand(plugin string, stdin []byte, environ []string) *command {
	c := &command{Type: plugin, Env: make(map[string]string), Config: stdin}
	for _, kv := range environ {
		k, v, _ := strings.Cut(kv, "=")
		if strings.HasPrefix(k, "CNI_") || slices.Contains(wire.TraceEnv[:], k) {
			c.Env[k] = v
		}
	}
	return c
}

// errLate is the cause of a context that ended by a timeout of the host.
var errLate = errors.New("timeout of the host")

// call runs a command in the resident that serves its type.
func (h *Host) call(ctx context.Context, c *command) ([]byte, error) {
	op := c.Env["CNI_COMMAND"]
	patient := op == "DEL" || op == "CHECK" || op == "GC"
	patient = patient && time.Since(h.missedSince(c.Type)) < h.returnTimeout()
	waiting, cancel := context.WithTimeoutCause(ctx, h.returnTimeout(), errLate)
	defer cancel()
	for {
		e, err := h.await(waiting, c.Type, patient)
		if err != nil {
			return nil, &Error{Op: op, Which: c.Type, Err: notRun(h.advise(c.Type, err))}
		}
		out, err := h.ask(ctx, e, c)
		if !patient || !errors.Is(err, ErrGone) {
			return out, err
		}
	}
}

// ask runs a command in e.
func (h *Host) ask(ctx context.Context, e *entry, c *command) ([]byte, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, h.callTimeout(), errLate)
	defer cancel()
	if end, ok := ctx.Deadline(); ok {
		// A little later than here, so that the cancellation arrives first.
		c.DeadlineMs = max(0, time.Until(end).Milliseconds()) + 100
	}
	out, err := e.mux.call(ctx, callCommand, c)
	var said *types.Error
	switch {
	case err == nil || errors.As(err, &said):
		e.late.Store(0)
		return out, err
	case !errors.Is(context.Cause(ctx), errLate):
	case errors.Is(err, delegate.ErrNotRun):
		err = notRun(h.timeout())
	default:
		err = h.timeout()
		if e.late.Add(1) >= maxLate {
			h.leave(e, fmt.Errorf("%w, %d times in a row", ErrTimeout, maxLate))
		}
	}
	return nil, &Error{Op: c.Env["CNI_COMMAND"], Which: e.String(), Err: err}
}

func (h *Host) timeout() error {
	return fmt.Errorf("%w (%v): %w", ErrTimeout, h.callTimeout(), context.DeadlineExceeded)
}
