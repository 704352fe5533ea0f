package daemon

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"time"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/resident"
	"github.com/metacni/metacni/delegate/thick"
	multinet "github.com/metacni/metacni/examples/multinet/plugin"
	"github.com/metacni/metacni/examples/multinet/publish"
)

// residentStop is how long requests of residents and the residents themselves may
// take to end, after the last command of the runtime.
const residentStop = 5 * time.Second

// requestTimeout limits each request of a resident.
const requestTimeout = time.Minute

// checkResidents refuses contradictions and cleans paths.
func (c *config) checkResidents() error {
	r := &c.resident
	if !r.on() && (len(r.Types) > 0 || r.Orphan != 0) {
		return errors.New("relayTypes and relayOrphan need relaySocket or relayDir")
	}
	if err := tidy(path{"relaySocket", &r.Socket}, path{"relayDir", &r.Dir}); err != nil {
		return err
	}
	if r.Socket == filepath.Join(c.SocketDir, multinet.SocketName) {
		return fmt.Errorf("relaySocket %q is the socket of the daemon itself", r.Socket)
	}
	for _, typ := range r.Types {
		if !publish.PlainName(typ) {
			return fmt.Errorf("relayTypes: %q is not a valid plugin name", typ)
		}
	}
	return nil
}

// newHost makes the host of residents, without its listener. A host that is not
// started has no residents.
func (d *service) newHost() *resident.Host {
	return &resident.Host{
		Dir: d.conf.resident.Dir, Reserve: d.conf.resident.Types, Orphan: time.Duration(d.conf.resident.Orphan),
		StateDir:    multinet.ResidentState(d.conf.stateDir),
		Attachments: d.recorded,
		Requests:    d.request,
		Called:      d.metrics.resident,
		Stderr:      outputLog{d},
		Observer:    d.logResident,
	}
}

// startResidents launches the residents in relayDir and lets others register.
// The caller calls stop after the last command of the runtime.
func (d *service) startResidents(ctx context.Context) (stop func(), err error) {
	if !d.conf.resident.on() {
		return func() {}, nil
	}
	if socket := d.conf.resident.Socket; socket != "" {
		l, err := thick.Listen(ctx, nil, socket)
		if err != nil {
			return nil, fmt.Errorf("resident plugins: %w", err)
		}
		d.host.Listener = l
		d.log.LogAttrs(ctx, slog.LevelInfo, "resident plugins may register", slog.String("socket", socket))
	}
	if err := d.host.Start(ctx); err != nil {
		return nil, fmt.Errorf("resident plugins: %w", err)
	}
	return func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), residentStop)
		defer cancel()
		_ = d.host.Stop(ctx) // fails only for a host that does not run
	}, nil
}

// request handles a request of a resident.
func (d *service) request(ctx context.Context, from resident.Info, r resident.Request) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	start := time.Now()
	process := d.traced(d.process())
	operation := "attach"
	var err error
	if r.Detach {
		operation = "detach"
		err = multinet.Detach(ctx, process, d.conf.multinet(), r.ContainerID, r.IfName)
	} else {
		err = multinet.Attach(ctx, process, d.conf.multinet(), delegate.Attachment{
			Network: r.Network, ContainerID: r.ContainerID, IfName: r.IfName, Args: r.Args, CapabilityArgs: r.CapabilityArgs,
		})
	}
	d.cluster.Changed(ctx, r.ContainerID, "")
	d.log.LogAttrs(ctx, levelOf(err), "request of a resident plugin",
		slog.String("operation", operation), slog.String("resident", from.String()), slog.String("container", r.ContainerID),
		slog.String("ifname", r.IfName), slog.String("network", r.Network.Name()), slog.Duration("duration", time.Since(start)), slog.Any("error", err))
	return err
}

// logResident logs a change of a resident.
func (d *service) logResident(s resident.Status) {
	attrs := []slog.Attr{slog.String("state", string(s.State)), slog.String("source", "external"), slog.String("path", s.Path), slog.Any("error", s.Err)}
	if s.Path != "" {
		attrs[1].Value = slog.StringValue("launched")
	}
	if s.Name != "" {
		attrs = append(attrs, slog.String("resident", s.String()), slog.Any("types", s.Types))
	}
	if s.UID >= 0 {
		attrs = append(attrs, slog.Int("uid", s.UID))
	}
	if s.PID != 0 {
		attrs = append(attrs, slog.Int("pid", s.PID))
	}
	d.log.LogAttrs(d.ctx, levelOf(s.Err), "resident plugin", attrs...)
}

// maxOutput is how much of a line of output is logged, in bytes.
const maxOutput = 1 << 10

// An outputLog logs the output of launched residents. It may contain a
// configuration, so the level is debug.
type outputLog struct{ *service }

func (o outputLog) Write(p []byte) (int, error) {
	for line := range bytes.Lines(p) {
		if line = bytes.TrimSpace(line); len(line) > 0 {
			o.log.LogAttrs(o.ctx, slog.LevelDebug, "output of a resident plugin", slog.String("line", string(line[:min(len(line), maxOutput)])))
		}
	}
	return len(p), nil
}
