package resident

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/version"

	"github.com/metacni/metacni/delegate/thick/wire"
	"github.com/metacni/metacni/internal/skeleton"
)

// A session is a resident's end of one connection.
type session struct {
	plugin   *Plugin
	conn     net.Conn
	requests bool          // whether the host takes any
	gone     chan struct{} // closed when the connection is lost
	closing  chan struct{} // closed when the resident is to end
	open     chan struct{} // closed when the host takes lines
	opening  sync.Once     // of open
	out      chan []byte   // lines for it

	mu      sync.Mutex // protects what follows
	last    uint64
	waiting map[uint64]chan []failure
}

func (d *Plugin) enter(s *session) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.session = s
}

func (d *Plugin) leave(s *session) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.session == s {
		d.session = nil
	}
}

// ServeHTTP answers the host.
func (s *session) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodPost {
		w.WriteHeader(http.StatusMethodNotAllowed)
		return
	}
	switch r.URL.Path {
	case wire.PathCNI:
		s.answer(w, func() ([]byte, []byte, error) { return s.call(r) })
	case pathPing:
	case pathSynchronize:
		s.answer(w, func() ([]byte, []byte, error) { return nil, nil, s.synchronize(r) })
	case pathRequests:
		s.serveRequests(w, r)
	default:
		w.WriteHeader(http.StatusNotFound)
	}
}

// answer writes what do returns: what it prints, or, for the configuration that
// it was given, the error object. What panics has failed.
func (s *session) answer(w http.ResponseWriter, do func() (stdout, stdin []byte, err error)) {
	var stdout, stdin []byte
	err := s.guard(func() (err error) {
		stdout, stdin, err = do()
		return err
	})
	w.Header().Set("Content-Type", "application/json")
	if err != nil {
		w.WriteHeader(http.StatusInternalServerError)
		stdout = skeleton.ErrorObject(stdin, coded(err))
	}
	_, _ = w.Write(stdout) // the host may be gone
}

// guard returns what do returns, and an error without details when it panics.
func (s *session) guard(do func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			s.plugin.logger().Error("panic", slog.Any("value", p), slog.String("stack", string(debug.Stack())))
			err = types.NewError(types.ErrInternal, "the plugin panicked", "")
		}
	}()
	return do()
}

// call does one command.
func (s *session) call(r *http.Request) (out, stdin []byte, err error) {
	data, err := io.ReadAll(io.LimitReader(r.Body, 2*wire.MaxBody))
	if err != nil {
		return nil, nil, err
	}
	var m wire.Request
	if err := json.Unmarshal(data, &m); err != nil {
		return nil, nil, types.NewError(types.ErrDecodingFailure, "resident: the call is not the JSON expected", "")
	}
	ctx := r.Context()
	if m.DeadlineMs > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, time.Duration(m.DeadlineMs)*time.Millisecond)
		defer cancel()
	}
	out, err = s.plugin.run(ctx, r.Header.Get(headerPlugin), &m)
	return out, m.Config, err
}

// run runs the plugin of a type, as a process of its own would.
func (d *Plugin) run(ctx context.Context, plugin string, m *wire.Request) ([]byte, error) {
	if !slices.Contains(d.Types, plugin) {
		return nil, types.NewError(types.ErrInvalidNetworkConfig, "resident: "+d.info().String()+" does not serve this type", "")
	}
	c := skeleton.Call{
		Command: m.Env["CNI_COMMAND"], ContainerID: m.Env["CNI_CONTAINERID"], NetNS: m.Env["CNI_NETNS"], IfName: m.Env["CNI_IFNAME"],
		Args: m.Env["CNI_ARGS"], Path: m.Env["CNI_PATH"], NetNSOverride: m.Env["CNI_NETNS_OVERRIDE"], Stdin: m.Config,
	}
	if c.ContainerID != "" {
		release, err := d.turns.take(ctx, c.ContainerID)
		if err != nil {
			return nil, err
		}
		defer release()
	}
	ctx = context.WithValue(ctx, callKey{}, Call{Type: plugin, Env: m.Env})
	var stdout output
	p := skeleton.Plugin{Commands: func() skel.CNIFuncs { return d.Funcs(ctx, &stdout) }, Versions: d.Versions, Stdout: &stdout}
	if p.Versions == nil {
		p.Versions = version.All
	}
	if err := skeleton.Run(p, c); err != nil {
		return nil, err
	}
	return stdout.bytes(), nil
}

type callKey struct{}

// A Call is what a resident's command cannot have from its arguments.
type Call struct {
	Type string // of the plugin that is called

	// Env holds the variables of the specification, and those of a trace, as
	// a process would find them in its environment.
	Env map[string]string
}

// CallOf returns the call that ctx, which Funcs has been given, is of; it must
// not be changed. Of any other context it returns a zero one.
func CallOf(ctx context.Context) Call {
	c, _ := ctx.Value(callKey{}).(Call)
	return c
}

