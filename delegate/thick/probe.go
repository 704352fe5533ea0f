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

// A check is one of what readiness takes. One that is OK may have an error that
// is no obstacle to an ADD.
type check struct {
	Name  string `json:"name"`
	OK    bool   `json:"ok"`
	Error string `json:"error,omitempty"`
}

// readiness answers whether an ADD would be taken. With verbose it tells of
// each check.
func (sv *service) readiness(w http.ResponseWriter, r *http.Request) {
	var checks []check
	var first error
	note := func(name string, err error) {
		c := check{Name: name, OK: err == nil}
		if err != nil {
			c.Error = status.Error(err).Error()
			if first == nil {
				first = coded(http.StatusServiceUnavailable, types.ErrTryAgainLater, "not ready: %s: %s", name, c.Error)
			}
		}
		checks = append(checks, c)
	}
	var running error
	if sv.flight.ends() {
		running = errDraining
	}
	note("daemon", running)
	unread := sv.readable()
	note("queue", unread)
	if why := sv.backlog.why(); unread == nil && why != nil {
		checks[len(checks)-1].Error = status.Error(why).Error()
	}
	note("plugin", sv.ready(r.Context()))

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

// notReady returns why the plugin's STATUS need not be asked.
func (sv *service) notReady(ctx context.Context) error {
	if err := sv.readable(); err != nil {
		return err
	}
	return sv.ready(ctx)
}

// ready asks the program.
func (sv *service) ready(ctx context.Context) error {
	if sv.Ready == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	return sv.guardedProbe(ctx, "ready", sv.Ready)
}

// guardedProbe calls f, and logs its panic.
func (sv *service) guardedProbe(ctx context.Context, what string, f func(context.Context) error) error {
	err := guard(func() error { return f(ctx) })
	if p, ok := err.(*panicError); ok { //nolint:errorlint // guard's own, or none
		sv.log(ctx, slog.LevelError, "panic", slog.String("operation", what), slog.Any("value", p.value), slog.String("stack", string(p.stack)))
	}
	return err
}
