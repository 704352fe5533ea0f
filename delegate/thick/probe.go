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

// CheckReady returns why the server would not serve an ADD now, and nil if it
// would. An ADD needs that Serve is running and not draining, that the Queue is
// readable, and that Ready returns nil. The error is the one of the first of the
// three that fails; it has code 11 and wraps the error of Ready.
func (s *Server) CheckReady(ctx context.Context) error {
	_, err := s.service().check(ctx)
	return err
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

// check checks all conditions of readiness. The error is that of the first that
// fails.
func (sv *service) check(ctx context.Context) (checks []check, first error) {
	note := func(name string, err error) {
		c := check{Name: name, OK: err == nil}
		if err != nil {
			c.Error = status.Error(err).Error()
			if first == nil {
				first = &fault{http.StatusServiceUnavailable, &stopped{"not ready: " + name + ": " + c.Error, err}}
			}
		}
		checks = append(checks, c)
	}
	note("daemon", sv.running())
	unread := sv.readable()
	note("queue", unread)
	if why := sv.backlog.why(); unread == nil && why != nil {
		checks[len(checks)-1].Error = status.Error(why).Error()
	}
	note("plugin", sv.ready(ctx))
	return checks, first
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

// readiness answers whether an ADD would be served. With the query "verbose" it
// lists the checks.
func (sv *service) readiness(w http.ResponseWriter, r *http.Request) {
	checks, first := sv.check(r.Context())
	if r.URL.Query().Has("verbose") {
		code, body := http.StatusOK, struct {
			*types.Error

			Checks []check `json:"checks"`
		}{nil, checks}
		if first != nil {
			code = http.StatusServiceUnavailable
			retry(w, code)
			body.Error = types.NewError(status.Code(first), first.Error(), "")
		}
		sendJSON(w, code, body)
		return
	}
	if first != nil {
		sendError(w, first)
		return
	}
	plain(w, "ok\n")
}

// notReady returns why a STATUS fails without asking the plugin.
func (sv *service) notReady(ctx context.Context) error {
	if err := sv.readable(); err != nil {
		return err
	}
	return sv.ready(ctx)
}

// ready calls Ready.
func (sv *service) ready(ctx context.Context) error {
	if sv.Ready == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	return sv.guardedProbe(ctx, "ready", sv.Ready)
}

// guardedProbe calls f and logs a panic.
func (sv *service) guardedProbe(ctx context.Context, what string, f func(context.Context) error) error {
	err := guard(func() error { return f(ctx) })
	if p, ok := err.(*panicError); ok { //nolint:errorlint // guard wraps nothing
		sv.log(ctx, slog.LevelError, "the plugin panicked", slog.String("operation", what), slog.Any("value", p.value), slog.String("stack", string(p.stack)))
	}
	return err
}
