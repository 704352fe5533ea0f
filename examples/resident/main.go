// Resident is a CNI plugin that works both ways: executed for each command, and as
// a resident plugin, a long-running process that is called over a socket. Both
// ways it gives the addresses of its configuration. It keeps no state, so a
// command may come either way.
//
// The plugin is in plugin.go. This file chooses the way.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/containernetworking/cni/pkg/skel"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/plugin"
	"github.com/metacni/metacni/delegate/resident"
	"github.com/metacni/metacni/status"
)

// pluginType is the type that the plugin has in configurations.
const pluginType = "resident"

func main() {
	if os.Getenv("CNI_COMMAND") != "" {
		plugin.Main(addresses())
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := stay(ctx, os.Args, os.Environ(), os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, err)
		stop()
		os.Exit(1)
	}
}

// stay serves until ctx ends: the inherited connection of a launched process, or
// the socket in args.
func stay(ctx context.Context, args, environ []string, stderr io.Writer) error {
	flags := flag.NewFlagSet(args[0], flag.ContinueOnError)
	flags.SetOutput(stderr)
	socket := flags.String("socket", "/run/metacni/relay.sock", "register at this `path`")
	index := flags.String("index", "50", "two `digits`: the place among resident plugins")
	if err := flags.Parse(args[1:]); err != nil {
		return err
	}
	d := &resident.Plugin{
		Index: *index, Name: pluginType, Types: []string{pluginType}, Funcs: callbacks,
		Logger: slog.New(slog.NewTextHandler(stderr, &slog.HandlerOptions{Level: slog.LevelDebug})),
	}
	conn, launchedIndex, launchedName, err := resident.Inherited(environ)
	switch {
	case err != nil:
		return err
	case conn != nil:
		d.Index, d.Name = launchedIndex, launchedName
		return d.Serve(ctx, conn)
	}
	return d.Run(ctx, *socket)
}

func callbacks(ctx context.Context, stdout io.Writer) skel.CNIFuncs {
	do := func(command delegate.Command) func(*skel.CmdArgs) error {
		return func(a *skel.CmdArgs) error {
			return status.Error(addresses().Do(ctx, plugin.Process{Stdout: stdout}, command, *a))
		}
	}
	return skel.CNIFuncs{
		Add: do(delegate.CommandAdd), Check: do(delegate.CommandCheck), Del: do(delegate.CommandDel),
		GC: do(delegate.CommandGC), Status: do(delegate.CommandStatus),
	}
}
