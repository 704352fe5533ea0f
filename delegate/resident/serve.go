package resident

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"os"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/creachadair/jrpc2"
	"github.com/creachadair/jrpc2/handler"

	"github.com/metacni/metacni/internal/fault"
)

// Serve registers p over conn and serves calls until the connection is lost or
// ctx ends. When ctx ends, Serve waits for running commands up to DrainTimeout. It
// closes conn.
//
// It returns nil when ctx has ended. Otherwise the error is [ErrRefused] when the host
// refuses p. It has code 11 when the connection is lost.
func (p *Resident) Serve(ctx context.Context, conn net.Conn) error {
	if err := p.info().check(); err != nil {
		return errors.Join(fault.Of("serve", p.info().String(), err), conn.Close())
	}
	s := p.newSession(ctx, conn)
	p.session.Store(s)
	defer p.session.Store(nil)
	select {
	case <-s.done:
		return fault.Of("serve", p.info().String(), s.why())
	case <-ctx.Done():
	}
	if err := s.server.Notify(context.WithoutCancel(ctx), methodLeave, nil); err != nil || pause(s.done, cmp.Or(p.DrainTimeout, 5*time.Second)) {
		s.fail(errLeft)
	}
	return nil
}

// Run connects to the socket of the host and serves. When the connection is lost
// or p is refused, it reconnects after a pause, which grows from 100 milliseconds
// to 10 seconds. Run returns nil when ctx ends.
func (p *Resident) Run(ctx context.Context, socket string) error {
	const first, longest = 100 * time.Millisecond, 10 * time.Second
	for wait := first; ; wait = min(2*wait, longest) {
		conn, err := new(net.Dialer).DialContext(ctx, "unix", socket)
		if err == nil {
			if err = p.Serve(ctx, conn); !errors.Is(err, ErrRefused) {
				wait = first
			}
		}
		p.logger().LogAttrs(ctx, slog.LevelDebug, "disconnected", slog.Duration("pause", wait), slog.Any("err", err))
		if !pause(ctx.Done(), wait) {
			return nil
		}
	}
}

// Inherited returns the connection of a launched process, and the index and the
// name that its Plugin must have. It reads CNI_RELAY_SOCKET, the number of the
// descriptor, CNI_RELAY_INDEX and CNI_RELAY_NAME. The connection is nil when
// CNI_RELAY_SOCKET is not set. Call Inherited once.
func Inherited(environ []string) (conn net.Conn, index, name string, err error) {
	env := make(map[string]string)
	for _, kv := range environ {
		if k, v, _ := strings.Cut(kv, "="); strings.HasPrefix(k, "CNI_RELAY_") {
			env[k] = v
		}
	}
	socket, ok := env["CNI_RELAY_SOCKET"]
	if !ok {
		return nil, "", "", nil
	}
	fd, err := strconv.Atoi(socket)
	if err != nil || fd < 3 {
		err = fmt.Errorf("%.40q is not the number of a descriptor", socket)
	} else {
		f := os.NewFile(uintptr(fd), "resident")
		defer func() { _ = f.Close() }() // children do not inherit the copy that FileConn makes
		conn, err = net.FileConn(f)
	}
	return conn, env["CNI_RELAY_INDEX"], env["CNI_RELAY_NAME"], fault.Of("serve", "CNI_RELAY_SOCKET", err)
}

// Request asks the host for a change and returns when it is done. An error of
// the host is a [*types.Error].
//
// A command may call Request. But the host runs one operation of a container at
// a time: a command must not wait for a request for its own container.
//
// It fails with code 11 when p is not connected, or Synchronize has not returned
// yet, and with code 4 when the host takes no requests. The end of ctx does not stop
// the host. When Request fails because the connection is lost or ctx
// has ended, the host may have done the change.
func (p *Resident) Request(ctx context.Context, r Request) error {
	err := p.session.Load().request(ctx, r)
	var said *types.Error
	if errors.As(err, &said) {
		return err
	}
	return fault.Of("request", p.info().String(), err)
}

func (s *session) request(ctx context.Context, r Request) error {
	if s == nil {
		return errGone
	}
	data, err := json.Marshal(r)
	if err == nil && len(data) > maxOutput {
		err = fmt.Errorf("a request of %d bytes is longer than %d", len(data), maxOutput)
	}
	if err != nil {
		return err
	}
	_, err = s.server.Callback(ctx, methodRequest, json.RawMessage(data))
	certain, err := outcome(ctx, err)
	if !certain {
		err = fmt.Errorf("%w: %w", errLost, err)
	}
	return err
}

// A session is the resident's side of one connection.
type session struct {
	*link
	server *jrpc2.Server
}

// newSession begins to serve calls over conn. The contexts of commands have the values
// of ctx.
func (p *Resident) newSession(ctx context.Context, conn net.Conn) *session {
	s := &session{link: newLink(ctx, conn, maxFromHost)}
	methods := handler.Map{
		methodRegister: handler.New(func(context.Context, greeting) (hello, error) { return hello{protocol, p.info()}, nil }),
		methodRefused: handler.New(func(_ context.Context, why refusal) error {
			s.fail(refused("%s", strings.TrimPrefix(why.Reason, ErrRefused.Error()+": ")))
			return nil
		}),
		methodSynchronize: handler.New(func(ctx context.Context, m synchronization) error {
			if p.Synchronize == nil {
				return nil
			}
			return p.Synchronize(ctx, m.Known)
		}),
		methodCommand: handler.New(p.run),
		methodCancel: handler.New(func(_ context.Context, calls []string) error {
			for _, id := range calls {
				s.server.CancelRequest(id)
			}
			return nil
		}),
	}
	for name, handle := range methods {
		methods[name] = p.guarded(handle)
	}
	s.server = jrpc2.NewServer(methods, &jrpc2.ServerOptions{
		AllowPush: true, DisableBuiltin: true,
		Concurrency: math.MaxInt32, // so that commands do not hold up a cancel
		NewContext:  func() context.Context { return context.WithoutCancel(ctx) },
	})
	s.server.Start(s.link)
	return s
}

// guarded returns handle with the errors of CNI. A panic becomes an error without details.
func (p *Resident) guarded(handle jrpc2.Handler) jrpc2.Handler {
	return func(ctx context.Context, r *jrpc2.Request) (answer any, err error) {
		defer func() {
			if v := recover(); v != nil {
				p.logger().ErrorContext(ctx, "panic", slog.Any("value", v), slog.String("stack", string(debug.Stack())))
				answer, err = nil, failure(types.NewError(types.ErrInternal, "the plugin panicked", ""))
			}
		}()
		answer, err = handle(ctx, r)
		return answer, failure(err)
	}
}