// synchronize tells the plugin what is attached.
func (s *session) synchronize(r *http.Request) error {
	var m synchronization
	if err := json.NewDecoder(r.Body).Decode(&m); err != nil {
		return types.NewError(types.ErrDecodingFailure, "resident: what is attached is not the JSON expected", "")
	}
	if s.plugin.Synchronize == nil {
		return nil
	}
	return s.plugin.Synchronize(r.Context(), m.Known)
}

// serveRequests takes lines to the host, and the answers from it. When it ends
// nothing can be asked for any more: the connection ends with it, and the next
// one is as good as new.
func (s *session) serveRequests(w http.ResponseWriter, r *http.Request) {
	defer func() { _ = s.conn.Close() }()
	out := http.NewResponseController(w)
	w.WriteHeader(http.StatusOK)
	s.opening.Do(func() { close(s.open) })
	if out.Flush() != nil {
		return
	}
	ended := make(chan struct{})
	go func() { // until the body is closed, which it is when this handler returns
		defer close(ended)
		s.readReplies(r.Body)
	}()
	closing := s.closing
	for {
		var line []byte
		select {
		case line = <-s.out:
		case <-closing:
			closing = nil // once
			line = []byte(`{"leaving":true}` + "\n")
		case <-ended:
			return
		case <-r.Context().Done():
			return
		}
		if _, err := w.Write(line); err != nil || out.Flush() != nil {
			return
		}
	}
}

func (s *session) readReplies(body io.Reader) {
	lines := newLines(body)
	for {
		line, err := lines.next()
		if err != nil {
			return
		}
		var a reply
		if json.Unmarshal(line, &a) != nil {
			continue // the host is newer
		}
		s.mu.Lock()
		heard := s.waiting[a.ID]
		delete(s.waiting, a.ID)
		s.mu.Unlock()
		if heard != nil {
			heard <- a.Failed // has room for it
		}
	}
}

// Request asks the host for updates, which it does one after the other, and
// returns those that failed, with texts of up to 1000 bytes. It may be called by
// a command; but what is asked for a container waits for the command of that
// container to end, so a command must not wait for it.
//
// It fails with [ErrGone] when d is not connected, or is still told what is
// attached, as it is by Synchronize; with [errors.ErrUnsupported] when the host
// takes no requests; and when us are more than 64 or more than 1 MiB. When it
// fails with [ErrLost], because the connection is lost meanwhile, or because ctx
// ends, what was asked for may have been done.
func (d *Plugin) Request(ctx context.Context, us ...Update) ([]Failed, error) {
	failed := &Error{Op: "request", Which: d.info().String()}
	d.mu.Lock()
	s := d.session
	d.mu.Unlock()
	switch {
	case s == nil:
		failed.Err = ErrGone
		return nil, failed
	case !s.requests:
		failed.Err = errors.ErrUnsupported
		return nil, failed
	case !isClosed(s.open):
		failed.Err = fmt.Errorf("%w yet: it has not been told what is attached", ErrGone)
		return nil, failed
	}
	answer, err := s.request(ctx, us)
	if err != nil {
		failed.Err = err
		return nil, failed
	}
	var undone []Failed
	for _, f := range answer {
		if f.Index >= 0 && f.Index < len(us) && f.Error != nil {
			undone = append(undone, Failed{us[f.Index], f.Error})
		}
	}
	return undone, nil
}

func (s *session) request(ctx context.Context, us []Update) ([]failure, error) {
	if len(us) > maxUpdates {
		return nil, fmt.Errorf("%d updates are more than %d", len(us), maxUpdates)
	}
	q := request{Updates: []update{}}
	for _, u := range us {
		m, err := u.message()
		if err != nil {
			return nil, err
		}
		q.Updates = append(q.Updates, m)
	}
	answer := make(chan []failure, 1)
	q.ID = s.await(answer)
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.waiting, q.ID)
	}()
	line, err := json.Marshal(q)
	if err != nil {
		return nil, err
	}
	if len(line) >= maxRequest {
		return nil, fmt.Errorf("%d bytes are more than %d", len(line), maxRequest)
	}
	line = append(line, '\n')
	out := s.out
	for {
		select {
		case out <- line:
			out = nil // once
		case f := <-answer:
			return f, nil
		case <-s.gone:
			return nil, ErrLost
		case <-s.closing:
			return nil, ErrLost
		case <-ctx.Done():
			return nil, ended(ctx)
		}
	}
}

// await has heard be told of the answer to the request whose ID it returns.
func (s *session) await(heard chan []failure) (id uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last++
	s.waiting[s.last] = heard
	return s.last
}

// An output takes what a plugin prints, from all of its goroutines.
type output struct {
	mu  sync.Mutex // protects buf
	buf bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.Write(p)
}

func (o *output) bytes() []byte {
	o.mu.Lock()
	defer o.mu.Unlock()
	out := o.buf.Bytes()
	o.buf = bytes.Buffer{} // what is printed from now on is too late
	return out
}
