package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/nri/pkg/stub"
	"github.com/containerd/ttrpc"
)

const (
	firstWait   = 100 * time.Millisecond // before connecting again
	longestWait = 10 * time.Second
)

// linger is how long the connection stays open for the last answers to get on
// their way: the stub does not say when they are.
const linger = 100 * time.Millisecond

// abandoned stands for the configuration that a runtime has not sent.
const abandoned = "\x00"

// errLost is the end of a connection that was not ours to end.
var errLost = errors.New("nri: the runtime has closed the connection")

// A dialer connects to the runtime's socket.
type dialer func(ctx context.Context, path string) (net.Conn, error)

// Run serves the runtime until ctx ends, on one connection after the other. It
// returns an error when it cannot: the configuration is wrong, another plugin
// has the state directory, or the one connection that a launched plugin has is
// lost.
//
// When ctx ends, what is being attached has the time that the runtime gives it,
// its answer is sent, what is being undone or detached is brought to an end, and
// nothing is left running.
func (p *Plugin) Run(ctx context.Context) error {
	conf, err := p.Config.complete()
	if err != nil {
		return err
	}
	defer p.yield()
	ctx, stop := context.WithCancel(ctx)
	var reconciler sync.WaitGroup
	reconciler.Go(func() { p.reconcile(ctx) })
	defer reconciler.Wait()
	defer p.work.end()
	defer stop()
	for wait := firstWait; ; wait = min(2*wait, longestWait) {
		err := p.serve(ctx, conf)
		switch {
		case ctx.Err() != nil:
			return nil
		case p.Launched || p.refused():
			return err
		case errors.Is(err, errLost):
			wait = firstWait // there was a connection
		}
		p.log().WarnContext(ctx, "not connected", slog.Any("err", err), slog.Duration("wait", wait))
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
		case <-timer.C:
		}
		timer.Stop()
	}
}

// serve connects to the runtime and serves it until the connection or ctx ends.
func (p *Plugin) serve(ctx context.Context, conf Config) error {
	p.begin()
	defer p.begin() // what was said on this connection is over with it
	options := []stub.Option{
		stub.WithLogger(stubLogger{p.log()}),
		// Should we be late or gone all the same, a runtime that knows of such
		// a policy does not start the pod, and does not give us up.
		stub.WithFailurePolicy(&api.FailurePolicy{FailRequest: true, KeepConnected: true}),
	}
	lost := make(chan struct{})
	if !p.Launched {
		conn, err := p.connect(ctx, conf.Socket)
		if err != nil {
			return err
		}
		defer func() { _ = conn.Close() }()
		watched := &watchedConn{Conn: conn, lost: lost}
		options = append(options, stub.WithPluginIdx(conf.Index), stub.WithPluginName(conf.Name), stub.WithConnection(watched))
	}
	registered := make(chan struct{})
	options = append(options, stub.WithTTRPCOptions([]ttrpc.ClientOpts{ttrpc.WithUnaryClientInterceptor(
		func(ctx context.Context, req *ttrpc.Request, resp *ttrpc.Response, _ *ttrpc.UnaryClientInfo, call ttrpc.Invoker) error {
			err := call(ctx, req, resp)
			if err == nil && req.Method == "RegisterPlugin" {
				close(registered)
			}
			return err
		})}, nil))
	s, err := stub.New(p, options...)
	if err != nil {
		return err
	}
	// The connection outlives ctx, by as much as the last answers take.
	served, disconnect := context.WithCancel(context.WithoutCancel(ctx))
	defer disconnect()
	ended := make(chan error, 1)
	go func() { ended <- s.Run(served) }()
	select {
	case err := <-ended:
		return p.lost(err)
	case <-lost:
	case <-ctx.Done():
		if p.work.end() {
			timer := time.NewTimer(linger)
			defer timer.Stop()
			select {
			case <-timer.C:
			case <-lost:
			}
		}
	}
	disconnect()
	select {
	case err := <-ended:
		return p.lost(err)
	case <-registered:
		p.release(served, s)
	}
	return p.lost(<-ended)
}

// begin forgets what belongs to one connection.
func (p *Plugin) begin() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.configured, p.synchronized = false, false
}

func (p *Plugin) connect(ctx context.Context, path string) (net.Conn, error) {
	if p.dial != nil {
		return p.dial(ctx, path)
	}
	return (&net.Dialer{}).DialContext(ctx, "unix", path)
}

// lost says why a connection has ended, for which the stub gave err.
func (p *Plugin) lost(err error) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.taken != nil:
		return p.taken
	case p.synchronized || err == nil:
		return errLost
	}
	return err
}

// refused reports whether another plugin has the state directory.
func (p *Plugin) refused() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.taken != nil
}

// release lets a stub go that waits to be configured. It does so for ever, even
// when there is nobody left to do it.
func (p *Plugin) release(ctx context.Context, s stub.Stub) {
	p.mu.Lock()
	configured := p.configured
	p.mu.Unlock()
	if service, ok := s.(api.PluginService); ok && !configured {
		_, _ = service.Configure(ctx, &api.ConfigureRequest{Config: abandoned})
	}
}

// A watchedConn closes lost when nothing can be read from it any more.
type watchedConn struct {
	net.Conn
	once sync.Once
	lost chan struct{}
}

// Read reads from the connection.
func (c *watchedConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if err != nil {
		c.once.Do(func() { close(c.lost) })
	}
	return n, err
}

// work is all that the plugin is doing. Its zero value is ready for use.
type work struct {
	running sync.WaitGroup

	mu      sync.Mutex // guards what follows
	ended   bool
	going   int
	cancels map[*context.CancelFunc]struct{}
}

// start runs f beside the caller, unless work has ended.
func (w *work) start(f func()) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ended {
		return false
	}
	w.going++
	w.running.Go(func() {
		f()
		w.mu.Lock()
		defer w.mu.Unlock()
		w.going--
	})
	return true
}

// context returns one that outlives ctx, by detachedTimeout, but not w.
func (w *work) context(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), detachedTimeout)
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.cancels == nil {
		w.cancels = make(map[*context.CancelFunc]struct{})
	}
	w.cancels[&cancel] = struct{}{}
	if w.ended {
		cancel()
	}
	return ctx, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.cancels, &cancel)
		cancel()
	}
}

// end lets nothing start any more, ends what need not go on, and waits for the
// rest. It reports whether there was anything to wait for.
func (w *work) end() bool {
	w.mu.Lock()
	w.ended = true
	busy := w.going > 0
	for cancel := range w.cancels {
		(*cancel)()
	}
	w.mu.Unlock()
	w.running.Wait()
	return busy
}

// stubLogger takes what the stub says for what it is: details.
type stubLogger struct{ log *slog.Logger }

func (l stubLogger) Debugf(ctx context.Context, format string, args ...any) {
	l.log.DebugContext(ctx, fmt.Sprintf(format, args...))
}

func (l stubLogger) Infof(ctx context.Context, format string, args ...any) {
	l.log.DebugContext(ctx, fmt.Sprintf(format, args...))
}

func (l stubLogger) Warnf(ctx context.Context, format string, args ...any) {
	l.log.WarnContext(ctx, fmt.Sprintf(format, args...))
}

func (l stubLogger) Errorf(ctx context.Context, format string, args ...any) {
	l.log.ErrorContext(ctx, fmt.Sprintf(format, args...))
}
