package thick

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/metacni/metacni/delegate/plugin"
)

// Main is the main function of a daemon: it serves p at the unix socket, an absolute path,
// until the process receives SIGTERM or SIGINT. Then it drains and returns. If it cannot
// serve, it says why on stderr and exits with status 1. The program that the runtime
// executes calls Main of package [github.com/metacni/metacni/delegate/thick/shim] with the
// same socket.
//
// Main listens with [Listen], so systemd may also pass the socket. It logs each request to
// stderr, where delegated plugins write too. Of the environment delegated plugins get PATH
// only. There is no queue: a DEL while the daemon is away fails with code 11, and the runtime
// asks again.
//
// To set options, such as a Queue, use [Listen] and a [Server] in place of Main.
func Main(p plugin.Plugin, socket string) {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE) // nobody may read the log any longer
	if err := run(ctx, p, socket, os.Environ(), os.Stderr); err != nil {
		_, _ = fmt.Fprintf(os.Stderr, "%s: %v\n", filepath.Base(os.Args[0]), err)
		os.Exit(1)
	}
}

// run is Main until ctx ends, without the process.
func run(ctx context.Context, p plugin.Plugin, socket string, env []string, stderr io.Writer) error {
	log := slog.New(slog.NewTextHandler(stderr, nil))
	waiting := time.AfterFunc(time.Second, func() {
		log.WarnContext(ctx, "waiting for another daemon to release the socket", "socket", socket)
	})
	l, err := Listen(ctx, env, socket)
	waiting.Stop()
	if err != nil {
		return err
	}
	log.InfoContext(ctx, "listening", "socket", socket, "version", plugin.Version())
	path := slices.DeleteFunc(slices.Clone(env), func(e string) bool { return !strings.HasPrefix(e, "PATH=") })
	s := &Server{
		Plugin: p,
		System: func() plugin.System {
			return plugin.System{Env: path, Stderr: stderr, UndoTimeout: undoTimeout}
		},
		Version:  plugin.Version(),
		Logger:   log,
		Observer: func(e Event) { e.Log(ctx, log) },
	}
	return s.Serve(ctx, l)
}

// undoTimeout limits the undo of an ADD whose context has ended. The server waits longer, so
// that the plugin can record the outcome.
const undoTimeout = 8 * time.Second
