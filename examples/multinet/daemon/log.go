package daemon

import (
	"io"
	"log/slog"

	"github.com/metacni/metacni/examples/internal/program"
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
