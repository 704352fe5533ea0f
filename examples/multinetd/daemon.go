package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/containernetworking/cni/pkg/invoke"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/lifecycle"
	"github.com/metacni/metacni/delegate/plugin"
	"github.com/metacni/metacni/delegate/resident"
	"github.com/metacni/metacni/delegate/thick"
	"github.com/metacni/metacni/delegate/thick/wire"
	"github.com/metacni/metacni/examples/internal/daemon"
	"github.com/metacni/metacni/examples/multinet/multinet"
	"github.com/metacni/metacni/examples/multinetd/cluster"
	"github.com/metacni/metacni/netconf/autoconf"
	"github.com/metacni/metacni/scratch"
)

// undoTimeout limits the undo of an ADD whose context has ended. The server waits
// longer, so that the plugin can record the outcome.
const undoTimeout = 8 * time.Second

// settled is how long after it is ready the daemon gives back the memory of its start: the
// definitions have been read by then.
const settled = 10 * time.Second

// A service is multinet behind a socket, without the process around it.
type service struct {
	conf    *config
	log     *slog.Logger
	metrics *metrics
	server  *thick.Server
	manager *autoconf.Manager // of the published network, or nil
	host    *resident.Host    // of resident plugins; only started when they are configured
	path    string            // PATH of the plugins
	configs addConfigs        // for sweeps and running pods
	cluster *cluster.Cluster

	ctx        context.Context //nolint:containedctx // of the process; it does not end
	warnAttach sync.Once

	exec           invoke.Exec
	interfaceNames func(netns string) ([]string, error)
}

// newService makes a service. Its plugins get path as their PATH. The end of ctx has
// no effect on the daemon.
func newService(ctx context.Context, conf *config, path, version string, log *slog.Logger) *service {
	ctx = context.WithoutCancel(ctx)
	d := &service{
		ctx: ctx, conf: conf, log: log, manager: conf.manager(),
		path: cmp.Or(path, plugin.DefaultPath),
		exec: &daemon.Exec{Process: delegate.Process{Root: conf.ChrootDir}, Log: log},
	}
	conf.cluster.ClaimDir = conf.stateDir + ".claims"
	d.cluster = cluster.New(conf.cluster, cluster.Plugin{Dirs: d.configs.dirs, Last: d.last, Own: conf.publish.request, Process: d.process}, log)
	override, _ := json.Marshal(conf.override) // raw values that have been read
	d.metrics = newMetrics(conf.MultusMetrics, d.sample, d.cluster.Sample)
	d.host = d.newHost()
	d.server = &thick.Server{
		Plugin:      d.plugin(),
		Attach:      func(with *wire.Attributes) plugin.Plugin { return multinet.Secondary(conf.multinet(), with) },
		Process:     d.process,
		Attachments: d.attachments,
		Override:    override,
		Queue:       conf.QueueDir,
		Ready:       d.ready,
		Probe:       d.cluster.Probe,
		MaxInFlight: conf.ConnectionLimit, DrainTimeout: time.Duration(conf.DrainTimeout), UndoTimeout: undoTimeout + 2*time.Second,
		Other:    d.pages(true),
		Observer: d.observe,
		Version:  version,
		Logger:   log,
	}
	d.noteConfigs()
	return d
}

// observe counts and logs a request that has been answered, and tells the cluster of it.
func (d *service) observe(e thick.Event) {
	d.metrics.request(e)
	if e.Path == wire.PathAttach && d.cluster.Reconciles() {
		d.warnAttach.Do(func() {
			d.log.WarnContext(d.ctx, "networks are attached over the socket while reconcile is on: multus-dynamic-networks-controller must not run as well")
		})
	}
	if e.Command == "DEL" || e.Command == "ADD" && (e.Err != nil || e.Path == wire.PathAttach) {
		d.cluster.Changed(d.ctx, e.ContainerID, e.Args)
	}
	logEvent(d.ctx, d.log, e)
}

