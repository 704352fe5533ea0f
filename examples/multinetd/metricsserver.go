package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// serveMetrics serves the metrics and the probes, and nothing else, over TCP until
// stop is called. While the previous daemon still has the address, serveMetrics
// returns and keeps trying in the background.
func (d *daemon) serveMetrics(ctx context.Context) (stop func(), err error) {
	l, err := d.listenMetrics(ctx)
	switch {
	case errors.Is(err, unix.EADDRINUSE):
		d.log.LogAttrs(ctx, slog.LevelWarn, "waiting for the metrics address", slog.Any("error", err))
	case err != nil:
		return nil, err
	}
	s := metricsServer(d.pages(), d.log)
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		var err error
		if l == nil {
			l, err = d.awaitMetrics(ctx)
		}
		if err == nil {
			d.log.LogAttrs(ctx, slog.LevelInfo, "serving metrics", slog.String("address", l.Addr().String()))
			err = s.Serve(&newestListener{Listener: l, most: metricsConnections})
		}
		if ctx.Err() == nil {
			d.log.LogAttrs(ctx, slog.LevelError, "serving metrics failed", slog.Any("error", err))
		}
	}()
	return func() { cancel(); _ = s.Close(); <-ended }, nil
}

// pages serves the metrics and the probes, and refuses every other path as the
// server does. It is not a ServeMux, which redirects paths that are not clean.
func (d *daemon) pages() http.Handler {
	metrics := d.metrics.handler()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/metrics" {
			metrics.ServeHTTP(w, r)
			return
		}
		d.server.Probes().ServeHTTP(w, r)
	})
}

// The limits of an exchange over TCP, where anybody may connect.
const (
	metricsConnections    = 64
	metricsReadTimeout    = 10 * time.Second // to read a request, including the wait for the first
	metricsWriteTimeout   = 10 * time.Second // for a client to read its answer
	metricsIdleTimeout    = 2 * time.Minute  // longer than scrapers pause
	metricsMaxHeaderBytes = 16 << 10
)

// metricsServer returns a server of h that closes connections of slow clients and
// logs errors.
func metricsServer(h http.Handler, log *slog.Logger) *http.Server {
	return &http.Server{
		Handler: h, ReadTimeout: metricsReadTimeout, WriteTimeout: metricsWriteTimeout, IdleTimeout: metricsIdleTimeout,
		MaxHeaderBytes: metricsMaxHeaderBytes, ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelWarn),
	}
}

// A newestListener limits its open connections: when there is one too many, it
// closes the oldest. So probes are answered however many connections others hold.
type newestListener struct {
	net.Listener
	most int

	mu   sync.Mutex
	open []*newestConn // by age; guarded by mu
}

// Accept returns the next connection.
func (l *newestListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	accepted := &newestConn{c, l}
	l.mu.Lock()
	l.open = append(l.open, accepted)
	var oldest *newestConn
	if len(l.open) > l.most {
		oldest = l.open[0]
	}
	l.mu.Unlock()
	if oldest != nil {
		_ = oldest.Close() // a second Close does no harm
	}
	return accepted, nil
}

// A newestConn is a connection of a newestListener.
type newestConn struct {
	net.Conn
	l *newestListener
}

// Close closes the connection and makes room for another.
func (c *newestConn) Close() error {
	c.l.mu.Lock()
	c.l.open = slices.DeleteFunc(c.l.open, func(o *newestConn) bool { return o == c })
	c.l.mu.Unlock()
	return c.Conn.Close()
}

// awaitMetrics listens as soon as the address is free. It fails when ctx ends.
func (d *daemon) awaitMetrics(ctx context.Context) (net.Listener, error) {
	poll := time.NewTicker(100 * time.Millisecond)
	defer poll.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-poll.C:
		}
		if l, err := d.listenMetrics(ctx); !errors.Is(err, unix.EADDRINUSE) {
			return l, err
		}
	}
}

func (d *daemon) listenMetrics(ctx context.Context) (net.Listener, error) {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", d.conf.MetricsAddress)
	if err != nil {
		return nil, fmt.Errorf("metrics: %w", err)
	}
	return l, nil
}
