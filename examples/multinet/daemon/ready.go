package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/metacni/metacni/delegate/lifecycle"
	"github.com/metacni/metacni/examples/internal/program"
)

var errNotPublished = errors.New("the network is not published")

// ready returns why no ADD can be served. It returns errNotPublished only when
// everything else is ready.
func (d *service) ready(ctx context.Context) error {
	records := &lifecycle.Manager{Dir: d.conf.stateDir}
	if err := errors.Join(records.Status(ctx, nil), d.conf.queueMoved()); err != nil {
		return err
	}
	return d.published()
}

// startTime is how long a daemon may start before it says why it is not ready.
const startTime = time.Second

// waitReady waits until the daemon is ready, except that its network need not be
// published yet. It tells why the daemon is not ready, when the reason changes. It reports
// false if ctx has ended before.
func (d *service) waitReady(ctx context.Context, notify func(state string)) bool {
	begun := time.Now()
	told, logged := "", map[string]bool{}
	for pause := 50 * time.Millisecond; ; pause = min(2*pause, time.Second) {
		err := d.server.CheckReady(ctx)
		if err == nil || errors.Is(err, errNotPublished) {
			return true
		}
		if why := err.Error(); time.Since(begun) >= startTime && why != told && ctx.Err() == nil {
			told = why
			if !logged[why] { // reasons may alternate
				logged[why] = true
				d.log.LogAttrs(ctx, slog.LevelWarn, "not ready", slog.String("error", why))
			}
			notify("STATUS=" + why)
		}
		if !program.Pause(ctx, pause) {
			return false
		}
	}
}

// published fails while there is a network to publish and it is not published.
func (d *service) published() error {
	if d.manager == nil {
		return nil
	}
	s := d.manager.State()
	switch {
	case s.Published != "":
		return nil
	case s.Degraded != nil:
		return fmt.Errorf("%w: %w", errNotPublished, s.Degraded)
	}
	return errNotPublished
}
