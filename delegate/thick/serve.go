package thick

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"
)

// The limits of an HTTP exchange. There is no limit for the whole exchange,
// because operations have their own.
const (
	readHeaderTimeout = 5 * time.Second
	readTimeout       = 10 * time.Second // of a request, including its body
	maxHeaderBytes    = 16 << 10

	handOverTimeout = 5 * time.Second
)

// Serve serves the connections that l accepts until ctx ends, then drains and
// returns nil. When l fails, Serve drains as well and returns the error of l.
// When Serve returns, l is closed and every operation has ended.
//
// While it drains, the server accepts only DEL and GC. Operations that it has
// accepted go on for DrainTimeout; then it cancels and undoes them, and accepts
// nothing more. It answers all other requests with code 11 (STATUS with 50) and
// does nothing for them.
//
// When nothing is in flight any more, Serve lets the next daemon have the socket if l
// is the listener that [Listen] returned, and closes l otherwise. It waits up to five
// seconds for a daemon that is taking the socket over. Serve answers the requests of
// everybody who has connected by then.
//
// A connection serves one request, whose header must come within five seconds. Clients that have asked
// for neither a command nor a page of the server's own have 64 connections at most, so that they do not
// use up the descriptors of commands; further clients wait until they are accepted.
//
// Serve fails at once when Override is not a JSON object, and when it has been called
// before. A command that ignores the end of its context delays Serve for up to twice
// UndoTimeout; then Serve returns an error and leaves the command running.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	defer func() { _ = l.Close() }() // again, perhaps
	sv := s.service()
	switch {
	case sv.invalid != nil:
		return sv.invalid
	case !sv.flight.advance(serving):
		return errors.New("thick: Serve: a server serves once")
	}

	if own, ok := l.(ownListener); ok {
		sv.listener.Store(&own)
	}
	base := context.WithoutCancel(ctx)
	var busy waitSet[net.Conn]
	h := &http.Server{
		Handler:           sv,
		ReadHeaderTimeout: readHeaderTimeout,
		ReadTimeout:       readTimeout,
		MaxHeaderBytes:    maxHeaderBytes,
		ErrorLog:          slog.NewLogLogger(s.logger().Handler(), slog.LevelWarn),
		BaseContext:       func(net.Listener) context.Context { return base },
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			sv.strangers.admit(c) // no other connection is accepted meanwhile
			return context.WithValue(ctx, callerKey{}, sv.caller(c))
		},
		ConnState: func(c net.Conn, state http.ConnState) {
			switch state {
			case http.StateNew, http.StateActive:
				busy.enter(c)
			default:
				busy.leave(c)
				sv.strangers.dismiss(c)
			}
		},
	}
	h.SetKeepAlivesEnabled(false)
	replayCtx, stop := context.WithCancel(ctx)
	defer stop()
	queued := sv.relist(ctx) // an ADD that is accepted must know what is queued
	var replaying sync.WaitGroup
	replaying.Go(func() { sv.replay(replayCtx, queued) })
	var acceptErr error
	accepted := make(chan struct{})
	go func() {
		defer close(accepted)
		acceptErr = h.Serve(l)
	}()
	var err error
	select {
	case <-ctx.Done():
	case <-accepted:
		err = fmt.Errorf("serve: %w", acceptErr)
	}
	// Drain.
	sv.flight.advance(draining)
	stop()
	ended := sv.flight.settle(sv.drainTimeout(), sv.undoTimeout())
	if ended {
		replaying.Wait()
	}
	sv.handOver(base, l, accepted)
	// Not Shutdown: it would close connections that have not sent a request yet.
	if !busy.wait(sv.undoTimeout()) && ended {
		ended = sv.flight.settle(0, sv.undoTimeout())
		busy.wait(time.Second) // for clients to read their answers
	}
	_ = h.Close()
	if !ended {
		err = errors.Join(err, errStuck)
	}
	return err
}

// Strangers are connections that have asked for neither a command nor a page of the server's own.
type strangers struct {
	waitSet[net.Conn]

	places chan struct{} // has an element for each
}

// admit waits for a place for c.
func (s *strangers) admit(c net.Conn) {
	s.places <- struct{}{}
	s.enter(c)
}

// dismiss frees the place of c, if it has one.
func (s *strangers) dismiss(c net.Conn) {
	if s.leave(c) {
		<-s.places
	}
}

// An ownListener is one that [Listen] has returned.
type ownListener interface {
	handOver(ctx context.Context) error
	lost() error // why nobody can connect any more, or nil
}

// handOver lets the next daemon have l if it can, or closes l. It returns once all connections
// that l accepts are being served.
func (sv *service) handOver(ctx context.Context, l net.Listener, accepted <-chan struct{}) {
	if own, ok := l.(ownListener); ok {
		limited, cancel := context.WithTimeout(ctx, handOverTimeout)
		defer cancel()
		if err := own.handOver(limited); err != nil {
			sv.log(ctx, slog.LevelWarn, "handing the socket over failed", slog.Any("err", err))
		}
		// In case Accept does not end although handOver has returned.
		defer time.AfterFunc(handOverTimeout, func() { _ = l.Close() }).Stop()
	} else {
		_ = l.Close()
	}
	<-accepted
}
