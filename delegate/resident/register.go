package resident

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"time"

	"github.com/metacni/metacni/internal/peer"
)

// maxPending is how many connections may be registering at the same time.
const maxPending = 32

// A candidate is a connection that may become a resident.
type candidate struct {
	conn     net.Conn
	source   Source
	want     *Info // the required index and name; nil allows any
	path     string
	uid, pid int
	settled  func(error) // called once: with nil when it serves, otherwise with the reason
	bury     func()      // ends its process; may be nil
}

// accept registers the processes that connect.
func (h *Host) accept(ctx context.Context) {
	for {
		conn, err := h.Listener.Accept()
		if err != nil {
			if isClosed(h.stopping) || errors.Is(err, net.ErrClosed) {
				return
			}
			h.observe(Status{State: Refused, Source: External, UID: -1, Err: &Error{Op: "register", Which: "a new connection", Err: err}})
			if !pause(h.stopping, 100*time.Millisecond) { // too many open files, for instance
				return
			}
			continue
		}
		uid, ok := peer.UID(conn)
		if !ok {
			uid = -1
		}
		c := candidate{conn: conn, source: External, uid: uid, settled: func(error) {}}
		if err := h.expect(conn, maxPending); err != nil {
			h.reject(c, Info{}, err)
			continue
		}
		h.tasks.Go(func() { h.attend(ctx, c) })
	}
}

// attend registers c, and returns when the connection and the process of c have
// ended.
func (h *Host) attend(ctx context.Context, c candidate) {
	e, err := h.admit(c)
	h.settle(c.conn)
	if err != nil {
		who := Info{}
		if e != nil {
			who = e.Info
		} else if c.want != nil {
			who = *c.want
		}
		h.reject(c, who, err)
		if c.bury != nil {
			c.bury()
		}
		c.settled(err)
		return
	}
	defer close(e.ended)
	if err = h.join(ctx, e); err != nil {
		h.leave(e, err)
	} else {
		h.observe(e.status())
		c.settled(nil)
	}
	<-e.gone
	e.mux.close(e.why)
	e.mux.loops.Wait()
	e.mux.tasks.Wait()
	if c.bury != nil {
		c.bury()
	}
	s := e.status()
	s.State, s.Since, s.Err = Gone, time.Now(), e.why
	if err != nil {
		s.State, s.Err = Refused, &Error{Op: "register", Which: e.String(), Err: err}
	}
	h.observe(s)
	if err != nil {
		c.settled(s.Err)
	}
}

// reject tells c and the observer why c is refused.
func (h *Host) reject(c candidate, who Info, err error) {
	_ = c.conn.SetDeadline(time.Now().Add(time.Second))
	_ = writeLine(c.conn, welcome{Version: protocol, Error: err.Error()}) // it may not listen
	_ = c.conn.Close()
	s := Status{Info: who, State: Refused, Source: c.source, Path: c.path, UID: c.uid, PID: c.pid, Since: time.Now()}
	which := who.String()
	if who.Name == "" {
		which = fmt.Sprintf("a process of user %d", c.uid)
	}
	s.Err = &Error{Op: "register", Which: which, Err: err}
	h.observe(s)
}

// admit reads the hello of c and enters c in the table. Together with an error it
// returns an entry that is not in the table, or nil.
func (h *Host) admit(c candidate) (*entry, error) {
	if c.source == External && c.uid < 0 {
		return nil, refused("the user of its process is unknown")
	}
	if c.source == External && !slices.Contains(h.allowed(), c.uid) {
		return nil, refused("processes of user %d may not register", c.uid)
	}
	if err := c.conn.SetDeadline(time.Now().Add(h.registerTimeout())); err != nil {
		return nil, err
	}
	in := bufio.NewReaderSize(c.conn, maxHello)
	var line hello
	if err := readLine(in, &line); err != nil {
		return nil, refused("the hello %w", err)
	}
	if in.Buffered() > 0 {
		return nil, refused("more data after the hello")
	}
	info, err := line.info()
	if err == nil && c.want != nil && info.String() != c.want.String() {
		err = refused("it was launched as %s and registers as %.100q", c.want, info.String())
	}
	if err != nil {
		return nil, err
	}
	m := newMux(c.conn, in)
	m.maxIn, m.maxOut, m.limit, m.slots = maxFromPlugin, maxFromHost, maxRequests, make(chan struct{}, maxCalls)
	e := &entry{
		Info: info, source: c.source, path: c.path, uid: c.uid, pid: c.pid, since: time.Now(), mux: m,
		ready: make(chan struct{}), gone: make(chan struct{}), ended: make(chan struct{}),
	}
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
	e.mux.start(ctx)
	h.tasks.Go(func() {
		<-e.mux.done
		h.leave(e, e.mux.err)
	})
	h.tasks.Go(func() { e.mux.watch(h.pingInterval()) })
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

// allowed lists the users that may register.
func (h *Host) allowed() (uids []int) {
	if h.AllowUIDs == nil {
		return []int{0, os.Geteuid()}
	}
	for _, uid := range h.AllowUIDs {
		uids = append(uids, int(uid))
	}
	return uids
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
