package daemon

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/lifecycle"
	"github.com/metacni/metacni/delegate/otel"
	"github.com/metacni/metacni/delegate/plugin"
	"github.com/metacni/metacni/delegate/resident"
	"github.com/metacni/metacni/delegate/thick"
	"github.com/metacni/metacni/delegate/thick/wire"
	"github.com/metacni/metacni/examples/internal/program"
	"github.com/metacni/metacni/examples/multinet/cluster"
	multinet "github.com/metacni/metacni/examples/multinet/plugin"
	"github.com/metacni/metacni/examples/multinet/sample"
	"github.com/metacni/metacni/netconf/nad"
	"github.com/metacni/metacni/scratch"
)

// newService makes a service. Its plugins get path as their PATH. The end of ctx has
// no effect on the daemon.
func newService(ctx context.Context, conf *config, path, version string, log *slog.Logger) *service {
	ctx = context.WithoutCancel(ctx)
	d := &service{
		ctx: ctx, conf: conf, log: log, manager: conf.manager(),
		path: cmp.Or(path, plugin.DefaultPath),
		exec: &program.Exec{Process: delegate.Process{Root: conf.ChrootDir}, Log: log},
	}
	conf.cluster.ClaimDir, conf.cluster.OutdatedDir = conf.stateDir+".claims", conf.stateDir+".outdated"
	d.cluster = cluster.New(conf.cluster, cluster.Plugin{Dirs: d.configs.dirs, Records: d.records, Last: d.last, Own: conf.publish.request, System: func() plugin.System { return d.traced(d.process()) }}, log)
	override, _ := json.Marshal(conf.override) // raw values that have been read
	d.metrics = newMetrics(conf.MultusMetrics, d.sample, d.cluster.Sample)
	d.host = d.newHost()
	d.server = &thick.Server{
		Plugin:      d.plugin(),
		Attach:      func(with *wire.Attributes) plugin.Plugin { return multinet.Secondary(conf.multinet(), with) },
		System:      d.process,
		Trace:       d.traced,
		Attachments: d.attachments,
		Override:    override,
		Queue:       conf.QueueDir,
		Ready:       d.ready,
		Probe:       d.cluster.Probe,
		MaxInFlight: conf.ConnectionLimit, DrainTimeout: time.Duration(conf.DrainTimeout), UndoTimeout: undoTimeout + 2*time.Second,
		SlowAfter: cmp.Or(time.Duration(conf.SlowAfter), 1), // 0 means every ADD
		Other:     d.pages(true),
		Observer:  d.observe,
		Version:   version,
		Logger:    log,
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
	pod := nad.PodOf(e.Args)
	e.Log(d.ctx, d.log, slog.String("pod_namespace", pod.Namespace), slog.String("pod", pod.Name))
}

// plugin returns multinet. Its ADD notes what was asked before it does anything else, and
// tells users of the cluster why it has failed. Its DEL cancels what the daemon changes by
// itself.
func (d *service) plugin() plugin.Plugin {
	m := d.cluster.Multinet()
	if ask := m.Annotations; ask != nil {
		m.Annotations = func(ctx context.Context, pod nad.Pod) (map[string]string, error) {
			annotations, err := ask(ctx, pod)
			otel.Pod(ctx, pod, annotations)
			return annotations, err
		}
	}
	p := multinet.New(m)
	add, del := p.Add, p.Del
	p.Add = func(ctx context.Context, c *plugin.Call) error {
		if d.traces != nil {
			annotations, _ := c.PodAnnotations(otel.PodAnnotation) // the ADD fails if they are invalid
			otel.Pod(ctx, nad.PodOf(c.Args), annotations)
		}
		if err := d.noteADD(ctx, c); err != nil {
			return err
		}
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

// attachments lists the recorded attachments of a container, or of all containers
// if container is empty.
func (d *service) attachments(ctx context.Context, container string) ([]thick.Listed, error) {
	var all []thick.Listed
	var errs []error
	for r, err := range (&lifecycle.Manager{Dir: d.conf.stateDir}).Records(ctx) {
		switch {
		case err != nil && r.Key == scratch.Key{}:
			errs = append(errs, err)
		case container != "" && r.Key.ContainerID != container:
		case err != nil:
			all = append(all, thick.Listed{ContainerID: r.Key.ContainerID, IfName: r.Key.IfName, Network: r.Key.Network, State: "damaged"})
		default:
			for i, a := range r.Attached {
				all = append(all, thick.Listed{ContainerID: a.ContainerID, IfName: a.IfName, Network: a.Network.Name(), State: multinet.State(r, i), Result: a.Result})
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

// sample sends the metrics of what the daemon has at the moment.
func (d *service) sample(to sample.Scrape) {
	for lane, load := range d.server.Loads() {
		to.Gauge("multinetd_operations_in_flight", "Running operations.", float64(load.InFlight), "lane", lane)
		to.Gauge("multinetd_operations_queued", "Operations waiting for their container or their turn.", float64(load.Queued), "lane", lane)
	}
	to.Gauge("multinet_leftovers", "Records with something left of an ADD that never succeeded.", float64(d.leftovers()))
	if d.manager != nil {
		s := d.manager.State()
		to.Gauge("multinetd_network_published", "1 if the network is published and up to date, otherwise 0.", sample.Bit(s.Published != "" && s.Degraded == nil))
		to.Count("multinetd_network_writes_total", "Times that the network was written.", uint64(s.Written))
		to.Count("multinetd_network_restores_total", "Times that the network was written because others had changed it.", uint64(s.Restored))
	}
	if d.conf.resident.on() {
		n := map[resident.State]float64{resident.Joining: 0, resident.Ready: 0, resident.Gone: 0, resident.Refused: 0, resident.Skipped: 0}
		for _, p := range d.host.Plugins() {
			n[p.State]++
		}
		for state, plugins := range n {
			to.Gauge("multinetd_resident_delegates", "Resident plugins by state.", plugins, "state", string(state))
		}
	}
}
