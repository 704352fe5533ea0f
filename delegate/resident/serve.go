package resident

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/version"
)

// welcomeTimeout is how long a host may take to say whether it wants a resident.
const welcomeTimeout = 30 * time.Second

// A Plugin is a plugin that stays. Its fields must not change once it is in
// use; it is then safe for concurrent use. It serves one host at a time.
type Plugin struct {
	Index string   // two digits; its place among residents
	Name  string   // letters, digits and _ . + -
	Types []string // of the plugins that it serves

	// Funcs makes the commands, for each call anew: those that a main would
	// pass to package skel, which print their result to stdout and end with
	// ctx. What skel does around them is done here. What they find in the
	// process's environment is not the call's: see [CallOf]. They are called
	// by any number of goroutines at once, but by one at a time for a
	// container, whichever connection they came by.
	Funcs func(ctx context.Context, stdout io.Writer) skel.CNIFuncs

	// Versions are those that the plugin supports. Nil means version.All.
	Versions version.PluginInfo

	// Synchronize, when not nil, is told all that is attached by the
	// resident's types each time it has registered, before the first call.
	// When it fails the resident is refused.
	Synchronize func(ctx context.Context, known []Known) error

	// DrainTimeout is how long calls may go on once the context of Serve has
	// ended; then theirs end too. Zero is 5 seconds.
	DrainTimeout time.Duration

	// MaxPause is the longest that Run waits before it connects again. Zero
	// is 10 seconds.
	MaxPause time.Duration

	// Logger receives what nobody else is told: panics, and why Run has to
	// connect again. Nil discards it.
	Logger *slog.Logger

	turns   turns
	mu      sync.Mutex // protects session
	session *session   // what is served; nil when there is none
}

// Serve registers d over conn and serves calls until the connection is lost or
// ctx ends, when calls that are running are waited for. It closes conn.
//
// It returns nil when ctx has ended; an [*Error] in which errors.Is finds
// [ErrRefused] when the host does not want d, with its reason; and one with
// [ErrLost] in it when the connection is lost, or when the host has not said
// within 30 seconds whether it wants d.
func (d *Plugin) Serve(ctx context.Context, conn net.Conn) error {
	defer func() { _ = conn.Close() }()
	s := &session{
		plugin: d, conn: conn, gone: make(chan struct{}), closing: make(chan struct{}), open: make(chan struct{}), out: make(chan []byte),
		waiting: make(map[uint64]chan []failure),
	}
	w, err := d.register(ctx, conn)
	if ctx.Err() != nil {
		return nil
	}
	if err != nil {
		return &Error{Op: "serve", Which: d.info().String(), Err: err}
	}
	s.requests = w.Requests
	all, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	srv := &http.Server{
		Handler: s, Protocols: new(http.Protocols),
		HTTP2:       &http.HTTP2Config{MaxConcurrentStreams: 2 * maxCalls, MaxReadFrameSize: maxFrame},
		BaseContext: func(net.Listener) context.Context { return all },
		ErrorLog:    slog.NewLogLogger(d.logger().Handler(), slog.LevelDebug),
	}
	srv.Protocols.SetUnencryptedHTTP2(true)
	l := &single{conn: &watched{Conn: conn, lost: func(error) { close(s.gone) }}, closed: make(chan struct{})}
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = srv.Serve(l) // it ends with l
	}()
	d.enter(s)
	defer d.leave(s)
	select {
	case <-s.gone:
	case <-ctx.Done():
		d.drain(all, s, srv)
	}
	_ = srv.Close()
	_ = l.conn.Close()
	<-served
	if ctx.Err() != nil {
		return nil
	}
	return &Error{Op: "serve", Which: d.info().String(), Err: ErrLost}
}

// drain ends a session once the calls that are running have ended, or when
// there is no more time for that.
func (d *Plugin) drain(ctx context.Context, s *session, srv *http.Server) {
	ctx, cancel := context.WithTimeout(ctx, d.drainTimeout())
	defer cancel()
	close(s.closing)
	if !isClosed(s.open) {
		_ = srv.Shutdown(ctx) // what is left then is closed
		return
	}
	select { // the host has been told, and closes the connection
	case <-s.gone:
	case <-ctx.Done():
	}
}

