package resident

import (
	"context"
	"log/slog"
	"math"
	"net"
	"runtime/debug"
	"strings"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/creachadair/jrpc2"
)

// A session is the resident's side of one connection.
type session struct {
	*link
	plugin *Plugin
	server *jrpc2.Server
}

// newSession begins to serve calls over conn. The contexts of commands have the values
// of ctx.
func (p *Plugin) newSession(ctx context.Context, conn net.Conn) *session {
	s := &session{plugin: p, link: newLink(ctx, conn, maxFromHost)}
	s.server = jrpc2.NewServer(s, &jrpc2.ServerOptions{
		AllowPush: true, DisableBuiltin: true,
		Concurrency: math.MaxInt32, // so that commands do not hold up a cancel
		NewContext:  func() context.Context { return context.WithoutCancel(ctx) },
	})
	s.server.Start(s.link)
	return s
}

// Assign returns the handler of all methods.
func (s *session) Assign(context.Context, string) jrpc2.Handler { return s.handle }

// handle handles a call of the host. A panic becomes an error without details.
func (s *session) handle(ctx context.Context, r *jrpc2.Request) (answer any, err error) { //nolint:ireturn // a jrpc2.Handler
	defer func() {
		if v := recover(); v != nil {
			s.plugin.logger().ErrorContext(ctx, "panic", slog.Any("value", v), slog.String("stack", string(debug.Stack())))
			answer, err = nil, failure(types.NewError(types.ErrInternal, "the plugin panicked", ""))
		}
	}()
	switch r.Method() {
	case methodRegister:
		var g greeting
		err = decode(r, &g)
		answer = hello{protocol, s.plugin.info()}
	case methodRefused:
		var why refusal
		err = decode(r, &why)
		s.fail(refused("%s", strings.TrimPrefix(why.Reason, ErrRefused.Error()+": ")))
	case methodSynchronize:
		err = s.synchronize(ctx, r)
	case methodCommand:
		answer, err = s.command(ctx, r)
	case methodCancel:
		var calls []string
		err = decode(r, &calls)
		for _, id := range calls {
			s.server.CancelRequest(id)
		}
	default:
		err = unknownCall(r)
	}
	return answer, failure(err)
}

// decode decodes the parameters of a call. The error does not quote them.
func decode(r *jrpc2.Request, v any) error {
	if r.UnmarshalParams(v) != nil {
		return types.NewError(types.ErrDecodingFailure, "the call is not valid", "")
	}
	return nil
}

func (s *session) synchronize(ctx context.Context, r *jrpc2.Request) error {
	var m synchronization
	err := decode(r, &m)
	if err == nil && s.plugin.Synchronize != nil {
		err = s.plugin.Synchronize(ctx, m.Known)
	}
	return err
}

func (s *session) command(ctx context.Context, r *jrpc2.Request) (stdout []byte, err error) {
	var c command
	if err := decode(r, &c); err != nil {
		return nil, err
	}
	return s.plugin.run(ctx, &c)
}
