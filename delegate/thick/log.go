package thick

import (
	"context"
	"log/slog"
	"slices"

	"github.com/metacni/metacni/status"
)

// Log logs e in one line, with more attributes: at level warn if the request has failed, at
// debug if it is a STATUS that succeeded, because runtimes send these all the time, and
// otherwise at info. A slow ADD is logged at level warn, with its Timing. Log leaves out strings
// that are empty.
func (e Event) Log(ctx context.Context, log *slog.Logger, more ...slog.Attr) {
	level := slog.LevelInfo
	attrs := append([]slog.Attr{
		slog.String("command", e.Command), slog.String("path", e.Path), slog.String("container", e.ContainerID), slog.String("ifname", e.IfName),
		slog.String("network", e.Network), slog.Duration("duration", e.Duration), slog.Duration("queued", e.Queued), slog.Int("status", e.Status),
	}, more...)
	if e.Replayed {
		attrs = append(attrs, slog.Bool("replayed", true))
	}
	if e.Slow {
		level = slog.LevelWarn
		attrs = append(attrs, slog.Any("timing", e.Timing))
	}
	switch {
	case e.Err != nil:
		level = slog.LevelWarn
		attrs = append(attrs, slog.Uint64("code", uint64(status.Code(e.Err))), slog.String("error", e.Err.Error()), slog.Int("uid", e.UID))
	case e.Command == "STATUS":
		level = slog.LevelDebug
	}
	empty := func(a slog.Attr) bool { return a.Value.Kind() == slog.KindString && a.Value.String() == "" }
	log.LogAttrs(ctx, level, "request", slices.DeleteFunc(attrs, empty)...)
}
