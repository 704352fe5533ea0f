package thick

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"
)

// The limits of an HTTP exchange. There is none for the whole of it: operations
// have their own.
const (
	readHeaderTimeout = 5 * time.Second
	readTimeout       = 10 * time.Second // of a request, its body included
	idleTimeout       = 30 * time.Second
	maxHeaderBytes    = 16 << 10

	handOverTimeout = 5 * time.Second
)

// Serve serves the connections that l accepts until ctx ends, drains, and
// returns nil. When l fails it drains too, and returns its error. l is closed
// when Serve returns, and everything that Serve has started has ended.
//
// It serves at once. To drain is to take on nothing new except DEL and GC, to
// wait for what has been taken on, for DrainTimeout, and to cancel and undo what
// is left. What comes meanwhile, and what had no turn in that time, is answered
// with code 11 (a STATUS with 50), and nothing has been done for it.
//
// When l has a method HandOver(context.Context) error, as a [Listener] has, it
// is called once nothing is in flight any more: it lets a successor take the
// socket's place before this server leaves it. Serve goes on until Accept has
// returned what had connected by then, and failed. What HandOver returns is
// logged.
//
// Serve fails at once when Commands has no Add or no Del, when Override is not a JSON object,
// and when it has been called before. A handler that does not heed the end of
// its context keeps Serve until it has had its time twice; then Serve returns
// an error, and leaves it running.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	defer func() { _ = l.Close() }() // which it may be already
	sv := s.service()
	switch {
	case s.Commands.Add == nil || s.Commands.Del == nil:
		return errors.New("thick: Serve: Commands has no Add or no Del")
	case sv.overrideErr != nil:
		return sv.overrideErr
	case s.served.Swap(true):
		return errors.New("thick: Serve: a server serves once")
	}

	base := context.WithoutCancel(ctx)
	var conns connections
	h := &http.Server{
		Handler:           sv,
		ReadHeaderTimeout: readHeaderTimeout,
		ReadTimeout:       readTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeaderBytes,
		ErrorLog:          slog.NewLogLogger(s.logger().Handler(), slog.LevelWarn),
		BaseContext:       func(net.Listener) context.Context { return base },
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			return context.WithValue(ctx, callerKey{}, sv.caller(c))
		},
		ConnState: conns.changed,
	}
	var acceptErr error
	accepted := make(chan struct{})
	go func() {
		defer close(accepted)
		acceptErr = h.Serve(l)
	}()
	replayCtx, stop := context.WithCancel(ctx)
	defer stop()
	replayed := make(chan struct{})
	go func() {
		defer close(replayed)
		if s.Queue != "" {
			sv.replay(replayCtx)
		}
	}()

	var err error
	select {
	case <-ctx.Done():
	case <-accepted:
		err = fmt.Errorf("thick: Serve: %w", acceptErr)
	}
	stop()
	return errors.Join(err, sv.drain(base, l, h, &conns, accepted, replayed))
}

// drain ends the service of l by h, after all that was begun.
func (sv *service) drain(ctx context.Context, l net.Listener, h *http.Server, conns *connections, accepted, replayed <-chan struct{}) error {
	sv.flight.drain()
	ended := sv.flight.settle(sv.drainTimeout(), sv.undoTimeout())
	// It may have begun one more DEL just before it was told to stop.
	if ended && !within(sv.undoTimeout(), replayed) {
		ended = sv.flight.settle(0, sv.undoTimeout()) && within(time.Second, replayed)
	}
	sv.handOver(ctx, l, accepted)
	// Not Shutdown: it would hang up on those that have connected and not said
	// what they want.
	if !conns.busy.wait(sv.undoTimeout()) && ended {
		ended = sv.flight.settle(0, sv.undoTimeout())
		conns.busy.wait(time.Second) // to take their answers
	}
	_ = h.Close()
	if !ended || !conns.open.wait(sv.undoTimeout()) {
		return errors.New("thick: Serve: there are operations that do not end")
	}
	return nil
}

// within waits until done is closed, for d at most, and reports whether it is.
func within(d time.Duration, done <-chan struct{}) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-done:
		return true
	case <-t.C:
		return false
	}
}

// handOver lets a successor take the place of l, closes l, and returns once
// all that it accepted is being served.
func (sv *service) handOver(ctx context.Context, l net.Listener, accepted <-chan struct{}) {
	if to, ok := l.(interface {
		HandOver(ctx context.Context) error
	}); ok {
		limited, cancel := context.WithTimeout(ctx, handOverTimeout)
		defer cancel()
		if err := to.HandOver(limited); err != nil {
			sv.log(ctx, slog.LevelWarn, "hand over", slog.Any("err", err))
		}
		// A listener that breaks its word is closed all the same.
		defer time.AfterFunc(handOverTimeout, func() { _ = l.Close() }).Stop()
	} else {
		_ = l.Close()
	}
	<-accepted
	_ = l.Close()
}

// connections are those of an http.Server.
type connections struct {
	open crowd[net.Conn]
	busy crowd[net.Conn] // those of open that wait for an answer, or may be about to ask
}

// changed is called by the http.Server, once a connection is in the state.
func (cs *connections) changed(c net.Conn, state http.ConnState) {
	switch state {
	case http.StateNew:
		cs.open.enter(c)
		cs.busy.enter(c)
	case http.StateActive:
		cs.busy.enter(c)
	case http.StateIdle:
		cs.busy.leave(c)
	case http.StateHijacked, http.StateClosed:
		cs.busy.leave(c)
		cs.open.leave(c)
	}
}
