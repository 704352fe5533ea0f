package delegatetest_test

import (
	"context"
	"errors"
	"io"

	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"

	"github.com/metacni/metacni/delegate/delegatetest"
	"github.com/metacni/metacni/delegate/plugin"
)

// callbacks returns the callbacks of a plugin whose main is made with package
// skel.
type callbacks func(ctx context.Context, exec invoke.Exec, environ []string, stdout io.Writer) skel.CNIFuncs

// plugin runs the callbacks as skel does: it reports the first *types.Error of an
// error, and a missing callback does nothing.
func (f callbacks) plugin() plugin.Plugin {
	command := func(pick func(skel.CNIFuncs) func(*skel.CmdArgs) error) func(context.Context, *plugin.Call) error {
		return func(ctx context.Context, c *plugin.Call) error {
			do := pick(f(ctx, c.Exec, c.Env, c.Stdout))
			if do == nil {
				return nil
			}
			err := do(&c.CmdArgs)
			if said := (*types.Error)(nil); errors.As(err, &said) {
				return said
			}
			return err
		}
	}
	return plugin.Plugin{
		Add:    command(func(f skel.CNIFuncs) func(*skel.CmdArgs) error { return f.Add }),
		Check:  command(func(f skel.CNIFuncs) func(*skel.CmdArgs) error { return f.Check }),
		Del:    command(func(f skel.CNIFuncs) func(*skel.CmdArgs) error { return f.Del }),
		GC:     command(func(f skel.CNIFuncs) func(*skel.CmdArgs) error { return f.GC }),
		Status: command(func(f skel.CNIFuncs) func(*skel.CmdArgs) error { return f.Status }),
	}
}

// program returns the callbacks for RunPlugin and Conform.
func (f callbacks) program() delegatetest.Program { return f.plugin().Execute }
