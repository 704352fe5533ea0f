package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/nri/pkg/stub"
	"github.com/containerd/ttrpc"

	"github.com/metacni/metacni/examples/internal/program"
)

const (
	firstWait   = 100 * time.Millisecond // before connecting again
	longestWait = 10 * time.Second
)

// linger is how long the connection stays open to send the last answers. The stub does
// not say when they have been sent.
const linger = 100 * time.Millisecond

// abandoned is the configuration of a runtime that has sent none.
const abandoned = "\x00"

// errLost says that the runtime has ended the connection.
var errLost = errors.New("nri: the runtime has closed the connection")

// Run serves the runtime until ctx ends, and connects again if a connection is lost. It
// fails if the configuration is invalid, if another plugin has the state directory, or if a
// launched plugin loses its only connection.
//
// When ctx ends, an ADD that is running has the time that the runtime gives it, and is
// answered. Undoing and detaching are completed. No goroutine is left.
func (p *Plugin) Run(ctx context.Context) error {
	conf, err := p.Config.complete()
	if err != nil {
		return err
	}
	defer func() {
		if o := p.opened.Load(); o != nil {
			o.close()
		}
	}()
	ctx, stop := context.WithCancel(ctx)
	p.alive, p.news = ctx, make(chan struct{}, 1)
	var reconciler sync.WaitGroup
	reconciler.Go(func() { p.reconcile(ctx) })
	defer reconciler.Wait()
	defer p.finish()
	defer stop()
	for wait := firstWait; ; wait = min(2*wait, longestWait) {
		err := p.serve(ctx, conf)
		switch {
		case ctx.Err() != nil:
			return nil
		case p.Launched, errors.Is(err, errTaken):
			return err
		case errors.Is(err, errLost):
			wait = firstWait // it was connected
		}
		p.Logger.WarnContext(ctx, "not connected", slog.Any("err", err), slog.Duration("wait", wait))
		program.Pause(ctx, wait)
	}
}

// serve connects to the runtime and serves it until the connection or ctx ends.
func (p *Plugin) serve(ctx context.Context, conf Config) error {
	p.stage.Store(stageConnecting)
	defer p.stage.Store(stageConnecting)
	// The connection outlives ctx until the last answers have been sent.
	served, disconnect := context.WithCancel(context.WithoutCancel(ctx))
	defer disconnect()
	var s stub.Stub
	registered := func(ctx context.Context, req *ttrpc.Request, resp *ttrpc.Response, _ *ttrpc.UnaryClientInfo, call ttrpc.Invoker) error {
		err := call(ctx, req, resp)
		if err == nil && req.Method == "RegisterPlugin" {
			context.AfterFunc(served, func() { p.release(context.WithoutCancel(ctx), s) })
		}
		return err
	}
	options := []stub.Option{
		stub.WithLogger(stubLogger{p.Logger}),
		// If this plugin is late or lost, a runtime that supports this policy
		// does not start the pod, and keeps the plugin.
		stub.WithFailurePolicy(&api.FailurePolicy{FailRequest: true, KeepConnected: true}),
		stub.WithTTRPCOptions([]ttrpc.ClientOpts{ttrpc.WithOnClose(disconnect), ttrpc.WithUnaryClientInterceptor(registered)}, nil),
	}
	if !p.Launched {
		options = append(options, stub.WithPluginIdx(conf.Index), stub.WithPluginName(conf.Name), stub.WithSocketPath(conf.Socket))
	}
	if p.dial != nil {
		options = append(options, stub.WithDialer(p.dial))
	}
	s, err := stub.New(p, options...)
	if err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- s.Run(served) }()
	select {
	case err := <-ended:
		return p.lost(err)
	case <-ctx.Done():
	}
	p.finish()
	select {
	case <-time.After(linger):
	case <-served.Done():
	}
	disconnect()
	return p.lost(<-ended)
}

// lost returns why a connection has ended. err is what the stub has returned.
func (p *Plugin) lost(err error) error {
	if err == nil || p.live() {
		return errLost
	}
	return err
}

// release configures a stub that waits for that, which it does forever, even after the
// connection is lost.
func (p *Plugin) release(ctx context.Context, s stub.Stub) {
	if service, ok := s.(api.PluginService); ok && p.stage.Load() == stageConnecting {
		_, _ = service.Configure(ctx, &api.ConfigureRequest{Config: abandoned})
	}
}

// stubLogger logs informational messages of the stub as debug messages.
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
