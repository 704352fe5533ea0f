package thick

import (
	"context"

	"github.com/metacni/metacni/status"
)

// CheckReady returns why the server is not ready to serve an ADD and its DEL, and nil
// if it is: Serve is running and not draining, the socket that [Listen] has made or got is
// there, the Queue can be read and written to, and Ready returns nil. The error is the one of the first of these that fails; it
// has code 11 and wraps the error of Ready.
func (s *Server) CheckReady(ctx context.Context) error {
	return failed(s.service().checks(ctx))
}

// A check is one condition of readiness. One that is OK may have an error that
// keeps no ADD from being served.
type check struct {
	Name  string `json:"name"`
	OK    bool   `json:"ok"`
	Error string `json:"error,omitempty"`

	err error
}

// checked returns a check. If it failed, err says why.
func checked(name string, ok bool, err error) check {
	c := check{Name: name, OK: ok, err: err}
	if err != nil {
		c.Error = status.Error(err).Error()
	}
	return c
}

// failed returns the error of the first check that has failed, or nil.
func failed(checks []check) error {
	for _, c := range checks {
		if !c.OK {
			return stopped("not ready: "+c.Name+": "+c.Error, c.err)
		}
	}
	return nil
}

// checks checks all conditions of an ADD.
func (sv *service) checks(ctx context.Context) []check {
	var phase error
	switch now := sv.flight.now(); {
	case now == idle:
		phase = errNotServing
	case now >= draining:
		phase = errDraining
	default:
		if l := sv.listener.Load(); l != nil {
			phase = (*l).lost()
		}
	}
	unusable := sv.usable()
	queue := checked("queue", unusable == nil, unusable)
	if queue.OK {
		queue = checked("queue", true, sv.backlog.why())
	}
	var unready error
	if sv.Ready != nil {
		unready = sv.ask(ctx, "ready", sv.Ready)
	}
	return []check{checked("daemon", phase == nil, phase), queue, checked("plugin", unready == nil, unready)}
}

// ask calls f, which has probeTimeout.
func (sv *service) ask(ctx context.Context, what string, f func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	return sv.guarded(ctx, what, f)
}
