package main

import (
	"cmp"
	"context"
	"log/slog"

	"github.com/metacni/metacni/delegate/adopt"
	"github.com/metacni/metacni/delegate/lifecycle"
	"github.com/metacni/metacni/examples/multinet/multinet"
	"github.com/metacni/metacni/examples/multinet/publish"
	"github.com/metacni/metacni/netconf/autoconf"
)

// adopter returns an Adopter. It takes over containers that the runtime or Multus
// has attached to the primary network, whose records are in the root of the node.
func (d *daemon) adopter(ctx context.Context) *publish.Adopter {
	p := d.conf.publish
	return &publish.Adopter{
		Publisher: d.manager,
		Life:      &lifecycle.Manager{Dir: p.stateDir, Root: d.conf.ChrootDir},
		Node: adopt.Node{
			Root:      d.conf.ChrootDir,
			CacheDir:  d.conf.root().OnNode(cmp.Or(p.CacheDir, multinet.DefaultCacheDir)),
			MultusDir: d.conf.root().OnNode(cmp.Or(p.MultusDir, multinet.DefaultMultusDir)),
		},
		Tell: func(o publish.Outcome) { logAdopted(ctx, d.log, o) },
	}
}

// logAdopted logs the takeover of an attachment, or why it was skipped.
func logAdopted(ctx context.Context, log *slog.Logger, o publish.Outcome) {
	if o.Verdict == publish.Skipped {
		log.LogAttrs(ctx, slog.LevelWarn, "attachment not taken over", append(about(o.Adoption.Key), because(o.Adoption.Key, o.Err))...)
		return
	}
	var networks []string
	for _, a := range o.Adoption.Attached {
		networks = append(networks, a.Network.Name())
	}
	log.LogAttrs(ctx, slog.LevelInfo, "attachment taken over",
		append(about(o.Adoption.Key), slog.Any("networks", networks), slog.Bool("gone", o.Adoption.Gone))...)
}

// follow publishes the network, keeps it in step with the primary network, and
// takes over containers, until ctx ends. It calls ready when the network is
// published. If there is none to publish, it calls ready at once. It tells the service
// manager why the network is not published.
func (d *daemon) follow(ctx context.Context, notify func(state string), ready func()) error {
	if d.manager == nil {
		ready()
		<-ctx.Done()
		return nil
	}
	return d.adopter(ctx).Follow(ctx, func(s autoconf.State) {
		logState(ctx, d.log, s)
		if s.Degraded != nil {
			notify("STATUS=" + s.Degraded.Error())
		}
		if s.Published != "" {
			ready()
		}
	})
}

// logState logs the state of the published network.
func logState(ctx context.Context, log *slog.Logger, s autoconf.State) {
	level, attrs := slog.LevelInfo, []slog.Attr{}
	if s.Published != "" {
		attrs = append(attrs, slog.String("published", s.Published), slog.String("network", s.Network), slog.String("primary", s.Primary))
	}
	if s.Degraded != nil {
		level = slog.LevelWarn
		attrs = append(attrs, slog.String("error", s.Degraded.Error()))
	}
	for _, skipped := range s.Skipped {
		attrs = append(attrs, slog.String("passed_over", skipped.Error()))
	}
	log.LogAttrs(ctx, level, "network", attrs...)
}
