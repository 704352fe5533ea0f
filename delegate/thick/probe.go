package thick

import (
	"context"
	"net/http"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/metacni/metacni/delegate/thick/wire"
	"github.com/metacni/metacni/status"
)

// CheckReady returns why the server is not ready to serve an ADD and its DEL, and nil
// if it is: Serve is running and not draining, the Queue can be read and written to,
// and Ready returns nil. The error is the one of the first of the three that fails; it
// has code 11 and wraps the error of Ready.
func (s *Server) CheckReady(ctx context.Context) error {
	return s.service().check(ctx).first
}

// Probes serves [wire.PathHealth] and [wire.PathReady] to everybody, and nothing
// else. Serve it where probes can reach it, such as on a TCP address: commands
// are only served by Serve.
func (s *Server) Probes() http.Handler {
	sv := s.service()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _ = sv.probe(r).send(w) })
}

// probe answers a request for the health or the readiness. Any other path is unknown.
func (sv *service) probe(r *http.Request) reply {
	methods := []string{http.MethodGet, http.MethodHead, http.MethodPost}
	switch r.URL.Path {
	case wire.PathHealth:
		return allowed(r, func(*http.Request) reply { return healthy }, methods...)
	case wire.PathReady:
		return allowed(r, sv.readiness, methods...)
	}
	return refusal(http.StatusNotFound, "unknown path %.80q", r.URL.Path)
}

var healthy = reply{status: http.StatusOK, body: []byte("ok\n"), plain: true} //nolint:gochecknoglobals // never written

// A check is one condition of readiness. One that is OK may have an error that
// keeps no ADD from being served.
type check struct {
	Name  string `json:"name"`
	OK    bool   `json:"ok"`
	Error string `json:"error,omitempty"`
}

// A checklist has the checks so far, and the error of the first that failed.
type checklist struct {
	checks []check
	first  error
}

// note adds a check. If it failed, err says why.
func (l *checklist) note(name string, ok bool, err error) {
	c := check{Name: name, OK: ok}
	if err != nil {
		c.Error = status.Error(err).Error()
	}
	if !ok && l.first == nil {
		l.first = &answered{http.StatusServiceUnavailable, stopped("not ready: "+name+": "+c.Error, err)}
	}
	l.checks = append(l.checks, c)
}

// check checks all conditions of an ADD.
func (sv *service) check(ctx context.Context) *checklist {
	l := &checklist{}
	var err error
	switch phase := sv.flight.now(); {
	case phase == idle:
		err = errNotServing
	case phase >= draining:
		err = errDraining
	}
	l.note("daemon", err == nil, err)
	if err := sv.usable(); err != nil {
		l.note("queue", false, err)
	} else {
		l.note("queue", true, sv.backlog.why())
	}
	err = sv.ready(ctx)
	l.note("plugin", err == nil, err)
	return l
}

// readiness answers whether an ADD would be served and Probe is content. With the
// query "verbose" it lists the checks.
func (sv *service) readiness(r *http.Request) reply {
	l := sv.check(r.Context())
	if sv.Probe != nil {
		var ok bool
		err := sv.ask(r.Context(), "probe", func(ctx context.Context) (err error) {
			ok, err = sv.Probe(ctx)
			return err
		})
		l.note("probe", ok, err)
	}
	switch {
	case r.URL.Query().Has("verbose"):
		var failed *types.Error
		if l.first != nil {
			failed = types.NewError(status.Code(l.first), l.first.Error(), "")
		}
		return object(httpStatus(l.first), struct {
			*types.Error

			Checks []check `json:"checks"`
		}{failed, l.checks})
	case l.first != nil:
		return failure(l.first)
	}
	return healthy
}

// notReady returns why a STATUS fails without asking the plugin.
func (sv *service) notReady(ctx context.Context) error {
	if err := sv.usable(); err != nil {
		return err
	}
	return sv.ready(ctx)
}

// ready calls Ready.
func (sv *service) ready(ctx context.Context) error {
	if sv.Ready == nil {
		return nil
	}
	return sv.ask(ctx, "ready", sv.Ready)
}

// ask calls f, which has probeTimeout.
func (sv *service) ask(ctx context.Context, what string, f func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	return sv.guarded(ctx, what, f)
}
