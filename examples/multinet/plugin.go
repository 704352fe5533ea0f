package main

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/lifecycle"
	"github.com/metacni/metacni/ifname"
	"github.com/metacni/metacni/netconf"
	"github.com/metacni/metacni/scratch"
	"github.com/metacni/metacni/status"
)

// undoTimeout bounds undoing once we have been told to stop: runtimes do not
// wait long between SIGTERM and SIGKILL.
const undoTimeout = 3 * time.Second

// A plugin holds what main takes from the process, and tests fake.
type plugin struct {
	exec        invoke.Exec
	env         []string
	stdout      io.Writer
	undoTimeout time.Duration

	version string // of the configuration, as soon as it is known
}

// funcs are p's commands. They end early, undoing what they did, with ctx.
func (p *plugin) funcs(ctx context.Context) skel.CNIFuncs {
	verb := func(do func(*call, context.Context) error) func(*skel.CmdArgs) error {
		return func(args *skel.CmdArgs) error {
			c, err := p.call(args)
			if err == nil {
				err = do(c, ctx)
			}
			return status.Error(err)
		}
	}
	return skel.CNIFuncs{
		Add: verb((*call).add), Check: verb((*call).check), Del: verb((*call).del),
		GC: verb((*call).gc), Status: verb((*call).status),
	}
}

// A call is one command of the runtime.
type call struct {
	args   *skel.CmdArgs
	conf   config
	key    scratch.Key
	life   *lifecycle.Manager
	stdout io.Writer
}

func (p *plugin) call(args *skel.CmdArgs) (*call, error) {
	conf, err := readConfig(args.StdinData)
	if err != nil {
		return nil, err
	}
	p.version = conf.CNIVersion
	path := []string{conf.BinDir}
	for _, dir := range filepath.SplitList(args.Path) {
		if !slices.Contains(path, dir) {
			path = append(path, dir)
		}
	}
	return &call{
		args: args, conf: conf, stdout: p.stdout,
		key: scratch.Key{Network: conf.Name, ContainerID: args.ContainerID, IfName: args.IfName},
		life: &lifecycle.Manager{
			Dir: conf.CNIDir,
			Invoker: &delegate.Invoker{
				Exec: p.exec, Path: path, Env: p.env, Self: []string{conf.Type}, UndoTimeout: p.undoTimeout,
			},
		},
	}, nil
}

func (c *call) add(ctx context.Context) error {
	if err := ifname.Validate(c.args.IfName); err != nil {
		return err
	}
	if err := c.refuseHostNetwork(); err != nil {
		return err
	}
	if err := c.conf.waitReady(ctx); err != nil {
		return err
	}
	wanted, err := c.conf.wanted()
	if err != nil {
		return err
	}
	_, err = c.life.Add(ctx, c.key, lifecycle.Transaction{
		Plan:   func(taken []string) ([]delegate.Attachment, error) { return c.plan(wanted, taken) },
		Adjust: func(_ context.Context, added []delegate.Attached) error { return moveDefaultRoute(wanted, added) },
		Report: func(added []delegate.Attached) error { return c.print(added[0]) },
	})
	return err
}

// plan gives each wanted network its interface, clear of the names that the
// container's records and its namespace use already.
func (c *call) plan(wanted []wanted, taken []string) ([]delegate.Attachment, error) {
	there, err := interfaceNames(c.args.Netns)
	if err != nil {
		return nil, err
	}
	asked := make([]string, len(wanted))
	for i, w := range wanted {
		asked[i] = w.ifname
	}
	names, err := ifname.Scheme{Primary: c.args.IfName, Taken: append(taken, there...)}.Plan(asked...)
	if err != nil {
		return nil, err
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

// print answers the runtime with the first network's result, in the version
// that the runtime asked for.
func (c *call) print(first delegate.Attached) error {
	r, err := first.Decode()
	if err != nil {
		return err
	}
	out := []byte(first.Result)
	if r.Version() != c.conf.CNIVersion {
		var text strings.Builder
		if r, err = r.GetAsVersion(c.conf.CNIVersion); err == nil {
			err = r.PrintTo(&text)
		}
		if err != nil {
			return types.NewError(types.ErrIncompatibleCNIVersion, "result cannot be expressed in the version asked for", err.Error())
		}
		out = []byte(text.String())
	}
	if _, err := c.stdout.Write(append(out, '\n')); err != nil {
		return types.NewError(types.ErrIOFailure, "print the result", err.Error())
	}
	return nil
}

func (c *call) check(ctx context.Context) error { return c.life.Check(ctx, c.key) }

func (c *call) del(ctx context.Context) error { return c.life.Del(ctx, c.key, c.args.Netns) }

func (c *call) status(ctx context.Context) error {
	if err := c.conf.ready(); err != nil {
		return status.NotReady(err)
	}
	nets, err := c.conf.networks()
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
	nets, err := c.conf.networks()
	return errors.Join(c.life.GC(ctx, c.conf.Name, c.conf.valid(), nets), err)
}

// refuseHostNetwork fails for the namespace that multinet itself runs in:
// skel would find out after the result was printed.
func (c *call) refuseHostNetwork() error {
	if override := c.args.NetnsOverride; override == "1" || strings.EqualFold(override, "true") {
		return nil
	}
	theirs, err := os.Stat(c.args.Netns)
	if err != nil {
		return nil //nolint:nilerr // what is not there is not ours
	}
	ours, err := os.Stat("/proc/self/ns/net")
	if err == nil && os.SameFile(ours, theirs) {
		return types.NewError(types.ErrInvalidNetNS, "CNI_NETNS is the host's own network namespace", c.args.Netns)
	}
	return nil
}
