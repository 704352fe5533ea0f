package history

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/metacni/metacni/delegate/lifecycle"
	"github.com/metacni/metacni/delegate/plugin"
	"github.com/metacni/metacni/delegate/thick"
	"github.com/metacni/metacni/netconf"
)

// playDaemon is the main of a daemon. It serves until SIGTERM, or the end of the test.
func playDaemon(m machine, process string, often int) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	untilEOF()
	p, err := newPlugins(m, process)
	if err != nil {
		return err
	}
	p.odds = p.often(often)
	p.die *= 4 // each is many operations that fail
	l, err := thick.Listen(ctx, nil, m.path("daemon", "socket"))
	if err != nil {
		if ctx.Err() != nil {
			return nil // another daemon has it
		}
		return err
	}
	s := &thick.Server{
		Plugin: plugin.Plugin{
			StateDir: m.path("state"),
			Prepare:  func(c *plugin.Call) error { c.Manager.LockTimeout = lockTimeout; return nil },
			Networks: func(_ context.Context, c *plugin.Call) (nets []netconf.Network, _ error) {
				return []netconf.Network{primary(c.Key())[0].Network}, nil // for GC
			},
			Add: func(ctx context.Context, c *plugin.Call) error {
				as := primary(c.Key())
				for i := range as {
					as[i].ContainerID, as[i].NetNS = c.ContainerID, c.Netns
				}
				return c.Add(ctx, lifecycle.Transaction{Plan: lifecycle.Plan(as...)})
			},
		},
		Process: func() plugin.Process {
			return plugin.Process{Exec: p, InterfaceNames: p.names, Stderr: os.Stderr}
		},
		Queue: m.path("queue"),
	}
	return s.Serve(ctx, l)
}
