package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/lifecycle"
	"github.com/metacni/metacni/delegate/resident"
	"github.com/metacni/metacni/delegate/thick"
	"github.com/metacni/metacni/delegate/thick/wire"
	"github.com/metacni/metacni/examples/multinet/multinet"
	"github.com/metacni/metacni/scratch"
)

// residentStop is how long, once nothing of the runtime's is left to be done, what
// delegates have asked for may go on, and these have to end.
const residentStop = 5 * time.Second

// updateTimeout is how long one thing may take that a delegate asks for.
const updateTimeout = time.Minute

// A residents is the part of the configuration about delegates that stay.
type residents struct {
	Socket string   // where they register, or empty
	Dir    string   // of executables that are launched as such, or empty
	Types  []string // that are theirs before they have come
	Orphan duration // how long their types are kept for those that have gone
}

// keys returns where the keys of the file go that are about delegates that stay.
func (r *residents) keys() map[string]any {
	return map[string]any{"relaySocket": &r.Socket, "relayDir": &r.Dir, "relayTypes": &r.Types, "relayOrphan": &r.Orphan}
}

// on reports whether there can be any delegates that stay.
func (r *residents) on() bool { return r.Socket != "" || r.Dir != "" }

// checkResidents refuses what cannot be meant, and tidies what can.
func (c *config) checkResidents() error {
	r := &c.resident
	if !r.on() && (len(r.Types) > 0 || r.Orphan != 0) {
		return errors.New("relayTypes and relayOrphan mean nothing without relaySocket or relayDir")
	}
	if err := tidy([]path{{"relaySocket", &r.Socket}, {"relayDir", &r.Dir}}); err != nil {
		return err
	}
	if r.Socket == filepath.Join(c.SocketDir, wire.SocketName) {
		return fmt.Errorf("relaySocket %q is the runtime's", r.Socket)
	}
	for _, typ := range r.Types {
		if typ == "" || typ == "." || typ == ".." || strings.ContainsAny(typ, "/\x00") {
			return fmt.Errorf("relayTypes: %q is not the name of a plugin", typ)
		}
	}
	return nil
}

// newHost makes the host of residents, but for its listener. Where none is configured it is
// never started, and all plugins are run anew.
func (d *daemon) newHost(ctx context.Context) *resident.Host {
	r := &resident.Host{Dir: d.conf.resident.Dir, Reserve: d.conf.resident.Types, Orphan: time.Duration(d.conf.resident.Orphan)}
	if !d.conf.resident.on() {
		return r
	}
	ctx = context.WithoutCancel(ctx)
	r.StateDir = multinet.ResidentState(d.stateDir)
	r.Attachments = d.recorded
	r.Update = d.update
	r.Stderr = &chatter{ctx, d.log}
	r.Observer = func(s resident.Status) { logDelegate(ctx, d.log, s) }
	return r
}

// startResidents has delegates come, those in relayDir first. stop ends them all,
// and is called when nothing of the runtime's is left to be done.
func (d *daemon) startResidents(ctx context.Context) (stop func(), err error) {
	if !d.conf.resident.on() {
		return func() {}, nil
	}
	if socket := d.conf.resident.Socket; socket != "" {
		l, err := thick.Listen(ctx, socket)
		if err != nil {
			return nil, fmt.Errorf("resident: %w", err)
		}
		d.host.Listener = l
		d.log.LogAttrs(ctx, slog.LevelInfo, "delegates may register", slog.String("socket", socket))
	}
	if err := d.host.Start(ctx); err != nil {
		return nil, err
	}
	return func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), residentStop)
		defer cancel()
		_ = d.host.Stop(ctx) // it runs
	}, nil
}

// recorded lists what is attached, for a delegate that has just come. What
// cannot be read concerns itself only.
func (d *daemon) recorded(ctx context.Context) ([]delegate.Attached, error) {
	var all []delegate.Attached
	for r, err := range (&lifecycle.Manager{Dir: d.stateDir}).Records(ctx) {
		switch {
		case err == nil:
			all = append(all, r.Attached...)
		case r.Key == scratch.Key{}:
			return nil, err
		default:
			d.log.LogAttrs(ctx, slog.LevelWarn, "record that no delegate is told of", slog.String("container", r.Key.ContainerID), slog.Any("error", err))
		}
	}
	return all, nil
}

