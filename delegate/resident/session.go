package resident

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/version"

	"github.com/metacni/metacni/internal/skeleton"
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
			s.plugin.logger().Error("panic", slog.Any("value", v), slog.String("stack", string(debug.Stack())))
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
		release, err := p.turns.take(ctx, id)
		if err != nil {
			return nil, err
		}
		defer release()
	}
	ctx = context.WithValue(ctx, callKey{}, Call{Type: c.Type, Env: c.Env})
	var stdout output
	err := skeleton.Run(skeleton.Plugin{
		Commands: func() skel.CNIFuncs { return p.Funcs(ctx, &stdout) }, Versions: p.versions(), Stdout: &stdout,
	}, skeleton.Call{
		Command: c.Env["CNI_COMMAND"], ContainerID: c.Env["CNI_CONTAINERID"], NetNS: c.Env["CNI_NETNS"], IfName: c.Env["CNI_IFNAME"],
		Args: c.Env["CNI_ARGS"], Path: c.Env["CNI_PATH"], NetNSOverride: c.Env["CNI_NETNS_OVERRIDE"], Stdin: c.Config,
	})
	if err != nil {
		return nil, err
	}
	return stdout.take(), nil
}

func (p *Plugin) versions() version.PluginInfo {
	if p.Versions != nil {
		return p.Versions
	}
	return version.All
}

type callKey struct{}

// A Call tells a command what its arguments do not.
type Call struct {
	Type string // the plugin type that is called

	// Env holds the CNI variables and those of a trace.
	Env map[string]string
}

// CallOf returns the call of a context that Funcs has received. The caller must
// not change it. For any other context it returns a zero Call.
func CallOf(ctx context.Context) Call {
	c, _ := ctx.Value(callKey{}).(Call)
	return c
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
