package webhook

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"time"
)

// The limits of a server, to which everybody in the cluster may connect.
const (
	atOnce         = 16 // requests, each with a body of up to MaxBody
	readTimeout    = 10 * time.Second
	writeTimeout   = 10 * time.Second
	idleTimeout    = 5 * time.Minute // API servers keep their connections
	maxHeaderBytes = 16 << 10
	endTimeout     = 5 * time.Second // for answers when the server ends
)

// Serve serves reviews with h over TLS, at the path /validate, until ctx ends. Then it
// returns nil after at most five seconds, in which requests that have begun are answered.
// GET /healthz answers 200, for probes. Serve closes l.
//
// Slow clients are disconnected after ten seconds, and 16 requests are served at once: each
// has at most [MaxBody] bytes. A nil log gets nothing.
func Serve(ctx context.Context, l net.Listener, h http.Handler, c *Certificate, log *slog.Logger) error {
	mux := http.NewServeMux()
	mux.Handle("/validate", limited(h, atOnce))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("ok\n")) })
	s := &http.Server{
		Handler: mux, TLSConfig: &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: c.Get},
		ReadTimeout: readTimeout, WriteTimeout: writeTimeout, IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeaderBytes,
		ErrorLog: slog.NewLogLogger(orNone(log).Handler(), slog.LevelDebug), // probes of ports, and clients that go
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

// limited lets h serve most requests at once. The others wait.
func limited(h http.Handler, most int) http.Handler {
	serving := make(chan struct{}, most)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		select {
		case serving <- struct{}{}:
			defer func() { <-serving }()
			h.ServeHTTP(w, r)
		case <-r.Context().Done():
		}
	})
}
