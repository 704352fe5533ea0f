package main

import (
	"context"
	"io"
	"log/slog"

	"github.com/metacni/metacni/delegate/thick"
	"github.com/metacni/metacni/examples/internal/daemon"
	"github.com/metacni/metacni/netconf/nad"
	"github.com/metacni/metacni/status"
)

// logger returns a logger that writes to w as the configuration says.
func (c *config) logger(w io.Writer) *slog.Logger {
	return daemon.NewLogger(w, slog.Level(c.LogLevel), c.LogFormat == "json")
}

// levelOf returns the level of a line about what has ended with err.
func levelOf(err error) slog.Level {
	if err != nil {
		return slog.LevelWarn
	}
	return slog.LevelInfo
}

// logEvent logs a request in one line. A STATUS that succeeds is logged at level
// debug, because runtimes send it all the time.
func logEvent(ctx context.Context, log *slog.Logger, e thick.Event) {
	level := levelOf(e.Err)
	if e.Err == nil && e.Command == "STATUS" {
		level = slog.LevelDebug
	}
	pod := nad.PodOf(e.Args)
	attrs := []slog.Attr{
		slog.String("command", e.Command), slog.String("path", e.Path), slog.String("container", e.ContainerID), slog.String("ifname", e.IfName),
		slog.String("network", e.Network), slog.String("pod_namespace", pod.Namespace), slog.String("pod", pod.Name),
		slog.Duration("duration", e.Duration), slog.Duration("queued", e.Queued), slog.Int("status", e.Status),
	}
	if e.Replayed {
		attrs = append(attrs, slog.Bool("replayed", true))
	}
	if e.Err != nil {
		attrs = append(attrs, slog.Uint64("code", uint64(status.Code(e.Err))), slog.String("error", e.Err.Error()), slog.Int("uid", e.UID))
	}
	log.LogAttrs(ctx, level, "request", attrs...)
}
