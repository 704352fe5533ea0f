package resident

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/thick/wire"
	"github.com/metacni/metacni/internal/fault"
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
// A call returns the plugin's stdout byte for byte, its [*types.Error], or an error
// of the connection. When its context ends, it returns and the handler's context ends
// as well, without waiting for the handler: the [Resident] then runs the DEL of the
// same container after it.
//
// DEL, CHECK and GC wait for a resident that has just gone, see
// [Host.ReturnTimeout]. ADD and STATUS wait only while one registers. When the
// plugin was not called the error is a [delegate.ErrNotRun].
//
// A resident receives the CNI variables and those of a trace, and nothing else of
// the environment. It runs one call of a container at a time, even with
// [delegate.Invoker.Parallel]. The Exec is safe for concurrent use if base is.
func (h *Host) Exec(base delegate.Exec) delegate.Exec {
	if base == nil {
		base = &delegate.Process{}
	}
	return &executor{base, h}
}

type executor struct {
	delegate.Exec
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

// call runs a command in the resident that serves its type.
func (h *Host) call(ctx context.Context, c *command) ([]byte, error) {
	var patience time.Duration
	switch c.Env["CNI_COMMAND"] {
	case "DEL", "CHECK", "GC":
		patience = h.returnTimeout()
	}
	waiting, cancel := context.WithTimeoutCause(ctx, h.returnTimeout(), errLate)
	defer cancel()
	for {
		e, err := h.await(waiting, c.Type, patience)
		if err != nil {
			if e == nil && h.StateDir != "" && !h.notes().released(c.Type) {
				err = fmt.Errorf("%w (start it; or, to run an executable of this type instead, remove %s)", err, filepath.Join(h.StateDir, c.Type))
			}
			return nil, fault.Of("resident plugin", c.Type, notRun(err))
		}
		out, err := h.ask(ctx, e, c)
		if patience == 0 || !errors.Is(err, errGone) {
			return out, err
		}
	}
}

// ask runs a command in e.
func (h *Host) ask(ctx context.Context, e *entry, c *command) ([]byte, error) {
	var out []byte
	err := e.call(ctx, h.callTimeout(), methodCommand, c, &out)
	h.edit(e, func() { e.calls-- })
	var said *types.Error
	switch {
	case err == nil || errors.As(err, &said):
		e.late.Store(0)
		return out, err
	case errors.Is(err, errTimeout) && e.late.Add(1) >= maxLate:
		e.fail(fmt.Errorf("%w, %d times in a row", errTimeout, maxLate))
	}
	return nil, fault.Of("resident plugin", e.String(), err)
}
