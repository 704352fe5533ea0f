package main

import (
	"cmp"
	"context"
	"errors"
	"path/filepath"
	"slices"

	"github.com/containernetworking/cni/pkg/skel"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/lifecycle"
	"github.com/metacni/metacni/examples/internal/program"
	"github.com/metacni/metacni/ifname"
	"github.com/metacni/metacni/netconf"
	"github.com/metacni/metacni/scratch"
	"github.com/metacni/metacni/status"
)

const defaultStateDir = "/var/lib/cni/fallback"

// A plugin is fallback in a process.
type plugin struct{ program.Process }

func (p *plugin) commands(ctx context.Context) skel.CNIFuncs {
	return program.Commands(ctx, p.call, (*call).add, (*call).check, (*call).del, (*call).gc, (*call).status)
}

// A call is one command of the runtime.
type call struct {
	program.Process
	args *skel.CmdArgs
	conf config
	key  scratch.Key
	life *lifecycle.Manager
}

func (p *plugin) call(args *skel.CmdArgs) (*call, error) {
	conf, err := program.Decode[config](args.StdinData)
	if err != nil {
		return nil, err
	}
	if conf.CNIDir, err = program.StateDir(conf.Name, "cniDir", conf.CNIDir, defaultStateDir); err != nil {
		return nil, err
	}
	conf.CNIVersion = cmp.Or(conf.CNIVersion, "0.1.0") // SPEC section 1: what no version means
	return &call{
		Process: p.Process, args: args, conf: conf,
		key:  scratch.Key{Network: conf.Name, ContainerID: args.ContainerID, IfName: args.IfName},
		life: p.Manager(conf.CNIDir, conf.Type, filepath.SplitList(args.Path)),
	}, nil
}

func (c *call) add(ctx context.Context) error {
	if err := ifname.Validate(c.args.IfName); err != nil {
		return err
	}
	if err := program.RefuseHostNetwork(c.Root, c.args); err != nil {
		return err
	}
	choices, err := c.conf.choices(c.args.StdinData)
	if err != nil {
		return err
	}
	attach := func(i int) []delegate.Attachment {
		return []delegate.Attachment{{
			Network: choices.Choices[i], ContainerID: c.args.ContainerID, NetNS: c.args.Netns, IfName: c.args.IfName,
			Args: c.args.Args, CapabilityArgs: choices.RuntimeConfig,
		}}
	}
	var failed failures // of the choices before the last that was tried
	_, err = c.life.Add(ctx, c.key, lifecycle.Transaction{
		Plan: lifecycle.Plan(attach(0)...),
		Next: func(_ context.Context, err error) ([]delegate.Attachment, error) {
			next := len(failed) + 1
			if next == len(choices.Choices) || errors.Is(err, lifecycle.ErrPlan) { // the others would use the same name
				return nil, nil
			}
			failed = append(failed, err)
			return attach(next), nil
		},
		Report: func(_ context.Context, added []delegate.Attached) error {
			return added[0].PrintTo(c.Stdout, c.conf.CNIVersion)
		},
	})
	var last *lifecycle.Error
	if len(failed) > 0 && errors.As(err, &last) {
		last.Err = append(failed, last.Err)
	}
	return err
}

func (c *call) check(ctx context.Context) error { return c.life.Check(ctx, c.key) }

func (c *call) del(ctx context.Context) error {
	return c.life.Del(ctx, lifecycle.Removal{Key: c.key, NetNS: c.args.Netns})
}

// status is ready as soon as one choice is.
func (c *call) status(ctx context.Context) error {
	choices, err := c.conf.choices(c.args.StdinData)
	if err != nil {
		return err
	}
	var failed failures
	for _, n := range choices.Choices {
		err := c.life.Status(ctx, []netconf.Network{n})
		if err == nil {
			return nil
		}
		failed = append(failed, err)
	}
	return status.NotReady(failed)
}

// gc collects what is recorded, also when the choices cannot be read.
func (c *call) gc(ctx context.Context) error {
	valid, err := program.Valid(c.args.StdinData)
	if err != nil {
		return err
	}
	choices, err := c.conf.choices(c.args.StdinData)
	nets := slices.DeleteFunc(choices.Choices, c.missing)
	return errors.Join(c.life.GC(ctx, lifecycle.Collection{Network: c.conf.Name, Valid: valid, Networks: nets}), err)
}

// missing reports whether a plugin of n is not installed. Then n attaches
// nothing on this host, and GC need not fail because of it; the networks of
// records get theirs regardless.
func (c *call) missing(n netconf.Network) bool {
	return slices.ContainsFunc(n.Plugins(), func(p netconf.Plugin) bool {
		_, err := c.Exec.FindInPath(p.Type(), c.life.Invoker.Path)
		return err != nil
	})
}
