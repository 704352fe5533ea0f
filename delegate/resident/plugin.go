package resident

import (
	"bufio"
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
	"github.com/metacni/metacni/internal/turns"
)

// welcomeTimeout is how long a host may take to answer the hello.
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
// It returns nil when ctx has ended. Otherwise it returns an [*Error] with
// [ErrRefused] when the host refuses p, or with [ErrLost] when the connection is
// lost or the host does not answer the hello within 30 seconds.
func (p *Plugin) Serve(ctx context.Context, conn net.Conn) error {
	defer func() { _ = conn.Close() }()
	in := bufio.NewReaderSize(conn, maxHello)
	w, err := p.register(ctx, conn, in)
	if ctx.Err() != nil {
		return nil
	}
	if err != nil {
		return &Error{Op: "serve", Which: p.info().String(), Err: err}
	}
	m := newMux(ctx, conn, in)
	m.maxIn, m.maxOut, m.limit, m.slots = maxFromHost, maxFromPlugin, maxCalls, make(chan struct{}, maxRequests)
	s := &session{plugin: p, mux: m, requests: w.Requests}
	m.handle = s.handle
	p.setSession(s)
	defer p.setSession(nil)
	m.start() //nolint:contextcheck // handlers end with the connection
	select {
	case <-m.done:
	case <-ctx.Done():
		go m.post(frame{Call: callLeave})
		if pause(m.done, orDefault(p.DrainTimeout, 5*time.Second)) {
			m.close(fmt.Errorf("%w: the resident leaves", ErrLost))
		}
	}
	m.loops.Wait()
	if ctx.Err() != nil {
		return nil
	}
	return &Error{Op: "serve", Which: p.info().String(), Err: m.why()}
}

// register sends the hello and returns the answer.
func (p *Plugin) register(ctx context.Context, conn net.Conn, in *bufio.Reader) (w welcome, err error) {
	if err := conn.SetDeadline(time.Now().Add(welcomeTimeout)); err != nil {
		return w, fmt.Errorf("%w: %w", ErrLost, err)
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	info := p.info()
	if err := info.check(); err != nil {
		return w, err
	}
	writeErr := writeLine(conn, hello{protocol, info}) // a host may refuse before it reads
	err = readLine(in, &w)
	switch {
	case err != nil:
		return w, fmt.Errorf("%w: the answer to the hello %w", ErrLost, errors.Join(err, writeErr))
	case w.Error != "":
		return w, refused("%s", strings.TrimPrefix(w.Error, ErrRefused.Error()+": "))
	case w.Version != protocol:
		return w, refused("the host uses version %d of the protocol, and the resident version %d", w.Version, protocol)
	}
	return w, conn.SetDeadline(time.Time{})
}

// Run connects to the socket of the host and serves. When the connection is lost
// or p is refused, it reconnects after a pause, which grows from 100 milliseconds
// to 10 seconds. Run returns nil when ctx ends.
func (p *Plugin) Run(ctx context.Context, socket string) error {
	const first, longest = 100 * time.Millisecond, 10 * time.Second
	for wait := first; ; wait = min(2*wait, longest) {
		conn, err := new(net.Dialer).DialContext(ctx, "unix", socket)
		if err == nil {
			if err = p.Serve(ctx, conn); errors.Is(err, ErrLost) { // it has served
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
		return nil, "", "", &Error{Op: "serve", Which: "CNI_RELAY_SOCKET", Err: err}
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