// plugin returns multinet. Its ADD notes what was asked before it does anything else, and
// tells users of the cluster why it has failed. Its DEL cancels what the daemon changes by
// itself.
func (d *service) plugin() plugin.Plugin {
	p := multinet.New(d.cluster.Multinet())
	add, del := p.Add, p.Del
	p.Add = func(ctx context.Context, c *plugin.Call) error {
		d.noteADD(ctx, c)
		ctx, end := d.cluster.Adding(ctx, c.ContainerID, c.Args)
		err := add(ctx, c)
		end(err)
		return err
	}
	p.Del = func(ctx context.Context, c *plugin.Call) error {
		defer d.cluster.Deleting(c.ContainerID, c.Args)()
		return del(ctx, c)
	}
	return p
}

// process returns what multinet uses for one request. Plugins receive nothing of
// the daemon's environment but its PATH.
func (d *service) process() plugin.Process {
	var adding atomic.Bool // a DEL after an ADD in the same request undoes the ADD
	return plugin.Process{
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
		UndoTimeout: undoTimeout,
	}
}

// attachments lists the recorded attachments of a container, or of all containers
// if container is empty.
func (d *service) attachments(ctx context.Context, container string) ([]thick.Attachment, error) {
	var all []thick.Attachment
	var errs []error
	for r, err := range (&lifecycle.Manager{Dir: d.conf.stateDir}).Records(ctx) {
		switch {
		case err != nil && r.Key == scratch.Key{}:
			errs = append(errs, err)
		case container != "" && r.Key.ContainerID != container:
		case err != nil:
			all = append(all, thick.Attachment{ContainerID: r.Key.ContainerID, IfName: r.Key.IfName, Network: r.Key.Network, State: "damaged"})
		default:
			for i, a := range r.Attached {
				all = append(all, thick.Attachment{ContainerID: a.ContainerID, IfName: a.IfName, Network: a.Network.Name(), State: multinet.State(r, i), Result: a.Result})
			}
		}
	}
	return all, errors.Join(errs...)
}

// serve serves l until ctx has ended and every operation is done or undone. It
// calls notify when the daemon is ready and when it stops. Resident plugins are
// launched before the first operation and stopped after the last one.
func (d *service) serve(ctx context.Context, l net.Listener, notify func(state string)) error {
	if d.conf.MetricsAddress != "" {
		stop, err := serveMetrics(ctx, d.conf.MetricsAddress, d.pages(false), d.log)
		if err != nil {
			return errors.Join(err, l.Close())
		}
		defer stop()
	}
	logIgnored(ctx, d.log, d.conf)
	d.log.LogAttrs(ctx, slog.LevelInfo, "listening", slog.String("socket", l.Addr().String()), slog.String("root", cmp.Or(d.conf.ChrootDir, "/")),
		slog.String("records", d.conf.stateDir), slog.String("kubernetes", d.conf.cluster.Source()), slog.String("version", d.server.Version))
	stopCluster, err := d.cluster.Start(ctx)
	if err != nil {
		return errors.Join(err, l.Close())
	}
	defer stopCluster()
	stopResidents, err := d.startResidents(ctx)
	if err != nil {
		return errors.Join(err, l.Close())
	}
	serving, end := context.WithCancel(ctx) // also ends when publishing or serving fails
	var others sync.WaitGroup
	var published error
	others.Go(func() {
		published = d.announce(serving, notify)
		end()
		d.log.LogAttrs(ctx, slog.LevelInfo, "stopping")
		notify("STOPPING=1")
	})
	others.Go(func() { d.sweep(serving) })
	others.Go(func() { d.cluster.Reconcile(serving) })
	err = d.server.Serve(serving, l)
	end()
	others.Wait()
	stopResidents()
	d.log.LogAttrs(ctx, slog.LevelInfo, "ended")
	return errors.Join(published, err)
}

// pages returns a handler that serves the metrics and the probes, and on the socket what only root
// may have. It answers all other paths as the server does. A ServeMux would redirect paths that
// are not clean.
func (d *service) pages(onSocket bool) http.Handler {
	metrics := d.metrics.handler()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path == "/metrics":
			metrics.ServeHTTP(w, r)
		case onSocket && r.URL.Path == multinet.NetworkStatusPath:
			d.cluster.ServeHTTP(w, r)
		default:
			d.server.Probes().ServeHTTP(w, r)
		}
	})
}

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
		if !daemon.Pause(ctx, pause) {
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
