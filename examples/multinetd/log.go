package main

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"path/filepath"
	"strings"
	"sync"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/lifecycle"
	"github.com/metacni/metacni/delegate/thick"
	"github.com/metacni/metacni/scratch"
	"github.com/metacni/metacni/status"
)

// newLogger returns a logger that writes to w.
func newLogger(w io.Writer, c *config) *slog.Logger {
	o := &slog.HandlerOptions{Level: slog.Level(c.LogLevel)}
	if c.LogFormat == "json" {
		return slog.New(slog.NewJSONHandler(w, o))
	}
	return slog.New(slog.NewTextHandler(w, o))
}

// logEvent logs one line for each request. A STATUS that succeeds is logged at level
// debug, because runtimes ask for it all the time.
func logEvent(ctx context.Context, log *slog.Logger, e thick.Event) {
	level := slog.LevelInfo
	switch {
	case e.Err != nil:
		level = slog.LevelWarn
	case e.Command == "STATUS":
		level = slog.LevelDebug
	}
	attrs := []slog.Attr{slog.String("command", e.Command), slog.String("path", e.Path)}
	for _, s := range []struct{ key, value string }{
		{"container", e.ContainerID},
		{"ifname", e.IfName},
		{"network", e.Network},
		{"pod_namespace", arg(e.Args, "K8S_POD_NAMESPACE")},
		{"pod", arg(e.Args, "K8S_POD_NAME")},
	} {
		if s.value != "" {
			attrs = append(attrs, slog.String(s.key, s.value))
		}
	}
	attrs = append(attrs, slog.Duration("duration", e.Duration), slog.Duration("queued", e.Queued), slog.Int("status", e.Status))
	if e.Replayed {
		attrs = append(attrs, slog.Bool("replayed", true))
	}
	if e.Err != nil {
		attrs = append(attrs, slog.Uint64("code", uint64(status.Code(e.Err))), slog.String("error", e.Err.Error()), slog.Int("uid", e.UID))
	}
	log.LogAttrs(ctx, level, "request", attrs...)
}

// about returns the attributes of a line about the attachment k.
func about(k scratch.Key) []slog.Attr {
	var attrs []slog.Attr
	for _, s := range []struct{ key, value string }{{"container", k.ContainerID}, {"network", k.Network}, {"ifname", k.IfName}} {
		if s.value != "" {
			attrs = append(attrs, slog.String(s.key, s.value))
		}
	}
	return attrs
}

// because returns the attribute of a line about k that says why something failed.
// It does not repeat the names in k.
func because(k scratch.Key, err error) slog.Attr {
	failed, ok := err.(*lifecycle.Error) //nolint:errorlint // the error itself, not one that it wraps
	if !ok {
		failed = &lifecycle.Error{Key: k, Err: err}
	}
	_, why, _ := strings.Cut(failed.Error(), ": ") // after the operation and the attachment
	return slog.String("error", why)
}

// arg is the value of a key of CNI_ARGS.
func arg(args, key string) string {
	for part := range strings.SplitSeq(args, ";") {
		if k, v, _ := strings.Cut(part, "="); k == key {
			return v
		}
	}
	return ""
}

const (
	maxLine  = 1 << 10 // bytes of a line of a plugin's stderr that are logged
	maxLines = 64      // logged lines of one run of a plugin
)

// An executor runs plugins and logs what they write to stderr.
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

// A lineWriter logs up to maxLines lines of up to maxLine bytes. It hides the
// credentials in stdin, because some plugins print their configuration.
type lineWriter struct {
	ctx   context.Context //nolint:containedctx // that of the call it is for
	log   *slog.Logger
	stdin []byte

	mu     sync.Mutex      // guards the following: a plugin's child may still write
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

// end logs an unfinished line, and stops logging.
func (w *lineWriter) end() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.lines >= 0 {
		w.flush()
	}
	w.lines = -1
}

// flush logs the current line. w.mu is held.
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
		w.log.LogAttrs(w.ctx, slog.LevelWarn, "plugin writes too much to stderr, the rest is not logged", slog.Int("lines", maxLines))
		w.lines = -1
		return
	}
	w.lines++
	text = w.hidden.Hide(text)
	if cut { // its end may be the beginning of a credential
		text = text[:max(0, len(text)-longest)]
	}
	if cut || len(text) > maxLine {
		text = strings.ToValidUTF8(text[:min(len(text), maxLine)], "") + "..."
	}
	w.log.LogAttrs(w.ctx, slog.LevelInfo, "plugin's stderr", slog.String("text", text))
}
