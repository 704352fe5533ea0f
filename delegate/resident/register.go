package resident

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"time"

	"github.com/metacni/metacni/internal/peer"
)

// A candidate is a connection to what may become a resident.
type candidate struct {
	conn     net.Conn
	source   Source
	want     *Info // which it must be; nil is any
	path     string
	uid, pid int
	settled  func(error) // called once: when it serves, or with why it does not
	bury     func()      // ends what is left beside the connection; may be nil
}

// accept registers whoever connects.
func (r *Host) accept(ctx context.Context) {
	for {
		conn, err := r.Listener.Accept()
		if err != nil {
			if isClosed(r.stopping) || errors.Is(err, net.ErrClosed) {
				return
			}
			r.observe(ctx, Status{State: Refused, Source: External, UID: -1, Err: &Error{Op: "register", Which: "anybody", Err: err}})
			if !pause(r.stopping, 100*time.Millisecond) { // no file descriptors, for instance
				return
			}
			continue
		}
		uid, ok := peer.UID(conn)
		if !ok {
			uid = -1
		}
		if err := r.expect(conn, r.maxPending()); err != nil {
			r.reject(ctx, candidate{conn: conn, source: External, uid: uid}, Info{}, err)
			continue
		}
		r.tasks.Go(func() {
			_ = r.attend(ctx, candidate{conn: conn, source: External, uid: uid, settled: func(error) {}}) // it has been told
		})
	}
}

// attend sees c through, from its hello until nothing of it is left, and
// returns why it ended.
func (r *Host) attend(ctx context.Context, c candidate) error {
	own, cancel := context.WithCancel(ctx)
	defer cancel()
	e, err := r.admit(cancel, c)
	r.settle(c.conn)
	if err != nil {
		r.reject(ctx, c, infoOf(e, c), err)
		if c.bury != nil {
			c.bury()
		}
		c.settled(err)
		return err
	}
	defer close(e.ended)
	if err = r.join(own, e); err != nil {
		r.leave(e, err)
	} else {
		r.observe(ctx, e.status())
		c.settled(nil)
		r.tasks.Go(func() { r.takeRequests(own, e) })
	}
	<-e.gone
	e.link.close()
	if c.bury != nil {
		c.bury()
	}
	s := e.status()
	s.State, s.Since, s.Err = Gone, time.Now(), e.why
	if err != nil {
		s.State, s.Err = Refused, &Error{Op: "register", Which: e.String(), Err: err}
	}
	r.observe(ctx, s)
	if err != nil {
		c.settled(s.Err)
	}
	return s.Err
}

// infoOf is what is known of a candidate that was refused.
func infoOf(e *entry, c candidate) Info {
	switch {
	case e != nil:
		return e.Info
	case c.want != nil:
		return *c.want
	}
	return Info{}
}

// reject tells c why it is refused, and everybody who wants to know.
func (r *Host) reject(ctx context.Context, c candidate, who Info, err error) {
	_ = c.conn.SetDeadline(time.Now().Add(time.Second))
	_ = writeLine(c.conn, welcome{Version: protocol, Error: err.Error()}) // it may be gone, or mute
	_ = c.conn.Close()
	s := Status{Info: who, State: Refused, Source: c.source, Path: c.path, UID: c.uid, PID: c.pid, Since: time.Now()}
	which := s.which()
	if who.Name == "" && c.path == "" {
		which = fmt.Sprintf("a process of user %d", c.uid)
	}
	s.Err = &Error{Op: "register", Which: which, Err: err}
	r.observe(ctx, s)
}

// admit hears who c is and enters it. The entry that it returns beside an error
// has not been entered.
func (r *Host) admit(cancel context.CancelFunc, c candidate) (*entry, error) {
	if c.source == External && c.uid < 0 {
		return nil, refused("it is not known whose process it is")
	}
	if c.source == External && !slices.Contains(r.allowed(), c.uid) {
		return nil, refused("processes of user %d may not register", c.uid)
	}
	if err := c.conn.SetDeadline(time.Now().Add(r.registerTimeout())); err != nil {
		return nil, err
	}
	h, err := readHello(c.conn)
	if err != nil {
		return nil, err
	}
	info, err := h.info()
	if err == nil && c.want != nil && info.String() != c.want.String() {
		err = refused("it is to be %s, and says that it is %.100q", c.want, info.String())
	}
	if err != nil {
		return nil, err
	}
	e := &entry{
		Info: info, source: c.source, path: c.path, uid: c.uid, pid: c.pid, since: time.Now(), cancel: cancel,
		ready: make(chan struct{}), gone: make(chan struct{}), ended: make(chan struct{}),
	}
	e.link = newLink(c.conn, r.pingInterval(), func(err error) {
		if !errors.Is(err, errLeft) {
			err = fmt.Errorf("%w: %w", ErrLost, err)
		}
		r.leave(e, err)
	})
	return e, r.claim(e)
}

// join welcomes e, tells it what is attached, and then lets it serve.
func (r *Host) join(ctx context.Context, e *entry) error {
	conn := e.link.conn.Conn
	if err := errors.Join(writeLine(conn, r.answer()), conn.SetDeadline(time.Time{})); err != nil {
		return err
	}
	// At once: its server does not wait long for a client that says nothing.
	if err := r.step(ctx, func(ctx context.Context) error { return e.link.open(ctx) }); err != nil {
		return fmt.Errorf("the first call: %w", err)
	}
	if !r.quiet(e) {
		return e.why
	}
	known, err := r.known(ctx, e.Info)
	if err != nil {
		return fmt.Errorf("listing what is attached: %w", err)
	}
	if err := r.step(ctx, func(ctx context.Context) error { return e.link.synchronize(ctx, known) }); err != nil {
		return fmt.Errorf("telling it what is attached: %w", err)
	}
	if e.requests, err = r.openRequests(ctx, e); err != nil {
		return fmt.Errorf("opening its requests: %w", err)
	}
	err = r.remember(e)
	if err == nil && !r.serve(e) {
		err = e.why
	}
	if err != nil {
		if e.requests != nil {
			e.requests.close()
		}
	}
	return err
}

// step does one step of a registration, in time.
func (r *Host) step(ctx context.Context, do func(context.Context) error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, r.registerTimeout(), errLate)
	defer cancel()
	err := do(ctx)
	if err != nil && errors.Is(context.Cause(ctx), errLate) {
		return fmt.Errorf("%w (%v)", ErrTimeout, r.registerTimeout())
	}
	return err
}

// allowed lists the users whose processes may register.
func (r *Host) allowed() (uids []int) {
	if r.AllowUIDs == nil {
		return []int{0, os.Geteuid()}
	}
	for _, uid := range r.AllowUIDs {
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
