package daemon

import (
	"context"
	"io"
	"log/slog"

	"github.com/metacni/metacni/delegate/thick"
	"github.com/metacni/metacni/examples/internal/program"
	"github.com/metacni/metacni/netconf/nad"
)

// logger returns a logger that writes to w as the configuration says.
func (c *config) logger(w io.Writer) *slog.Logger {
	return program.NewLogger(w, slog.Level(c.LogLevel), c.LogFormat == "json")
}

// levelOf returns the level of a line about what has ended with err.
func levelOf(err error) slog.Level {
	if err != nil {
		return slog.LevelWarn
	}
	return slog.LevelInfo
}

// logEvent logs a request in one line, with the pod.
func logEvent(ctx context.Context, log *slog.Logger, e thick.Event) {
	pod := nad.PodOf(e.Args)
	e.Log(ctx, log, slog.String("pod_namespace", pod.Namespace), slog.String("pod", pod.Name))
}
