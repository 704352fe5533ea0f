// Package multinet is the plugin of that name, apart from any process: the thin
// program examples/multinet and the daemon examples/multinetd both run it.
//
// The plugin is in plugin.go, its configuration in config.go, what is attached
// in networks.go, how one more is plugged in and out in hotplug.go.
package multinet

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/containernetworking/cni/pkg/skel"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/lifecycle"
	"github.com/metacni/metacni/examples/internal/program"
	"github.com/metacni/metacni/ifname"
	"github.com/metacni/metacni/netconf"
	"github.com/metacni/metacni/scratch"
	"github.com/metacni/metacni/status"
)

// A Plugin is multinet in a process. Goroutines may share it as far as they may
// share the fields of its Process.
type Plugin struct {
	program.Process

	// Observer is [delegate.Invoker.Observer].
	Observer func(context.Context, delegate.Event) (context.Context, func(error))

	// UndoTimeout is [delegate.Invoker.UndoTimeout]. Zero is that of a process
	// that is about to be killed, [program.UndoTimeout].
	UndoTimeout time.Duration
}

// Commands returns multinet's commands, which end early, undoing what they did,
// with ctx.
func (p *Plugin) Commands(ctx context.Context) skel.CNIFuncs {
	return program.Commands(ctx, p.call, (*call).add, (*call).check, (*call).del, (*call).gc, (*call).status)
}

// Del is the command of that name. It takes less of the plugin than Commands,
// which a small program notices.
func (p *Plugin) Del(ctx context.Context, args *skel.CmdArgs) error {
	c, err := p.call(args)
	if err != nil {
		return err
	}
	return c.del(ctx)
}

// A call is one command of the runtime.
type call struct {
	program.Process
	args *skel.CmdArgs
	conf config
	key  scratch.Key
	life *lifecycle.Manager
}

func (p *Plugin) call(args *skel.CmdArgs) (*call, error) {
	conf, err := readConfig(p.Root, args.StdinData)
	if err != nil {
		return nil, err
	}
	return &call{
		Process: p.Process, args: args, conf: conf,
		key:  scratch.Key{Network: conf.Name, ContainerID: args.ContainerID, IfName: args.IfName},
		life: p.manager(conf, args.Path),
	}, nil
}

// manager works on the records of conf, with plugins from its binDir and from
// the runtime's path.
func (p *Plugin) manager(conf config, cniPath string) *lifecycle.Manager {
	path := []string{conf.BinDir}
	for _, dir := range filepath.SplitList(cniPath) {
		if !slices.Contains(path, dir) {
			path = append(path, dir)
		}
	}
	life := p.Manager(conf.CNIDir, conf.Type, path)
	life.Invoker.Exec = served{p.Exec, RelayState(conf.CNIDir)}
	life.Invoker.Observer = p.Observer
	life.Invoker.UndoTimeout = cmp.Or(p.UndoTimeout, life.Invoker.UndoTimeout)
	if conf.Parallel {
		life.Invoker.Parallel = atOnce
	}
	return life
}

func (c *call) networkConfig() (networkConfig, error) {
	return c.conf.networkConfig(c.args.StdinData)
}

func (c *call) add(ctx context.Context) error {
	if err := ifname.Validate(c.args.IfName); err != nil {
		return err
	}
	if err := program.RefuseHostNetwork(c.Root, c.args); err != nil {
		return err
	}
	conf, err := c.networkConfig()
	if err != nil {
		return err
	}
	if err := conf.refuse(); err != nil {
		return err
	}
	if err := conf.waitReady(ctx); err != nil {
		return err
	}
	wanted, err := conf.wanted()
	if err != nil {
		return err
	}
	_, err = c.life.Add(ctx, c.key, lifecycle.Transaction{
		NetNS: c.args.Netns,
		Plan:  func(_ context.Context, taken []string) ([]delegate.Attachment, error) { return c.plan(wanted, taken) },
		Adjust: func(_ context.Context, added []delegate.Attached) error {
			return moveDefaultRoute(c.Root, wanted, added)
		},
		Report: func(_ context.Context, added []delegate.Attached) error {
			return added[0].PrintTo(c.Stdout, c.conf.CNIVersion)
		},
	})
	return err
}

// plan gives each wanted network its interface, clear of the names in use.
func (c *call) plan(wanted []wanted, taken []string) ([]delegate.Attachment, error) {
	asked := make([]string, len(wanted))
	for i, w := range wanted {
		asked[i] = w.ifname
	}
	names, err := ifname.Scheme{Primary: c.args.IfName, Taken: taken}.Plan(asked...)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", askers(wanted, c.args.IfName, err), err)
	}
	plan := make([]delegate.Attachment, len(wanted))
	for i, w := range wanted {
		plan[i] = delegate.Attachment{
			Network: w.network, ContainerID: c.args.ContainerID, NetNS: c.args.Netns, IfName: names[i],
			Args: c.args.Args, CapabilityArgs: w.capabilityArgs,
		}
	}
	return plan, nil
}

// askers says which of the wanted networks asked for the name that err is
// about; the first gets primary without asking.
func askers(wanted []wanted, primary string, err error) string {
	var about *ifname.Error
	errors.As(err, &about)
	var names []string
	for i, w := range wanted {
		if about != nil && (w.ifname == about.Name || i == 0 && primary == about.Name) {
			names = append(names, strconv.Quote(w.network.Name()))
		}
	}
	return "network " + strings.Join(names, " and ")
}

func (c *call) check(ctx context.Context) error { return c.life.Check(ctx, c.key) }

func (c *call) del(ctx context.Context) error {
	return c.life.Del(ctx, lifecycle.Removal{Key: c.key, NetNS: c.args.Netns})
}

func (c *call) status(ctx context.Context) error {
	conf, err := c.networkConfig()
	if err != nil {
		return err
	}
	if err := conf.refuse(); err != nil {
		return err
	}
	if err := conf.ready(); err != nil {
		return status.NotReady(err)
	}
	nets, err := conf.standing()
	if err != nil && !errors.Is(err, netconf.ErrNotFound) {
		return err
	}
	if err == nil {
		err = c.life.Status(ctx, nets)
	}
	return status.NotReady(err)
}

// gc goes on without the current networks when their configuration is broken:
// what is recorded can be collected all the same.
func (c *call) gc(ctx context.Context) error {
	valid, err := program.Valid(c.args.StdinData)
	if err != nil {
		return err
	}
	var nets []netconf.Network
	conf, err := c.networkConfig()
	if err == nil {
		nets, err = conf.standing()
	}
	return errors.Join(c.life.GC(ctx, lifecycle.Collection{Network: c.conf.Name, Valid: valid, Networks: nets}), err)
}
