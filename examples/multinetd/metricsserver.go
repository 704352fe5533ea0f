package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	"golang.org/x/net/netutil"
	"golang.org/x/sys/unix"

	"github.com/metacni/metacni/examples/internal/daemon"
)

// serveMetrics serves pages, which have the metrics, over TCP until stop is called. While
// the address is in use, by the previous daemon that has not ended yet, it retries in the
// background.
func serveMetrics(ctx context.Context, address string, pages http.Handler, log *slog.Logger) (stop func(), _ error) {
	l, err := listenMetrics(ctx, address)
	switch {
	case errors.Is(err, unix.EADDRINUSE):
		log.LogAttrs(ctx, slog.LevelWarn, "metrics address in use, retrying", slog.Any("error", err))
	case err != nil:
		return nil, err
	}
	s := metricsServer(pages, log)
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for errors.Is(err, unix.EADDRINUSE) && daemon.Pause(ctx, metricsRetry) {
			l, err = listenMetrics(ctx, address)
		}
		if err == nil {
			log.LogAttrs(ctx, slog.LevelInfo, "serving metrics", slog.String("address", l.Addr().String()))
			err = s.Serve(netutil.LimitListener(l, metricsConnections))
		}
		if ctx.Err() == nil {
			log.LogAttrs(ctx, slog.LevelError, "serving metrics failed", slog.Any("error", err))
		}
	}()
	return func() { cancel(); _ = s.Close(); <-ended }, nil
}

// The limits of an HTTP exchange over TCP, where anybody may connect.
const (
	metricsConnections    = 512              // more wait until one is closed
	metricsReadTimeout    = 10 * time.Second // of a request, and of the wait for the first
	metricsWriteTimeout   = 10 * time.Second // for a client to take its answer
	metricsIdleTimeout    = 2 * time.Minute  // longer than scrapers pause
	metricsMaxHeaderBytes = 16 << 10
	metricsRetry          = 100 * time.Millisecond // while the address is in use
)

// metricsServer returns a server of h with limits for slow clients. It logs errors.
func metricsServer(h http.Handler, log *slog.Logger) *http.Server {
	return &http.Server{
		Handler: h, ReadTimeout: metricsReadTimeout, WriteTimeout: metricsWriteTimeout, IdleTimeout: metricsIdleTimeout,
		MaxHeaderBytes: metricsMaxHeaderBytes, ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelWarn),
	}
}

func listenMetrics(ctx context.Context, address string) (net.Listener, error) {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("metrics: %w", err)
	}
	return l, nil
}
