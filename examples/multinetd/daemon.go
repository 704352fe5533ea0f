package main

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net"
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
	"github.com/metacni/metacni/examples/multinet/multinet"
	"github.com/metacni/metacni/netconf/autoconf"
	"github.com/metacni/metacni/scratch"
)

// undoTimeout is how long undoing an ADD may take once its context has ended.
// The server waits longer than that, so that the outcome can be recorded.
const undoTimeout = 8 * time.Second

// A daemon serves multinet on a socket. It is independent of its process.
type daemon struct {
	conf    *config
	log     *slog.Logger
	metrics *metrics
	server  *thick.Server
	manager *autoconf.Manager // of the published network, or nil
	host    *resident.Host    // of resident plugins; not started when none are configured
	path    string            // PATH of the plugins
	asked   places            // for sweeps

	exec           invoke.Exec
	interfaceNames func(netns string) ([]string, error)
}

// newDaemon makes a daemon whose plugins get path as their PATH. The end of ctx
// is nothing to it.
func newDaemon(ctx context.Context, conf *config, path, version string, log *slog.Logger) *daemon {
	d := &daemon{
		conf: conf, log: log, manager: conf.manager(),
		path: cmp.Or(path, plugin.DefaultPath),
		exec: &executor{Process: delegate.Process{Root: conf.ChrootDir}, log: log},
	}
	d.host = d.newHost(ctx)
	d.server = &thick.Server{
		Commands: thick.CommandsOf(d.plugin(), d.process),
		Attach: func(with *wire.Attributes) thick.Commands {
			return thick.CommandsOf(multinet.Secondary(conf.multinet(), with), d.process)
		},
		Begin:       d.host.Begin,
		Attachments: d.attachments,
		Override:    conf.override,
		Queue:       conf.QueueDir,
		Ready:       d.ready,
		MaxInFlight: conf.ConnectionLimit, DrainTimeout: time.Duration(conf.DrainTimeout), UndoTimeout: undoTimeout + 2*time.Second,
		Version: version,
		Logger:  log,
	}
	d.metrics = newMetrics(conf.MultusMetrics, d.server.Stats)
	if d.manager != nil {
		d.metrics.follow(d.manager.State)
		d.asked.note(conf.publish.stateDir, asked{conf: conf.publish.request})
	}
	d.asked.note(conf.stateDir, asked{conf: conf.multinet()})
	if conf.resident.on() {
		d.metrics.residentStates(d.host.Plugins)
		d.host.Called = d.metrics.resident
	}
	d.server.Other = d.pages()
	d.server.Observer = func(e thick.Event) {
		d.metrics.request(e)
		logEvent(context.WithoutCancel(ctx), log, e)
	}
	return d
}

// process is what multinet has for one request. Of the daemon's own environment
// plugins see nothing.
func (d *daemon) process(ctx context.Context) plugin.Process {
	var adding atomic.Bool // a DEL that comes after an ADD undoes one
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

// attachments lists the recorded attachments of a container, or of all containers.
func (d *daemon) attachments(ctx context.Context, container string) ([]thick.Attachment, error) {
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

// serve serves l until ctx ends and all is done or undone. It tells notify
// when the daemon is ready, and when it stops. Delegates that stay are there from
// before the first operation until after the last.
func (d *daemon) serve(ctx context.Context, l net.Listener, notify func(state string)) error {
	if d.conf.MetricsAddress != "" {
		stop, err := d.serveMetrics(ctx)
		if err != nil {
			return errors.Join(err, l.Close())
		}
		defer stop()
	}
	for _, key := range d.conf.ignored {
		d.log.LogAttrs(ctx, slog.LevelWarn, "configuration key without effect", slog.String("key", key))
	}
	d.log.LogAttrs(ctx, slog.LevelInfo, "listening", slog.String("socket", l.Addr().String()), slog.String("root", cmp.Or(d.conf.ChrootDir, "/")),
		slog.String("records", d.conf.stateDir), slog.String("version", d.server.Version))
	stopResidents, err := d.startResidents(ctx)
	if err != nil {
		return errors.Join(err, l.Close())
	}
	serving, end := context.WithCancel(ctx) // also ends when one of them fails
	var told sync.WaitGroup
	var lost error
	told.Go(func() {
		lost = d.announce(serving, notify)
		end()
		d.log.LogAttrs(ctx, slog.LevelInfo, "stopping")
		notify("STOPPING=1")
	})
	told.Go(func() { d.sweep(serving) })
	err = d.server.Serve(serving, l)
	end()
	told.Wait()
	stopResidents()
	d.log.LogAttrs(ctx, slog.LevelInfo, "ended")
	return errors.Join(lost, err)
}

// announce publishes the network once ADDs can be served, and follows the primary
// network until ctx ends. It tells notify that the daemon is ready. The published
// configuration stays afterwards, because pods would otherwise silently get other
// networks.
func (d *daemon) announce(ctx context.Context, notify func(state string)) error {
	if !d.waitReady(ctx) {
		return nil
	}
	return d.follow(ctx, sync.OnceFunc(func() {
		d.log.LogAttrs(ctx, slog.LevelInfo, "ready")
		notify("READY=1")
	}))
}
