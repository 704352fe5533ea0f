package main

import (
	"bytes"
	"context"
	"log/slog"
	"path/filepath"
	"strings"
	"sync"

	"github.com/metacni/metacni/delegate"
)

const (
	maxLine  = 1 << 10 // bytes of a line of a plugin's stderr
	maxLines = 64      // lines of one run of a plugin
)

// An executor runs plugins and logs their stderr.
type executor struct {
	delegate.Process
	log *slog.Logger
}

// ExecPlugin runs a plugin as [delegate.Process.ExecPlugin] does.
func (x *executor) ExecPlugin(ctx context.Context, path string, stdin []byte, environ []string) ([]byte, error) {
	attrs := []any{slog.String("plugin", filepath.Base(path))}
	for _, kv := range environ {
		switch key, value, _ := strings.Cut(kv, "="); key {
		case "CNI_COMMAND":
			attrs = append(attrs, slog.String("command", value))
		case "CNI_CONTAINERID":
			attrs = append(attrs, slog.String("container", value))
		case "CNI_IFNAME":
			attrs = append(attrs, slog.String("ifname", value))
		}
	}
	lines := &lineWriter{ctx: ctx, log: x.log.With(attrs...), stdin: stdin}
	defer lines.end()
	p := x.Process
	p.Stderr = lines
	return p.ExecPlugin(ctx, path, stdin, environ)
}

// A lineWriter logs a limited number of lines, of limited length. It hides values
// that were in stdin, because some plugins print their configuration.
type lineWriter struct {
	ctx   context.Context //nolint:containedctx // of the call
	log   *slog.Logger
	stdin []byte

	mu     sync.Mutex      // guards the following fields: a child of the plugin may still write
	hidden *delegate.Hider // nil until there is something to log
	line   []byte
	lines  int // -1 when nothing more is logged
}

func (w *lineWriter) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.hidden == nil {
		w.hidden = delegate.NewHider(w.stdin)
	}
	most := maxLine + w.hidden.Longest()
	for rest := p; len(rest) > 0 && w.lines >= 0; {
		line, after, whole := bytes.Cut(rest, []byte("\n"))
		w.line = append(w.line, line[:min(len(line), most-len(w.line))]...)
		if whole {
			w.flush()
		}
		rest = after
	}
	return len(p), nil
}

// end logs the last line, which may be incomplete. Nothing is logged after it.
func (w *lineWriter) end() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.lines >= 0 {
		w.flush()
	}
	w.lines = -1
}

// flush logs the current line. The caller holds w.mu.
func (w *lineWriter) flush() {
	if len(w.line) == 0 {
		return
	}
	text := string(bytes.TrimSpace(w.line))
	longest := w.hidden.Longest()
	cut := len(w.line) == maxLine+longest
	w.line = w.line[:0]
	if text == "" {
		return
	}
	if w.lines == maxLines {
		w.log.LogAttrs(w.ctx, slog.LevelWarn, "further stderr of the plugin is not logged", slog.Int("lines", maxLines))
		w.lines = -1
		return
	}
	w.lines++
	text = w.hidden.Hide(text)
	if cut { // its end may be the beginning of a secret
		text = text[:max(0, len(text)-longest)]
	}
	if cut || len(text) > maxLine {
		text = strings.ToValidUTF8(text[:min(len(text), maxLine)], "") + "..."
	}
	w.log.LogAttrs(w.ctx, slog.LevelInfo, "plugin's stderr", slog.String("text", text))
}

// An outputLog logs the output of launched residents. It may contain a
// configuration, so the level is debug.
type outputLog struct {
	ctx context.Context //nolint:containedctx // of the process
	log *slog.Logger
}

func (o *outputLog) Write(p []byte) (int, error) {
	for line := range bytes.Lines(p) {
		if line = bytes.TrimSpace(line); len(line) > 0 {
			o.log.LogAttrs(o.ctx, slog.LevelDebug, "output of a resident plugin", slog.String("line", string(line[:min(len(line), maxLine)])))
		}
	}
	return len(p), nil
}
