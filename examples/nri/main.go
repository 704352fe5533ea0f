package main

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/containerd/nri/pkg/api"

	"github.com/metacni/metacni/delegate"
)

func main() {
	file := flag.String("config", "", "configuration `file`")
	verbose := flag.Bool("v", false, "log every plugin that is run")
	flag.Parse()
	if flag.NArg() > 0 {
		fmt.Fprintf(os.Stderr, "unexpected argument %q\n", flag.Arg(0))
		flag.Usage()
		os.Exit(2)
	}
	level := slog.LevelInfo
	if *verbose {
		level = slog.LevelDebug
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level}))
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *file, log); err != nil {
		log.Error("stopped", slog.Any("err", err))
		os.Exit(1)
	}
}

func run(ctx context.Context, file string, log *slog.Logger) error {
	p := Plugin{
		Exec: &delegate.Process{Stderr: os.Stderr}, Env: os.Environ(), Logger: log,
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
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		if p.Config, err = p.Config.With(text); err != nil {
			return err
		}
	}
	return p.Run(ctx)
}
