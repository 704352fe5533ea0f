package resident

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"github.com/metacni/metacni/internal/fault"
	"github.com/metacni/metacni/internal/peer"
)

// maxPending is how many connections may be registering at the same time. Others wait
// to be accepted.
const maxPending = 32

// A candidate is a connection that may become a resident.
type candidate struct {
	Status  // of a launched resident with the index and name that it must have
	conn    net.Conn
	pending chan struct{} // holds a value while c registers; may be nil
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
			h.observe(Status{UID: -1}.as(Refused, fault.Of("register", "a new connection", err)))
			if !pause(ctx.Done(), 100*time.Millisecond) { // too many open files, for instance
				return
			}
			continue
		}
		uid, ok := peer.UID(conn)
		if !ok {
			uid = -1
		}
		c := candidate{Status: Status{UID: uid}, conn: conn, pending: pending, settled: func(error) {}}
		pending <- struct{}{}
		h.tasks.Go(func() { h.attend(ctx, c) })
	}
}

// attend registers c, and returns when the connection and the process of c have
// ended.
func (h *Host) attend(ctx context.Context, c candidate) {
	e := h.connect(ctx, c)
	defer close(e.ended)
	err := h.admit(ctx, e)
	if err == nil {
		err = h.join(context.WithoutCancel(ctx), e)
	}
	if err == nil {
		s := e.Status
		s.State = Ready
		h.observe(s)
		c.settled(nil)
	} else {
		h.reject(context.WithoutCancel(ctx), e, err)
	}
	if c.pending != nil {
		<-c.pending
	}
	<-e.done
	h.changed()
	_ = e.client.Close() // waits for the handlers of requests
	if c.bury != nil {
		c.bury()
	}
	if err == nil {
		h.observe(e.as(Gone, e.why()))
		return
	}
	which := e.String()
	if e.Name == "" {
		which = fmt.Sprintf("a process of user %d", e.UID)
	}
	err = fault.Of("register", which, err)
	h.observe(e.as(Refused, err))
	c.settled(err)
}

// reject tells e why it is refused, and disconnects it.
func (h *Host) reject(ctx context.Context, e *entry, why error) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	_ = e.call(ctx, methodRefused, refusal{why.Error()}, nil) // it may not listen
	e.fail(why)
}

// admit asks e who it is and enters it in the table.
func (h *Host) admit(ctx context.Context, e *entry) error {
	switch {
	case e.Path != "": // launched
	case e.UID < 0:
		return refused("the user of its process is unknown")
	case e.UID != 0 && e.UID != os.Geteuid():
		return refused("processes of user %d may not register", e.UID)
	}
	defer context.AfterFunc(ctx, func() { e.fail(ErrStopped) })()
	var said hello
	if err := h.step(ctx, e, methodRegister, greeting{protocol, h.Requests != nil}, &said); err != nil {
		return fmt.Errorf("asking who it is: %w", err)
	}
	if said.Version != protocol {
		return refused("it uses version %d of the protocol, and the host version %d: build the plugin and the daemon with the same release of the SDK", said.Version, protocol)
	}
	if err := said.check(); err != nil {
		return err
	}
	if e.Path != "" && e.String() != said.String() {
		return refused("it was launched as %s and registers as %.100q", e, said.String())
	}
	e.Info = said.Info
	e.limit.Store(maxFromPlugin)
	return h.claim(e)
}

// join tells e what is attached, and then lets it serve.
func (h *Host) join(ctx context.Context, e *entry) error {
	h.tasks.Go(func() { e.watch(ctx, orDefault(h.pingInterval, 10*time.Second)) })
	known, err := h.known(ctx, e.Info)
	if err != nil {
		return fmt.Errorf("listing the attachments: %w", err)
	}
	if err := h.step(ctx, e, methodSynchronize, synchronization{known}, nil); err != nil {
		return fmt.Errorf("telling it the attachments: %w", err)
	}
	if err := h.remember(e.Info); err != nil {
		return fmt.Errorf("noting its types: %w", err)
	}
	if !h.serve(e) {
		return e.why()
	}
	return nil
}

// step makes a call of the registration.
func (h *Host) step(ctx context.Context, e *entry, method string, params, result any) error {
	ctx, cancel := context.WithTimeoutCause(ctx, h.registerTimeout(), errLate)
	defer cancel()
	err := e.call(ctx, method, params, result)
	switch {
	case err != nil && errors.Is(context.Cause(ctx), errLate):
		return fmt.Errorf("%w (%v)", errTimeout, h.registerTimeout())
	case errors.Is(err, errGone) && e.closed(): // the message was not sent
		return e.why()
	}
	return err
}
