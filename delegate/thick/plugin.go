package thick

import (
	"bytes"
	"context"
	"io"
	"time"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/types/create"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/plugin"
)

// staleKey is the key of the context of a DEL from the queue: the value is the function
// for [plugin.Process.Stale].
type staleKey struct{}

// CommandsOf returns the [Commands] of p. For each command the server calls
// process, from many goroutines at once, and runs p with the Process it returns.
// The server receives what p prints in place of Stdout. The result of an ADD may
// be of any version of the specification; if it cannot be read, the ADD fails
// with code 6 and the server undoes it. What other commands print is dropped.
//
// Append [Trace] to the Env of the Process, so that the plugins that p runs get
// the trace of the request.
func CommandsOf(p plugin.Plugin, process func(ctx context.Context) plugin.Process) Commands {
	do := func(ctx context.Context, command delegate.Command, a *skel.CmdArgs, stdout io.Writer) error {
		its := process(ctx)
		its.Stdout = stdout
		its.Stale, _ = ctx.Value(staleKey{}).(func(time.Time) (bool, error))
		return p.Do(ctx, its, command, *a)
	}
	silent := func(command delegate.Command) func(context.Context, *skel.CmdArgs) error {
		return func(ctx context.Context, a *skel.CmdArgs) error { return do(ctx, command, a, io.Discard) }
	}
	return Commands{
		Add: func(ctx context.Context, a *skel.CmdArgs) (types.Result, error) {
			var out bytes.Buffer
			if err := do(ctx, delegate.CommandAdd, a, &out); err != nil {
				return nil, err
			}
			return parse(out.Bytes())
		},
		Check:  silent(delegate.CommandCheck),
		Del:    silent(delegate.CommandDel),
		GC:     silent(delegate.CommandGC),
		Status: silent(delegate.CommandStatus),
	}
}

// parse returns the printed result.
func parse(printed []byte) (types.Result, error) {
	if text := bytes.TrimSpace(printed); len(text) == 0 || string(text) == "null" {
		return nil, invalid(errEmpty)
	}
	r, err := create.CreateFromBytes(printed)
	if err != nil {
		return nil, invalid(err)
	}
	return r, nil
}
