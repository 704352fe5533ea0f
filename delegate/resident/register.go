package resident

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"github.com/metacni/metacni/internal/peer"
)

// maxPending is how many connections may be registering at the same time.
const maxPending = 32

// A candidate is a connection that may become a resident.
type candidate struct {
	Status  // of a launched resident with the index and name that it must have
	conn    net.Conn
	pending chan struct{} // holds a value until c is admitted or refused; may be nil
	settled func(error)   // called once: with nil when it serves, otherwise with the reason
	bury    func()        // ends its process; may be nil
}

// accept registers the processes that connect, until ctx ends.
func (h *Host) accept(ctx context.Context) {
	pending := make(chan struct{}, maxPending)
	for {
		conn, err := h.Listener.Accept()
		if err != nil {
			if ctx.Err() != nil || errors.Is(err, net.ErrClosed) {
				return
			}
			h.observe(Status{Source: External, UID: -1}.as(Refused, &Error{Op: "register", Which: "a new connection", Err: err}))
			if !pause(ctx.Done(), 100*time.Millisecond) { // too many open files, for instance
				return
			}
			continue
		}
		uid, ok := peer.UID(conn)
		if !ok {
			uid = -1
		}
		c := candidate{Status: Status{Source: External, UID: uid}, conn: conn, pending: pending, settled: func(error) {}}
		select {
		case pending <- struct{}{}:
			h.tasks.Go(func() { h.attend(ctx, c) })
		default:
			h.reject(c, refused("%d residents are registering already", maxPending))
		}
	}
}

// attend registers c, and returns when the connection and the process of c have
// ended.
func (h *Host) attend(ctx context.Context, c candidate) {
	e, err := h.admit(ctx, &c)
	if c.pending != nil {
		<-c.pending
	}
	if err != nil {
		h.reject(c, err)
		if c.bury != nil {
			c.bury()
		}
		c.settled(err)
		return
	}
	defer close(e.ended)
	if err = h.join(context.WithoutCancel(ctx), e); err != nil {
		h.leave(e, err)
	} else {
		h.observe(e.status())
		c.settled(nil)
	}
	<-e.gone
	e.mux.wait()
	if c.bury != nil {
		c.bury()
	}
	if err == nil {
		h.observe(e.as(Gone, e.why))
		return
	}
	err = &Error{Op: "register", Which: e.String(), Err: err}
	h.observe(e.as(Refused, err))
	c.settled(err)
}

// reject tells c and the observer why c is refused.
func (h *Host) reject(c candidate, err error) {
	_ = c.conn.SetDeadline(time.Now().Add(time.Second))
	_ = writeLine(c.conn, welcome{Version: protocol, Error: err.Error()}) // it may not listen
	_ = c.conn.Close()
	which := c.String()
	if c.Name == "" {
		which = fmt.Sprintf("a process of user %d", c.UID)
	}
	h.observe(c.as(Refused, &Error{Op: "register", Which: which, Err: err}))
}

// admit reads the hello of c and enters c in the table.
func (h *Host) admit(ctx context.Context, c *candidate) (*entry, error) {
	switch {
	case c.Source == Launched:
	case c.UID < 0:
		return nil, refused("the user of its process is unknown")
	case c.UID != 0 && c.UID != os.Geteuid():
		return nil, refused("processes of user %d may not register", c.UID)
	}
	if err := c.conn.SetDeadline(time.Now().Add(h.registerTimeout())); err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { _ = c.conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	in := bufio.NewReaderSize(c.conn, maxHello)
	var line hello
	if err := readLine(in, &line); err != nil {
		if ctx.Err() != nil {
			return nil, ErrStopped
		}
		return nil, refused("the hello %w", err)
	}
	if in.Buffered() > 0 {
		return nil, refused("more data after the hello")
	}
	if err := line.check(); err != nil {
		return nil, err
	}
	if c.Source == Launched && c.String() != line.String() {
		return nil, refused("it was launched as %s and registers as %.100q", c, line.String())
	}
	c.Info = line.Info
	m := newMux(ctx, c.conn, in)
	m.maxIn, m.maxOut, m.limit, m.slots = maxFromPlugin, maxFromHost, maxRequests, make(chan struct{}, maxCalls)
	e := &entry{Status: c.as(Joining, nil), mux: m, ready: make(chan struct{}), gone: make(chan struct{}), ended: make(chan struct{})}
	m.handle = func(ctx context.Context, call string, body []byte) ([]byte, error) {
		return nil, h.answer(ctx, e, call, body)
	}
	return e, h.claim(e)
}

// join tells e what is attached, and then lets it serve.
func (h *Host) join(ctx context.Context, e *entry) error {
	conn := e.mux.conn
	if err := errors.Join(writeLine(conn, welcome{Version: protocol, Requests: h.Requests != nil}), conn.SetDeadline(time.Time{})); err != nil {
		return err
	}
	e.mux.start() //nolint:contextcheck // handlers end with the connection
	h.tasks.Go(func() {
		<-e.mux.done
		h.leave(e, e.mux.why())
	})
	h.tasks.Go(func() { e.mux.watch(orDefault(h.pingInterval, 10*time.Second)) })
	if !h.quiet(e) {
		return e.why
	}
	known, err := h.known(ctx, e.Info)
	if err != nil {
		return fmt.Errorf("listing the attachments: %w", err)
	}
	if err := h.synchronize(ctx, e, known); err != nil {
		return fmt.Errorf("telling it the attachments: %w", err)
	}
	if err := h.remember(e); err != nil {
		return err
	}
	if !h.serve(e) {
		return e.why
	}
	return nil
}

func (h *Host) synchronize(ctx context.Context, e *entry, known []Known) error {
	ctx, cancel := context.WithTimeoutCause(ctx, h.registerTimeout(), errLate)
	defer cancel()
	_, err := e.mux.call(ctx, callSynchronize, synchronization{known})
	if err != nil && errors.Is(context.Cause(ctx), errLate) {
		return fmt.Errorf("%w (%v)", ErrTimeout, h.registerTimeout())
	}
	return err
}

// pause waits for d. It reports false when stop is closed first.
func pause(stop <-chan struct{}, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-stop:
		return false
	}
}
