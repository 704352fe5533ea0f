package daemon

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/containernetworking/cni/pkg/skel"
	"go.opentelemetry.io/otel/trace"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/otel"
	"github.com/metacni/metacni/delegate/plugin"
	"github.com/metacni/metacni/delegate/resident"
	"github.com/metacni/metacni/delegate/thick"
	"github.com/metacni/metacni/examples/multinet/cluster"
	"github.com/metacni/metacni/netconf/autoconf"
)

// A service is multinet behind a socket, without the process around it.
type service struct {
	conf     *config
	log      *slog.Logger
	metrics  *metrics
	server   *thick.Server
	manager  *autoconf.Manager // of the published network, or nil
	host     *resident.Host    // of resident plugins; only started when they are configured
	path     string            // PATH of the plugins
	configs  addConfigs        // for sweeps and running pods
	unlisted error             // why not all directories of records are in configs
	cluster  *cluster.Cluster

	ctx        context.Context //nolint:containedctx // of the process; it does not end
	warnAttach sync.Once

	traces         trace.TracerProvider // nil unless commands are traced
	exec           delegate.Exec
	interfaceNames func(netns string) ([]string, error)
}

// undoTimeout limits the undo of an ADD whose context has ended. The server waits
// longer, so that the plugin can record the outcome.
const undoTimeout = 8 * time.Second

// process returns what multinet uses for one request. Plugins receive nothing of the daemon's
// environment but its PATH.
func (d *service) process() plugin.System {
	var adding atomic.Bool // a DEL after an ADD in the same request undoes the ADD
	return plugin.System{
		Exec: d.host.Exec(d.exec), Env: []string{"PATH=" + d.path},
		Root: d.conf.root(), InterfaceNames: d.interfaceNames,
		Observer: func(ctx context.Context, e delegate.Event) (context.Context, func(error)) {
			switch e.Command {
			case delegate.CommandAdd:
				adding.Store(true)
			case delegate.CommandDel:
				if adding.Load() {
					d.metrics.undone.Inc()
				}
			}
			return ctx, d.metrics.delegate(e)
		},
		Stages: func(ctx context.Context, s delegate.Stage, e delegate.Event) (context.Context, func(error)) {
			return ctx, d.metrics.stage(s, e)
		},
		UndoTimeout: undoTimeout,
		Logger:      d.log,
	}
}

// traced returns p with spans, if commands are traced.
func (d *service) traced(p plugin.System) plugin.System {
	if d.traces == nil {
		return p
	}
	return otel.Traced(p, d.traces)
}

// noteADD notes the configuration of an ADD: for sweeps, and for what running pods select or
// have claimed. For these the next daemon needs it too.
func (d *service) noteADD(ctx context.Context, c *plugin.Call) error {
	a, err := newAddConfig(c.Name, c.Config, c.Path)
	if err == nil {
		if err := d.noteDir(c.Manager.Dir, a); err != nil {
			return err
		}
		d.configs.note(c.Manager.Dir, a)
		if d.cluster.ActsLater() {
			err = a.save(c.Manager.Dir)
		}
	}
	if err != nil {
		d.log.LogAttrs(ctx, slog.LevelWarn, "the configuration of an ADD cannot be kept for the next daemon", slog.Any("error", err))
	}
	return nil
}

// noteConfigs notes the configurations that the daemon has before the first ADD: its own, those
// that earlier daemons have saved, and that of the network that it publishes.
func (d *service) noteConfigs() {
	d.loadDirs()
	if d.unlisted != nil {
		d.log.LogAttrs(d.ctx, slog.LevelError, "not all directories of records are known", slog.Any("error", d.unlisted))
	}
	own, _ := newAddConfig("", d.conf.multinet(), "") // valid, as is what is published
	d.configs.note(d.conf.stateDir, own)
	p := d.conf.publish
	if d.cluster.ActsLater() {
		for _, dir := range slices.Compact(slices.Sorted(slices.Values(append(d.configs.dirs(), p.stateDir)))) {
			if err := d.configs.load(dir, d.conf.replace); err != nil {
				d.log.LogAttrs(d.ctx, slog.LevelWarn, "the configuration of an ADD of an earlier daemon cannot be read", slog.Any("error", err))
			}
		}
	}
	if d.manager != nil {
		published, _ := newAddConfig(p.network, p.request, d.configs.of(p.stateDir, p.network).CNIPath)
		d.configs.note(p.stateDir, published)
	}
}

// last returns the configuration of the last ADD of a network with records in dir.
func (d *service) last(dir, network string) skel.CmdArgs { return d.configs.of(dir, network).args() }
