package resident

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/creachadair/jrpc2"

	"github.com/metacni/metacni/internal/fault"
	"github.com/metacni/metacni/internal/peer"
)

// maxPending is how many connections may be registering at the same time. Others wait
// to be accepted.
const maxPending = 32

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
		uid, _ := peer.UID(conn)
		pending <- struct{}{}
		settled := sync.OnceFunc(func() { <-pending })
		h.tasks.Go(func() {
			defer settled()
			_ = h.attend(ctx, &entry{Status: Status{UID: uid}}, conn, settled) // observed
		})
	}
}

// attend registers e, calls joined when e serves, and returns when the connection and the
// process of e have ended. It fails when e could not register.
func (h *Host) attend(ctx context.Context, e *entry, conn net.Conn, joined func()) error {
	h.connect(ctx, e, conn)
	err := h.admit(ctx, e)
	ctx = context.WithoutCancel(ctx)
	if err == nil {
		err = h.join(ctx, e)
	}
	if err == nil {
		h.observe(e.Status)
		joined()
	} else {
		_ = e.call(ctx, time.Second, methodRefused, refusal{err.Error()}, nil) // it may not listen
		e.fail(err)
	}
	<-e.done
	h.changed()
	_ = e.client.Close() // waits for the handlers of requests
	if e.bury != nil {
		e.bury()
	}
	if err == nil {
		h.observe(e.gone())
		return nil
	}
	which := e.String()
	if e.Name == "" {
		which = fmt.Sprintf("a process of user %d", e.UID)
	}
	err = fault.Of("register", which, err)
	h.observe(e.as(Refused, err))
	return err
}

// connect begins to exchange messages with e. The end of ctx has no effect.
func (h *Host) connect(ctx context.Context, e *entry, conn net.Conn) {
	ctx = context.WithoutCancel(ctx)
	e.Status, e.link = e.as(Joining, nil), newLink(ctx, conn, maxFromPlugin)
	e.client = jrpc2.NewClient(e.link, &jrpc2.ClientOptions{
		OnCallback: func(ctx context.Context, r *jrpc2.Request) (any, error) { return nil, failure(h.answer(ctx, e, r)) },
		OnNotify: func(r *jrpc2.Request) {
			if r.Method() == methodLeave {
				h.edit(e, func() { e.leaving = true })
			}
		},
		OnCancel: func(client *jrpc2.Client, r *jrpc2.Response) {
			_ = client.Notify(ctx, methodCancel, []string{r.ID()}) // fails if the connection is lost
		},
	})
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
	defer context.AfterFunc(ctx, func() { e.fail(errStopped) })()
	var said hello
	if err := e.call(ctx, h.registerTimeout(), methodRegister, greeting{protocol}, &said); err != nil {
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
	return h.claim(e)
}

// join tells e what is attached, and then lets it serve.
func (h *Host) join(ctx context.Context, e *entry) error {
	known, err := h.known(ctx, e.Types)
	if err != nil {
		return fmt.Errorf("listing the attachments: %w", err)
	}
	if err := e.call(ctx, h.registerTimeout(), methodSynchronize, synchronization{known}, nil); err != nil {
		return fmt.Errorf("telling it the attachments: %w", err)
	}
	if h.Orphan >= 0 {
		err = h.notes().keep(e.Types)
	}
	if err != nil {
		return fmt.Errorf("noting its types: %w", err)
	}
	if !h.serve(e) {
		return e.why()
	}
	return nil
}

// answer handles a request of e. A panic becomes an error: it ends neither the host
// nor other calls.
func (h *Host) answer(ctx context.Context, e *entry, call *jrpc2.Request) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = types.NewError(types.ErrInternal, fmt.Sprintf("the host panicked: %v", v), "")
		}
	}()
	switch {
	case call.Method() != methodRequest:
		return types.NewError(types.ErrInvalidEnvironmentVariables, fmt.Sprintf("unknown call %.40q", call.Method()), "")
	case !h.serves(e):
		return errGone
	case h.Requests == nil:
		return types.NewError(types.ErrInvalidEnvironmentVariables, "the host takes no requests", "")
	}
	var r Request
	if err := call.UnmarshalParams(&r); err != nil {
		return types.NewError(types.ErrDecodingFailure, "invalid request: "+err.Error(), "")
	}
	if err := r.check(); err != nil {
		return err
	}
	return h.Requests(ctx, e.Info, r)
}
