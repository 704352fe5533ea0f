package main

import (
	"cmp"
	"context"
	"errors"
	"io"
	"path/filepath"
	"time"

	"github.com/containernetworking/cni/pkg/skel"

	"github.com/metacni/metacni/delegate/thick/shim"
	"github.com/metacni/metacni/delegate/thick/wire"
	"github.com/metacni/metacni/examples/internal/program"
)

const defaultQueueDir = "/var/lib/cni/multinet.queue"

// config is the shim's part of the configuration. All else is the daemon's.
type config struct {
	Name            string `json:"name"`
	DaemonSocketDir string `json:"daemonSocketDir"`
	DelQueueDir     string `json:"delQueueDir"`

	// DelQueueWait is how long a DEL waits for the daemon before it is left to
	// the next one, such as "500ms". Empty is the default of package shim.
	DelQueueWait string `json:"delQueueWait"`

	// DelPolicy says what becomes of a DEL while there is no daemon: "queue",
	// the default, leaves it to the next one; "exec" does it here, from the
	// records; "fail" is an error, so that the runtime tries again.
	DelPolicy string `json:"delPolicy"`
}

// A plugin is this program apart from its process.
type plugin struct {
	env    []string
	stdout io.Writer

	// del does a DEL without the daemon.
	del func(context.Context, *skel.CmdArgs) error
}

func (p *plugin) commands(ctx context.Context) skel.CNIFuncs {
	command := func(pick func(skel.CNIFuncs) func(*skel.CmdArgs) error) func(*skel.CmdArgs) error {
		return func(args *skel.CmdArgs) error {
			c, err := p.client(args)
			if err != nil {
				return err
			}
			return pick(c.Funcs(ctx))(args)
		}
	}
	return skel.CNIFuncs{
		Add:    command(func(f skel.CNIFuncs) func(*skel.CmdArgs) error { return f.Add }),
		Check:  command(func(f skel.CNIFuncs) func(*skel.CmdArgs) error { return f.Check }),
		Del:    command(func(f skel.CNIFuncs) func(*skel.CmdArgs) error { return f.Del }),
		GC:     command(func(f skel.CNIFuncs) func(*skel.CmdArgs) error { return f.GC }),
		Status: command(func(f skel.CNIFuncs) func(*skel.CmdArgs) error { return f.Status }),
	}
}

// client is what does a command as its configuration says.
func (p *plugin) client(args *skel.CmdArgs) (*shim.Client, error) {
	conf, err := program.Decode[config](args.StdinData)
	if err != nil {
		return nil, err
	}
	dir := cmp.Or(conf.DaemonSocketDir, wire.DefaultDir)
	if !filepath.IsAbs(dir) {
		return nil, program.Invalid(conf.Name, "daemonSocketDir", errors.New("not an absolute path"))
	}
	c := &shim.Client{Socket: filepath.Join(dir, wire.SocketName), Env: p.env, Stdout: p.stdout, UndoTimeout: program.UndoTimeout}
	switch conf.DelPolicy {
	case "", "queue":
		if c.QueueWait, err = conf.wait(); err != nil {
			return nil, err
		}
		c.Queue, err = program.StateDir(conf.Name, "delQueueDir", conf.DelQueueDir, defaultQueueDir)
	case "exec":
		c.Away = p.del
	case "fail":
	default:
		err = program.Invalid(conf.Name, "delPolicy", errors.New(`want "queue", "exec" or "fail"`))
	}
	return c, err
}

// wait is DelQueueWait as a [shim.Client] has it, for which 0 is the default.
func (c config) wait() (time.Duration, error) {
	if c.DelQueueWait == "" {
		return 0, nil
	}
	d, err := time.ParseDuration(c.DelQueueWait)
	if err != nil || d < 0 {
		return 0, program.Invalid(c.Name, "delQueueWait", errors.New("not a duration such as \"2s\""))
	}
	return cmp.Or(d, -1), nil
}
