package daemon

import (
	"context"
	"log/slog"
	"time"

	"github.com/metacni/metacni/delegate/lifecycle"
	"github.com/metacni/metacni/examples/internal/program"
	multinet "github.com/metacni/metacni/examples/multinet/plugin"
	"github.com/metacni/metacni/scratch"
)

// sweep removes stale attachments from every directory of records, at intervals,
// until ctx ends. The configuration of the last ADD with records there says where
// the plugins are and how networks are configured now. Before the first ADD the
// daemon's own configuration does. An attachment that cannot be removed is tried
// again in the next sweep, then after two, four and so on.
func (d *service) sweep(ctx context.Context) {
	pause := time.Duration(d.conf.SweepInterval)
	if pause == 0 {
		return
	}
	process := d.process()
	sweepers := make(map[string]*lifecycle.Sweeper) // by directory
	unknown := 0                                    // in the last pass
	for {
		var all lifecycle.SweepStats
		for _, dir := range d.configs.dirs() {
			s := sweepers[dir]
			if s == nil {
				s = &lifecycle.Sweeper{
					Wait: pause,
					Tell: func(swept lifecycle.SweepResult) {
						program.LogSwept(ctx, d.log, swept)
						d.tellLeftover(ctx, dir, swept)
					},
				}
				sweepers[dir] = s
			}
			last := d.configs.newest(dir).args()
			if err := multinet.PrepareSweep(ctx, s, process, d.cluster.Multinet(), last.StdinData, last.Path); err != nil {
				d.log.LogAttrs(ctx, slog.LevelError, "sweep failed", slog.Any("error", err))
			}
			swept, _ := s.Sweep(ctx) // its only error is that of ctx
			all.Removed += swept.Removed
			all.Failed += swept.Failed
			all.Waiting += swept.Waiting
			all.Unreadable += swept.Unreadable
			if all.Unknown == 0 {
				all.Container, all.Why = swept.Container, swept.Why
			}
			all.Unknown += swept.Unknown
		}
		if all.Unknown > 0 && unknown == 0 {
			d.log.LogAttrs(ctx, slog.LevelWarn, "it is not known whether containers live", slog.Int("attachments", all.Unknown),
				slog.String("container", all.Container), slog.String("why", all.Why))
		}
		unknown = all.Unknown
		d.metrics.sweep(all)
		if all.Removed > 0 {
			d.cluster.Swept()
		}
		if !program.Pause(ctx, pause) {
			return
		}
	}
}

// leftovers is the number of records that have something left of an ADD that never succeeded.
func (d *service) leftovers() (n int) {
	for r, err := range program.Records(d.ctx, d.configs.dirs()...) {
		if err == nil && !r.Refused && (r.State == scratch.Leftover || len(r.Leftovers) > 0) {
			n++
		}
	}
	return n
}

// tellLeftover tells users of the cluster of a leftover that a sweep could not remove. A
// [lifecycle.Sweeper] says that once for each reason.
func (d *service) tellLeftover(ctx context.Context, dir string, swept lifecycle.SweepResult) {
	if swept.Err == nil {
		return
	}
	rs, _ := (&lifecycle.Manager{Dir: dir}).Container(ctx, swept.Key.ContainerID) // sweeps report what cannot be read
	for _, r := range rs {
		if r.Key == swept.Key && r.State == scratch.Leftover && !r.Refused {
			d.cluster.Leftover(r, swept.Err)
		}
	}
}
