package program

import (
	"context"
	"io"
	"log/slog"
	"path/filepath"
	"strings"
	"sync"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/lifecycle"
)

// NewLogger returns a logger that writes JSON or text to w. It leaves out attributes whose
// value is an empty string or nil.
func NewLogger(w io.Writer, level slog.Level, json bool) *slog.Logger {
	o := &slog.HandlerOptions{Level: level, ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if v := a.Value.Any(); v == nil || v == "" {
			return slog.Attr{}
		}
		return a
	}}
	if json {
		return slog.New(slog.NewJSONHandler(w, o))
	}
	return slog.New(slog.NewTextHandler(w, o))
}

// LogSwept logs that a stale attachment was removed, or why it was not, with more attributes.
func LogSwept(ctx context.Context, log *slog.Logger, swept lifecycle.SweepResult, more ...slog.Attr) {
	k := swept.Key
	attrs := append([]slog.Attr{slog.String("container", k.ContainerID), slog.String("network", k.Network), slog.String("ifname", k.IfName)}, more...)
	level, msg := slog.LevelInfo, "stale attachment removed"
	if swept.Err != nil {
		level, msg, attrs = slog.LevelWarn, "record cannot be read", append(attrs, slog.Any("error", swept.Err))
		if !swept.At.IsZero() {
			msg, attrs = "stale attachment cannot be removed", append(attrs, slog.Time("again", swept.At))
		}
	}
	log.LogAttrs(ctx, level, msg, attrs...)
}

const (
	maxLine  = 1 << 10            // bytes of a line of a plugin's stderr
	maxLines = 64                 // lines of one run of a plugin
	maxText  = maxLines * maxLine // bytes of one run
)

// An Exec runs plugins. When a plugin has ended, Exec logs what it has written to stderr:
// a limited number of lines, of limited length. It hides values of the plugin's
// configuration, because some plugins print it.
type Exec struct {
	delegate.Process
	Log *slog.Logger
}

// ExecPlugin runs a plugin as [delegate.Process.ExecPlugin] does.
func (x *Exec) ExecPlugin(ctx context.Context, path string, stdin []byte, environ []string) ([]byte, error) {
	var written stderr
	p := x.Process
	p.Stderr = &written
	result, err := p.ExecPlugin(ctx, path, stdin, environ)
	if text := written.String(); text != "" {
		log := x.Log.With("plugin", filepath.Base(path), "command", Variable(environ, "CNI_COMMAND"),
			"container", Variable(environ, "CNI_CONTAINERID"), "ifname", Variable(environ, "CNI_IFNAME"))
		logStderr(ctx, log, stdin, text)
	}
	return result, err
}

// Variable returns the value of an environment variable, or the empty string.
func Variable(environ []string, key string) string {
	for _, kv := range environ {
		if value, found := strings.CutPrefix(kv, key+"="); found {
			return value
		}
	}
	return ""
}

// logStderr logs the first lines of text, of maxText bytes at most, without the values of conf, the
// configuration of the plugin.
func logStderr(ctx context.Context, log *slog.Logger, conf []byte, text string) {
	cut := len(text) > maxText
	text = delegate.Hidden(text, conf, maxText)
	lines := 0
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if line == "" {
			continue
		}
		if lines++; lines > maxLines {
			cut = true
			break
		}
		if len(line) > maxLine {
			line = strings.ToValidUTF8(line[:maxLine], "") + "..."
		}
		log.LogAttrs(ctx, slog.LevelInfo, "plugin's stderr", slog.String("text", line))
	}
	if cut {
		log.LogAttrs(ctx, slog.LevelWarn, "further stderr of the plugin is not logged", slog.Int("lines", maxLines), slog.Int("bytes", maxText))
	}
}

// stderr keeps the stderr of a plugin, whose length a [delegate.Process] limits.
type stderr struct {
	mu   sync.Mutex
	text strings.Builder
}

func (w *stderr) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.text.Write(p)
}

func (w *stderr) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.text.String()
}
