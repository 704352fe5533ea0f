package resident

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"maps"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/containernetworking/cni/pkg/types"
)

// A session is the resident's side of one connection.
type session struct {
	plugin   *Plugin
	mux      *mux
	requests bool        // the host takes requests
	told     atomic.Bool // Synchronize has returned
}

// handle handles a call of the host. A panic becomes an error without details.
func (s *session) handle(ctx context.Context, call string, body []byte) (stdout []byte, err error) {
	defer func() {
		if v := recover(); v != nil {
			s.plugin.logger().ErrorContext(ctx, "panic", slog.Any("value", v), slog.String("stack", string(debug.Stack())))
			stdout, err = nil, types.NewError(types.ErrInternal, "the plugin panicked", "")
		}
	}()
	switch call {
	case callCommand:
		var c command
		if json.Unmarshal(body, &c) != nil {
			return nil, types.NewError(types.ErrDecodingFailure, "the call is not valid JSON", "")
		}
		return s.plugin.run(ctx, &c)
	case callSynchronize:
		var m synchronization
		if json.Unmarshal(body, &m) != nil {
			return nil, types.NewError(types.ErrDecodingFailure, "the list of attachments is not valid JSON", "")
		}
		if s.plugin.Synchronize != nil {
			err = s.plugin.Synchronize(ctx, m.Known)
		}
		s.told.Store(err == nil)
		return nil, err
	}
	return nil, errUnknownCall(call)
}

// run runs a command.
func (p *Plugin) run(ctx context.Context, c *command) ([]byte, error) {
	if !slices.Contains(p.Types, c.Type) {
		return nil, types.NewError(types.ErrInvalidNetworkConfig, "resident plugin "+p.info().String()+" does not serve this type", "")
	}
	if c.DeadlineMs > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, time.Duration(c.DeadlineMs)*time.Millisecond)
		defer cancel()
	}
	if id := c.Env["CNI_CONTAINERID"]; id != "" {
		turn := p.turns.LineUp(id, struct{}{}, nil)
		defer turn.Leave()
		if err := turn.Wait(ctx); err != nil {
			return nil, err
		}
	}
	var stdout output
	process := p.Process
	process.Env = slices.Clone(process.Env)
	for _, k := range slices.Sorted(maps.Keys(c.Env)) {
		process.Env = append(process.Env, k+"="+c.Env[k])
	}
	process.Stdin, process.Stdout = bytes.NewReader(c.Config), &stdout
	if err := p.Plugin.Run(ctx, process); err != nil {
		return nil, err
	}
	return stdout.take(), nil
}

// An output collects what a command writes. It is safe for concurrent use.
type output struct {
	mu  sync.Mutex // protects buf
	buf bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.Write(p)
}

// take returns what was written so far. Later writes are lost.
func (o *output) take() []byte {
	o.mu.Lock()
	defer o.mu.Unlock()
	out := o.buf.Bytes()
	o.buf = bytes.Buffer{}
	return out
}
