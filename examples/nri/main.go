package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"log/syslog"
	"os"

	"github.com/containerd/nri/pkg/api"

	"github.com/metacni/metacni/delegate/plugin"
	"github.com/metacni/metacni/examples/internal/program"
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
	log := program.NewLogger(destination(os.Stderr, systemLog), level, false)
	ctx := program.Signals(context.Background(), func(s os.Signal) {
		log.Error("second signal: ended without waiting", slog.String("signal", s.String()))
		os.Exit(1)
	})
	if err := run(ctx, *file, log); err != nil {
		log.Error("stopped", slog.Any("err", err))
		os.Exit(1)
	}
}

// run runs a plugin, configured by a file unless its name is empty, until ctx
// ends.
func run(ctx context.Context, file string, log *slog.Logger) error {
	p := Plugin{
		Config: Config{NodeName: os.Getenv("NODE_NAME")},
		Exec:   &program.Exec{Log: log}, Env: os.Environ(), Logger: log,
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
		text, err := program.ReadFile(file)
		if err != nil {
			return err
		}
		if p.Config, err = p.Config.With(text); err != nil {
			return err
		}
	}
	return p.Run(ctx)
}

// priority is the priority of all lines in the system's log. Their level is in the text.
const priority = syslog.LOG_DAEMON | syslog.LOG_INFO

// systemLog connects to the system's log, such as journald.
func systemLog() (io.Writer, error) { return syslog.New(priority, "nri") }

// destination returns the writer to log to: stderr or, if stderr is /dev/null as in a
// plugin that the runtime has launched, the system's log, if there is one.
func destination(stderr *os.File, system func() (io.Writer, error)) io.Writer {
	to, err := stderr.Stat()
	null, nullErr := os.Stat(os.DevNull)
	if err != nil || nullErr != nil || !os.SameFile(to, null) {
		return stderr
	}
	if w, err := system(); err == nil {
		return w
	}
	return stderr
}
