package thick

import (
	"context"
	"log/slog"
	"net/http"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/version"

	"github.com/metacni/metacni/delegate/thick/wire"
	"github.com/metacni/metacni/status"
)

func (sv *service) info() wire.Info {
	i := wire.Info{API: []int{wire.Version}, CNIVersions: version.All.SupportedVersions(), Features: []string{}, Version: sv.Version}
	for _, f := range []struct {
		has  bool
		name string
	}{{sv.Attach != nil, "delegate"}, {sv.Attachments != nil, "attachments"}, {sv.Queue != "", "queue"}} {
		if f.has {
			i.Features = append(i.Features, f.name)
		}
	}
	return i
}

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
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !sv.probe(w, r) {
			notFound(w, r)
		}
	})
}

// probe serves a request for the health or the readiness, and reports whether r
// is one.
func (sv *service) probe(w http.ResponseWriter, r *http.Request) bool {
	switch path := r.URL.Path; {
	case path != wire.PathHealth && path != wire.PathReady:
		return false
	case !allow(w, r, http.MethodGet, http.MethodHead, http.MethodPost):
	case path == wire.PathHealth:
		plain(w, "ok\n")
	default:
		sv.readiness(w, r)
	}
	return true
}

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
		l.first = &fault{http.StatusServiceUnavailable, &stopped{"not ready: " + name + ": " + c.Error, err}}
	}
	l.checks = append(l.checks, c)
}

// check checks all conditions of an ADD.
func (sv *service) check(ctx context.Context) *checklist {
	l := &checklist{}
	err := sv.running()
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

// running returns why Serve does not accept an ADD.
func (sv *service) running() error {
	switch {
	case !sv.served.Load():
		return errNotServing
	case sv.flight.ends():
		return errDraining
	}
	return nil
}

// readiness answers whether an ADD would be served and Probe is content. With the
// query "verbose" it lists the checks.
func (sv *service) readiness(w http.ResponseWriter, r *http.Request) {
	l := sv.check(r.Context())
	if sv.Probe != nil {
		var ok bool
		err := sv.within(r.Context(), "probe", func(ctx context.Context) (err error) {
			ok, err = sv.Probe(ctx)
			return err
		})
		l.note("probe", ok, err)
	}
	if r.URL.Query().Has("verbose") {
		code, body := http.StatusOK, struct {
			*types.Error

			Checks []check `json:"checks"`
		}{nil, l.checks}
		if l.first != nil {
			code = http.StatusServiceUnavailable
			retry(w, code)
			body.Error = types.NewError(status.Code(l.first), l.first.Error(), "")
		}
		sendJSON(w, code, body)
		return
	}
	if l.first != nil {
		sendError(w, l.first)
		return
	}
	plain(w, "ok\n")
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
	return sv.within(ctx, "ready", sv.Ready)
}

// within calls f, which has probeTimeout.
func (sv *service) within(ctx context.Context, what string, f func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	return sv.guardedProbe(ctx, what, f)
}

// guardedProbe calls f and logs a panic.
func (sv *service) guardedProbe(ctx context.Context, what string, f func(context.Context) error) error {
	err := guard(func() error { return f(ctx) })
	if p, ok := err.(*panicError); ok { //nolint:errorlint // guard wraps nothing
		sv.log(ctx, slog.LevelError, "the plugin panicked", slog.String("operation", what), slog.Any("value", p.value), slog.String("stack", string(p.stack)))
	}
	return err
}
