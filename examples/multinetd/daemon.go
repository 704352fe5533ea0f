package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/skel"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/lifecycle"
	"github.com/metacni/metacni/delegate/plugin"
	"github.com/metacni/metacni/delegate/resident"
	"github.com/metacni/metacni/delegate/thick"
	"github.com/metacni/metacni/delegate/thick/wire"
	"github.com/metacni/metacni/examples/internal/daemon"
	"github.com/metacni/metacni/examples/multinet/multinet"
	"github.com/metacni/metacni/examples/multinetd/cluster"
	"github.com/metacni/metacni/netconf"
	"github.com/metacni/metacni/netconf/autoconf"
	"github.com/metacni/metacni/netconf/nad"
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
	cluster *cluster.Cluster  // nil without Kubernetes

	exec           invoke.Exec
	interfaceNames func(netns string) ([]string, error)
}

// newService makes a service. Its plugins get path as their PATH. The end of ctx has
// no effect on the daemon.
func newService(ctx context.Context, conf *config, path, version string, log *slog.Logger) *service {
	d := &service{
		conf: conf, log: log, manager: conf.manager(),
		path: cmp.Or(path, plugin.DefaultPath),
		exec: &daemon.Exec{Process: delegate.Process{Root: conf.ChrootDir}, Log: log},
	}
	conf.cluster.ClaimDir = conf.stateDir + ".claims"
	d.cluster = cluster.New(conf.cluster, cluster.Plugin{Dirs: d.configs.dirs, Change: d.change, Rules: d.rules, Detach: d.detach, Status: d.statusOf}, log)
	d.host = d.newHost(ctx)
	d.server = &thick.Server{
		Commands: thick.CommandsOf(d.plugin(), d.process),
		Attach: func(with *wire.Attributes) thick.Commands {
			return thick.CommandsOf(multinet.Secondary(conf.multinet(), with), d.process)
		},
		Attachments: d.attachments,
		Override:    conf.overrides(),
		Queue:       conf.QueueDir,
		Ready:       d.ready,
		Probe:       d.cluster.Probe,
		MaxInFlight: conf.ConnectionLimit, DrainTimeout: time.Duration(conf.DrainTimeout), UndoTimeout: undoTimeout + 2*time.Second,
		Version: version,
		Logger:  log,
	}
	d.metrics = newMetrics(conf.MultusMetrics, d.server.Loads)
	d.metrics.leftovers(func() int { return len(d.leftovers(context.WithoutCancel(ctx))) })
	if d.manager != nil {
		d.metrics.follow(d.manager.State)
	}
	d.noteConfig(ctx)
	if conf.resident.on() {
		d.metrics.residentStates(d.host.Plugins)
		d.host.Called = d.metrics.resident
	}
	if d.cluster != nil {
		d.metrics.registry.MustRegister(d.cluster)
	}
	d.server.Other = d.socketPages()
	warnAttach := sync.OnceFunc(func() {
		log.WarnContext(ctx, "networks are attached over the socket while reconcile is on: multus-dynamic-networks-controller must not run as well")
	})
	d.server.Observer = func(e thick.Event) {
		d.metrics.request(e)
		if e.Path == wire.PathAttach && d.cluster.Reconciles() {
			warnAttach()
		}
		if e.Command == "DEL" || e.Command == "ADD" && (e.Err != nil || e.Path == wire.PathAttach) {
			d.cluster.Changed(context.WithoutCancel(ctx), e.ContainerID, e.Args)
		}
		logEvent(context.WithoutCancel(ctx), log, e)
	}
	return d
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

// change keeps a container in step with the networks that its pod selects. The
// configuration is that of the last ADD of its network.
func (d *service) change(ctx context.Context, dir string, k scratch.Key, c multinet.Cluster, replace bool) ([]lifecycle.Reconciled, error) {
	last := d.configs.of(dir, k.Network)
	return multinet.Reconcile(ctx, d.process(ctx), skel.CmdArgs{StdinData: last.conf, Path: last.cniPath}, c, k, replace)
}

// own returns the daemon's configuration of multinet, or that of the network that it
// publishes.
func (d *service) own() []byte {
	if d.manager != nil {
		return d.conf.publish.request
	}
	return d.conf.multinet()
}

// rules returns who may have which networks.
func (d *service) rules() (nad.Policy, nad.Rules, error) {
	r, err := multinet.NewReviewer(d.own())
	if err != nil {
		return nad.Policy{}, nad.Rules{}, err
	}
	policy, rules := r.Claims()
	return policy, rules, nil
}

// detach removes an interface from a container with the record k in dir.
func (d *service) detach(ctx context.Context, dir string, k scratch.Key, ifname string) error {
	last := d.configs.of(dir, k.Network)
	return multinet.Secondary(last.conf, nil).Do(ctx, d.process(ctx), delegate.CommandDel,
		skel.CmdArgs{ContainerID: k.ContainerID, IfName: ifname, Path: last.cniPath})
}

// statusOf returns a network that pods may claim, and the error of its STATUS.
func (d *service) statusOf(ctx context.Context, network string, c multinet.Cluster) (netconf.Network, error) {
	return multinet.Status(ctx, d.process(ctx), skel.CmdArgs{StdinData: d.own()}, c, network)
}

// noteADD notes the configuration of an ADD: for sweeps, and for what running pods select or
// have claimed. For these the next daemon needs it too.
func (d *service) noteADD(ctx context.Context, c *plugin.Call) {
	a := addConfig{c.Name, c.StdinData, c.Path}
	d.configs.note(c.Manager.Dir, a)
	if !d.cluster.ActsLater() {
		return
	}
	if err := a.save(c.Manager.Dir); err != nil {
		d.log.LogAttrs(ctx, slog.LevelWarn, "the configuration of an ADD cannot be kept for the next daemon", slog.Any("error", err))
	}
}

// noteConfig notes the configurations that the daemon has before the first ADD: its own, those
// that earlier daemons have saved, and that of the network that it publishes.
func (d *service) noteConfig(ctx context.Context) {
	d.configs.note(d.conf.stateDir, addConfig{conf: d.conf.multinet()})
	published := d.conf.publish.stateDir
	for _, dir := range slices.Compact([]string{d.conf.stateDir, published}) {
		if dir == "" || !d.cluster.ActsLater() {
			continue
		}
		all, err := savedConfigs(dir, d.conf.replace)
		if err != nil {
			d.log.LogAttrs(ctx, slog.LevelWarn, "the configuration of an ADD of an earlier daemon cannot be read", slog.Any("error", err))
		}
		for _, a := range all {
			d.configs.note(dir, a)
		}
	}
	if d.manager != nil {
		a := addConfig{network: d.conf.publish.network, conf: d.conf.publish.request}
		a.cniPath = d.configs.of(published, a.network).cniPath
		d.configs.note(published, a)
	}
}

// process returns what multinet uses for one request. Plugins receive nothing of
// the daemon's environment but its PATH.
func (d *service) process(ctx context.Context) plugin.Process {
	var adding atomic.Bool // a DEL after an ADD in the same request undoes the ADD
	return plugin.Process{
		Exec: d.host.Exec(d.exec), Env: append([]string{"PATH=" + d.path}, thick.Trace(ctx)...),
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
				state := string(r.State)
				if r.State == scratch.Partial {
					state = map[bool]string{true: string(scratch.Added), false: "incomplete"}[r.Whole(i)]
				}
				all = append(all, thick.Attachment{ContainerID: a.ContainerID, IfName: a.IfName, Network: a.Network.Name(), State: state, Result: a.Result})
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
		stop, err := serveMetrics(ctx, d.conf.MetricsAddress, d.pages(), d.log)
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

// announce publishes the network once ADDs can be served, and then notifies the
// service manager that the daemon is ready. It returns when ctx ends, or when the
// network cannot be published. The published file stays: without it pods would
// silently get other networks.
func (d *service) announce(ctx context.Context, notify func(state string)) error {
	if !d.waitReady(ctx, notify) {
		return nil
	}
	return d.follow(ctx, notify, sync.OnceFunc(func() {
		d.log.LogAttrs(ctx, slog.LevelInfo, "ready")
		d.cluster.Ready()
		notify("READY=1")
		notify("STATUS=ready")
		time.AfterFunc(settled, debug.FreeOSMemory)
	}))
}

// pages returns a handler that serves the metrics and the probes, and answers all
// other paths as the server does. A ServeMux would redirect paths that are not
// clean.
func (d *service) pages() http.Handler {
	metrics := d.metrics.handler()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/metrics" {
			metrics.ServeHTTP(w, r)
			return
		}
		d.server.Probes().ServeHTTP(w, r)
	})
}

// socketPages returns a handler of the pages, and of those that only root may have: they
// are served on the socket alone.
func (d *service) socketPages() http.Handler {
	pages := d.pages()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == multinet.NetworkStatusPath {
			d.cluster.ServeHTTP(w, r)
			return
		}
		pages.ServeHTTP(w, r)
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
