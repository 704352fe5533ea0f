package webhook

import (
	"context"
	"errors"
	"io"
	"net/http"
	"sync/atomic"
	"time"
)

const (
	atOnce = 2        // reviews: each may allocate 30 times the size of its request
	room   = 32 << 20 // bytes of requests that arrive, wait or are reviewed

	// patience is how long a request may take until its review begins. The API server
	// waits ten seconds, as writeTimeout does: a later answer would end the connection, on
	// which there are others.
	patience = 8 * time.Second
)

// errBusy is what reading a request fails with if there is no room for it.
var errBusy = errors.New("too many requests are waiting")

// A limited handler limits how many requests are in memory, and how many are served at
// once. A request has its turn when all of it has arrived: a client that is slow to send it
// keeps nobody waiting.
type limited struct {
	http.Handler

	turn     chan struct{}
	room     atomic.Int64 // left, in bytes
	patience time.Duration
}

func newLimited(h http.Handler, atOnce int, room int64) *limited {
	l := &limited{Handler: h, turn: make(chan struct{}, atOnce), patience: patience}
	l.room.Store(room)
	return l
}

// ServeHTTP lets the handler serve a request.
func (l *limited) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeoutCause(r.Context(), l.patience, errBusy)
	defer cancel()
	b := &limitedBody{ReadCloser: r.Body, ctx: ctx, of: l}
	defer b.release()
	r.Body = b
	l.Handler.ServeHTTP(w, r)
}

// A limitedBody is the body of a request. The reader that gets to its end has its turn.
type limitedBody struct {
	io.ReadCloser

	ctx  context.Context //nolint:containedctx // of the request
	of   *limited
	size int64
	turn bool
}

// Read reads from the body, and waits at its end until it is the turn of the request. It
// fails with errBusy if there is no room or no turn in time, and with the error of the
// context if the client goes meanwhile.
func (b *limitedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.size += int64(n)
	if b.of.room.Add(-int64(n)) < 0 {
		return 0, errBusy
	}
	if errors.Is(err, io.EOF) && !b.turn {
		select {
		case b.of.turn <- struct{}{}:
			b.turn = true
		case <-b.ctx.Done():
			return n, context.Cause(b.ctx)
		}
	}
	return n, err
}

// release ends the turn, and makes room.
func (b *limitedBody) release() {
	b.of.room.Add(b.size)
	if b.turn {
		<-b.of.turn
	}
}
