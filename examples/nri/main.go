package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/containerd/nri/pkg/api"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/plugin"
	"github.com/metacni/metacni/netconf"
)

func main() {
	file := flag.String("config", "", "configuration `file`")
	verbose := flag.Bool("v", false, "log each plugin that is run")
	version := flag.Bool("version", false, "print the version")
	flag.Parse()
	if flag.NArg() > 0 {
		fmt.Fprintf(os.Stderr, "unexpected argument %q\n", flag.Arg(0))
		flag.Usage()
		os.Exit(2)
	}
	if *version {
		fmt.Println("nri", plugin.Version())
		return
	}
	level := slog.LevelInfo
	if *verbose {
		level = slog.LevelDebug
	}
	stderr := destination(os.Stderr, systemLog)
	log := slog.New(slog.NewTextHandler(stderr, &slog.HandlerOptions{Level: level}))
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *file, stderr, log); err != nil {
		log.Error("stopped", slog.Any("err", err))
		os.Exit(1)
	}
}

// run runs a plugin, configured by a file unless its name is empty, until ctx
// ends. The CNI plugins' stderr is stderr.
func run(ctx context.Context, file string, stderr io.Writer, log *slog.Logger) error {
	p := Plugin{
		Config: Config{NodeName: os.Getenv("NODE_NAME")},
		Exec:   &delegate.Process{Stderr: stderr}, Env: plugin.WithPath(os.Environ()), Logger: log,
		Launched: os.Getenv(api.PluginSocketEnvVar) != "",
		Observer: func(pass Pass) {
			level := slog.LevelDebug
			if pass.Notable() {
				level = slog.LevelInfo
			}
			log.LogAttrs(ctx, level, "reconciled", slog.Any("figures", pass))
		},
	}
	if file != "" {
		text, err := netconf.ReadFile(os.DirFS(filepath.Dir(file)), filepath.Base(file)) // no FIFO
		if err != nil {
			return err
		}
		if p.Config, err = p.Config.With(text); err != nil {
			return err
		}
	}
	return p.Run(ctx)
}
