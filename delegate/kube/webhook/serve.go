package webhook

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"time"
)

// The limits of a server, to which everybody in the cluster may connect.
const (
	readTimeout    = 10 * time.Second
	writeTimeout   = 10 * time.Second
	idleTimeout    = 5 * time.Minute // API servers keep their connections
	maxHeaderBytes = 16 << 10
	endTimeout     = 5 * time.Second // for answers when the server ends
)

// Serve serves reviews with h over TLS, at the path /validate, until ctx ends. Then it
// returns nil after at most five seconds, in which requests that have begun are answered.
// Serve closes l.
//
// For probes, GET /healthz answers 200, and GET /readyz answers 200 unless the certificate
// has expired or is not valid yet: API servers refuse it then, and go on without the webhook.
//
// Slow clients are disconnected after ten seconds and keep nobody waiting. Two requests are
// reviewed at once. Requests that arrive while others of 32 MiB together are waiting, and
// those whose review has not begun after eight seconds, get an error, which h sees when it
// reads the body. A nil log gets nothing.
func Serve(ctx context.Context, l net.Listener, h http.Handler, c *Certificate, log *slog.Logger) error {
	s := &http.Server{
		Handler: pages(h, c), TLSConfig: &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: c.get},
		ReadTimeout: readTimeout, WriteTimeout: writeTimeout, IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeaderBytes,
		ErrorLog: slog.NewLogLogger(complaints{orNone(log).Handler()}, slog.LevelWarn),
	}
	ended := make(chan error, 1)
	go func() { ended <- s.ServeTLS(l, "", "") }()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
	}
	end, cancel := context.WithTimeout(context.WithoutCancel(ctx), endTimeout)
	defer cancel()
	err := s.Shutdown(end)
	if errors.Is(err, context.DeadlineExceeded) {
		err = s.Close()
	}
	if served := <-ended; !errors.Is(served, http.ErrServerClosed) {
		err = errors.Join(err, served)
	}
	return err
}

// pages returns a handler that serves reviews with h, and probes.
func pages(h http.Handler, c *Certificate) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/validate", newLimited(h, atOnce, room))
	probe := func(path string, check func() error) {
		mux.HandleFunc("GET "+path, func(w http.ResponseWriter, _ *http.Request) {
			if err := check(); err != nil {
				http.Error(w, err.Error(), http.StatusServiceUnavailable)
				return
			}
			_, _ = w.Write([]byte("ok\n"))
		})
	}
	probe("/healthz", func() error { return nil })
	probe("/readyz", c.ready)
	return mux
}

// complaints handles what an HTTP server complains about. That an API server refuses the
// certificate is such a line. That somebody has connected and gone is not worth one.
type complaints struct{ slog.Handler }

// Handle logs a line.
func (h complaints) Handle(ctx context.Context, r slog.Record) error {
	if strings.HasSuffix(r.Message, ": EOF") || strings.HasSuffix(r.Message, ": connection reset by peer") {
		r.Level = slog.LevelDebug
	}
	if !h.Enabled(ctx, r.Level) {
		return nil
	}
	return h.Handler.Handle(ctx, r)
}