// register says who d is and hears whether it is wanted.
func (d *Plugin) register(ctx context.Context, conn net.Conn) (w welcome, err error) {
	if err := conn.SetDeadline(time.Now().Add(welcomeTimeout)); err != nil {
		return w, fmt.Errorf("%w: %w", ErrLost, err)
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	info := d.info()
	if d.Funcs == nil {
		return w, refused("%s has no commands", info)
	}
	if err := info.check(); err != nil {
		return w, err
	}
	writeErr := writeLine(conn, info.hello()) // one that was refused at once is told why nonetheless
	w, err = readWelcome(conn)
	switch {
	case err != nil:
		return w, fmt.Errorf("%w: %w", ErrLost, errors.Join(writeErr, err))
	case w.Error != "":
		return w, refused("%s", strings.TrimPrefix(w.Error, ErrRefused.Error()+": "))
	case w.Version != protocol:
		return w, refused("the host speaks version %d of the messages, and this %d", w.Version, protocol)
	}
	return w, conn.SetDeadline(time.Time{})
}

// Run connects to the host's socket and serves, and connects again when the
// connection is lost or d is refused, after a pause that grows from a tenth of
// a second to MaxPause. It returns when ctx ends, and then nil.
func (d *Plugin) Run(ctx context.Context, socket string) error {
	first := min(100*time.Millisecond, d.maxPause())
	for wait := first; ; wait = min(2*wait, d.maxPause()) {
		err := d.connect(ctx, socket)
		if errors.Is(err, errServed) {
			wait = first
		}
		d.logger().LogAttrs(ctx, slog.LevelDebug, "disconnected", slog.Duration("pause", wait), slog.Any("err", err))
		if !pause(ctx.Done(), wait) {
			return nil
		}
	}
}

// errServed says of the error of connect that d had been welcome.
var errServed = errors.New("served")

func (d *Plugin) connect(ctx context.Context, socket string) error {
	conn, err := new(net.Dialer).DialContext(ctx, "unix", socket)
	if err != nil {
		return err
	}
	err = d.Serve(ctx, conn)
	if errors.Is(err, ErrLost) {
		err = fmt.Errorf("%w: %w", errServed, err)
	}
	return err
}

// Inherited returns the connection that a process has been launched with, and
// the index and the name it was launched by, which its Plugin must have. It
// finds them in the process's environment: CNI_RELAY_INDEX, CNI_RELAY_NAME, and
// the descriptor's number in CNI_RELAY_SOCKET. Where that is not set the
// connection is nil. It is to be called once.
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
		return nil, "", "", &Error{Op: "serve", Which: "CNI_RELAY_SOCKET", Err: fmt.Errorf("%.40q is not the number of a descriptor", socket)}
	}
	f := os.NewFile(uintptr(fd), "resident")
	if f == nil {
		return nil, "", "", &Error{Op: "serve", Which: "CNI_RELAY_SOCKET", Err: os.ErrInvalid}
	}
	defer func() { _ = f.Close() }() // what is returned is another descriptor, which no child inherits
	conn, err = net.FileConn(f)
	if err != nil {
		return nil, "", "", &Error{Op: "serve", Which: "CNI_RELAY_SOCKET", Err: err}
	}
	return conn, env["CNI_RELAY_INDEX"], env["CNI_RELAY_NAME"], nil
}

func (d *Plugin) info() Info {
	return Info{Index: d.Index, Name: d.Name, Types: d.Types}
}

func (d *Plugin) logger() *slog.Logger {
	if d.Logger != nil {
		return d.Logger
	}
	return slog.New(slog.DiscardHandler)
}

func (d *Plugin) drainTimeout() time.Duration { return orDefault(d.DrainTimeout, 5*time.Second) }
func (d *Plugin) maxPause() time.Duration     { return orDefault(d.MaxPause, 10*time.Second) }

// A single is a listener of one connection.
type single struct {
	conn   net.Conn
	once   sync.Once // of Accept
	closed chan struct{}
	close  sync.Once
}

func (l *single) Accept() (conn net.Conn, err error) {
	l.once.Do(func() { conn = l.conn })
	if conn != nil {
		return conn, nil
	}
	<-l.closed
	return nil, net.ErrClosed
}

func (l *single) Close() error {
	l.close.Do(func() { close(l.closed) })
	return nil
}

func (l *single) Addr() net.Addr { return l.conn.LocalAddr() }
