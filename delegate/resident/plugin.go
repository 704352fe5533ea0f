package resident

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/metacni/metacni/delegate/plugin"
	"github.com/metacni/metacni/internal/fault"
	"github.com/metacni/metacni/internal/turns"
)

// welcomeTimeout is how long a host may take to ask a process to register.
const welcomeTimeout = 30 * time.Second

// A Plugin is the plugin's side: it registers with a [Host] and serves its calls.
// It serves one host at a time. The fields must not change once it is in use; the
// methods are safe for concurrent use.
type Plugin struct {
	Index string   // two digits: the place among residents
	Name  string   // letters, digits and _ . + -
	Types []string // the plugin types it serves

	// Plugin runs the commands, of all types. Commands run concurrently, but for
	// each container one at a time, whichever connection they came from.
	Plugin plugin.Plugin

	// Process is what commands have of a process. Each call sets Stdin and
	// Stdout, and adds its CNI variables and those of a trace to Env.
	Process plugin.Process

	// Synchronize, when not nil, receives the current attachments of the
	// resident's types after each registration, before the first command. When
	// it fails, the registration fails.
	Synchronize func(ctx context.Context, known []Known) error

	// DrainTimeout is how long commands may go on after the context of Serve
	// has ended. Then their contexts end too. Zero means 5 seconds.
	DrainTimeout time.Duration

	// Logger receives panics, and at debug level why Run reconnects. Nil
	// discards them.
	Logger *slog.Logger

	turns   turns.Turns[struct{}]
	mu      sync.Mutex // protects session
	session *session   // the current one, or nil
}

// Serve registers p over conn and serves calls until the connection is lost or
// ctx ends. When ctx ends, Serve waits for running commands up to DrainTimeout. It
// closes conn.
//
// It returns nil when ctx has ended. Otherwise the error is [ErrRefused] when the host
// refuses p, or [ErrLost] when the connection is lost or the host does not ask p to
// register within 30 seconds.
func (p *Plugin) Serve(ctx context.Context, conn net.Conn) error {
	if err := p.info().check(); err != nil {
		return errors.Join(fault.Of("serve", p.info().String(), err), conn.Close())
	}
	s := p.newSession(ctx, conn)
	p.setSession(s)
	defer p.setSession(nil)
	welcome := time.AfterFunc(welcomeTimeout, func() {
		if !s.asked.Load() {
			s.fail(fmt.Errorf("%w: it does not ask the plugin to register", ErrLost))
		}
	})
	defer welcome.Stop()
	select {
	case <-s.done:
		return fault.Of("serve", p.info().String(), s.why())
	case <-ctx.Done():
	}
	if err := s.server.Notify(context.WithoutCancel(ctx), methodLeave, nil); err != nil || pause(s.done, orDefault(p.DrainTimeout, 5*time.Second)) {
		s.fail(errLeft)
	}
	return nil
}

// Run connects to the socket of the host and serves. When the connection is lost
// or p is refused, it reconnects after a pause, which grows from 100 milliseconds
// to 10 seconds. Run returns nil when ctx ends.
func (p *Plugin) Run(ctx context.Context, socket string) error {
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
	failed := func(err error) (net.Conn, string, string, error) {
		return nil, "", "", fault.Of("serve", "CNI_RELAY_SOCKET", err)
	}
	fd, err := strconv.Atoi(socket)
	if err != nil || fd < 3 {
		return failed(fmt.Errorf("%.40q is not the number of a descriptor", socket))
	}
	f := os.NewFile(uintptr(fd), "resident")
	if f == nil {
		return failed(os.ErrInvalid)
	}
	defer func() { _ = f.Close() }() // children do not inherit the copy that FileConn makes
	if conn, err = net.FileConn(f); err != nil {
		return failed(err)
	}
	return conn, env["CNI_RELAY_INDEX"], env["CNI_RELAY_NAME"], nil
}

func (p *Plugin) info() Info {
	return Info{Index: p.Index, Name: p.Name, Types: p.Types}
}

func (p *Plugin) logger() *slog.Logger {
	if p.Logger != nil {
		return p.Logger
	}
	return slog.New(slog.DiscardHandler)
}

func (p *Plugin) setSession(s *session) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.session = s
}
