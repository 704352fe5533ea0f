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

	"github.com/metacni/metacni/delegate/plugin"
	"github.com/metacni/metacni/delegate/resident"
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
	d := &resident.Resident{
		Index: *index, Name: pluginType, Types: []string{pluginType}, Plugin: addresses(),
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