// update does what a delegate asks for.
func (d *daemon) update(ctx context.Context, from resident.Info, u resident.Update) error {
	ctx, cancel := context.WithTimeout(ctx, updateTimeout)
	defer cancel()
	ctx, end := d.host.Begin(ctx)
	defer end()
	start := time.Now()
	process := d.process(ctx, nil)
	var err error
	if u.Op == resident.Detach {
		err = multinet.Detach(ctx, process, d.conf.multinet(), u.ContainerID, u.IfName)
	} else {
		err = multinet.Attach(ctx, process, d.conf.multinet(), delegate.Attachment{
			Network: u.Network, ContainerID: u.ContainerID, IfName: u.IfName, Args: u.Args, CapabilityArgs: u.CapabilityArgs,
		})
	}
	level, attrs := slog.LevelInfo, []slog.Attr{
		slog.String("update", u.Op), slog.String("delegate", from.String()), slog.String("container", u.ContainerID),
		slog.String("ifname", u.IfName), slog.String("network", u.Network.Name()), slog.Duration("duration", time.Since(start)),
	}
	if err != nil {
		level, attrs = slog.LevelWarn, append(attrs, slog.String("error", err.Error()))
	}
	d.log.LogAttrs(ctx, level, "request of a delegate", attrs...)
	return err
}

// An operating handler tells the host of each operation on attachments, and the
// sweeps what ADDs come with. Status is no operation.
type operating struct {
	thick.Handler
	host *resident.Host
	ask  func(conf []byte, cniPath string) // is told of each ADD; nil is told of none
}

func (h operating) Add(ctx context.Context, a *skel.CmdArgs) (types.Result, error) {
	if h.ask != nil {
		h.ask(a.StdinData, a.Path)
	}
	ctx, end := h.host.Begin(ctx)
	defer end()
	return h.Handler.Add(ctx, a)
}

func (h operating) Check(ctx context.Context, a *skel.CmdArgs) error {
	ctx, end := h.host.Begin(ctx)
	defer end()
	return h.Handler.Check(ctx, a)
}

func (h operating) Del(ctx context.Context, a *skel.CmdArgs) error {
	ctx, end := h.host.Begin(ctx)
	defer end()
	return h.Handler.Del(ctx, a)
}

func (h operating) GC(ctx context.Context, a *skel.CmdArgs) error {
	ctx, end := h.host.Begin(ctx)
	defer end()
	return h.Handler.GC(ctx, a)
}

// calls is the Exec that plugins are run by: delegates that stay, and for what
// is not theirs, processes. It counts the former.
func (d *daemon) calls() invoke.Exec {
	if !d.conf.resident.on() {
		return d.exec
	}
	return &countingExec{d.host.Exec(base{d.exec}), d.metrics}
}

// ranKey is the key of contexts that hold an [atomic.Bool]: whether base was
// asked to run the plugin.
type ranKey struct{}

// A base notes that it was asked to run a plugin.
type base struct{ invoke.Exec }

func (b base) ExecPlugin(ctx context.Context, path string, stdin []byte, environ []string) ([]byte, error) {
	if ran, ok := ctx.Value(ranKey{}).(*atomic.Bool); ok {
		ran.Store(true)
	}
	return b.Exec.ExecPlugin(ctx, path, stdin, environ)
}

// A countingExec counts the plugins that it runs and that base does not.
type countingExec struct {
	invoke.Exec
	metrics *metrics
}

func (x *countingExec) ExecPlugin(ctx context.Context, path string, stdin []byte, environ []string) ([]byte, error) {
	var ran atomic.Bool
	out, err := x.Exec.ExecPlugin(context.WithValue(ctx, ranKey{}, &ran), path, stdin, environ)
	if !ran.Load() {
		x.metrics.resident(filepath.Base(path), variable(environ, "CNI_COMMAND"), err)
	}
	return out, err
}

// logDelegate writes what has become of a delegate that stays.
func logDelegate(ctx context.Context, log *slog.Logger, s resident.Status) {
	level := slog.LevelInfo
	if s.Err != nil && !errors.Is(s.Err, resident.ErrStopped) {
		level = slog.LevelWarn
	}
	attrs := []slog.Attr{slog.String("state", string(s.State)), slog.String("source", string(s.Source))}
	if s.Name != "" {
		attrs = append(attrs, slog.String("delegate", s.String()), slog.Any("types", s.Types))
	}
	if s.Path != "" {
		attrs = append(attrs, slog.String("path", s.Path))
	}
	if s.UID >= 0 {
		attrs = append(attrs, slog.Int("uid", s.UID))
	}
	if s.PID != 0 {
		attrs = append(attrs, slog.Int("pid", s.PID))
	}
	if s.Err != nil {
		attrs = append(attrs, slog.String("error", s.Err.Error()))
	}
	log.LogAttrs(ctx, level, "delegate", attrs...)
}

// A chatter logs what launched delegates write, for who debugs: it may repeat a
// configuration, and of which call is not known.
type chatter struct {
	ctx context.Context //nolint:containedctx // that of the process
	log *slog.Logger
}

func (c *chatter) Write(p []byte) (int, error) {
	for line := range bytes.Lines(p) {
		if line = bytes.TrimSpace(line); len(line) > 0 {
			c.log.LogAttrs(c.ctx, slog.LevelDebug, "a launched delegate says", slog.String("line", string(line[:min(len(line), maxLine)])))
		}
	}
	return len(p), nil
}
