package main

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"path/filepath"

	"github.com/containernetworking/cni/pkg/skel"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/lifecycle"
	"github.com/metacni/metacni/examples/internal/program"
	"github.com/metacni/metacni/ifname"
	"github.com/metacni/metacni/netconf"
	"github.com/metacni/metacni/scratch"
	"github.com/metacni/metacni/status"
)

const (
	defaultSubnetFile = "/run/flannel/subnet.env"
	defaultDataDir    = "/var/lib/cni/flannel"
)

// A plugin is flannel in a process.
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
	if conf.DataDir, err = program.StateDir(conf.Name, "dataDir", conf.DataDir, defaultDataDir); err != nil {
		return nil, err
	}
	conf.CNIVersion = cmp.Or(conf.CNIVersion, "0.1.0") // SPEC section 1: what no version means
	return &call{
		Process: p.Process, args: args, conf: conf,
		key:  scratch.Key{Network: conf.Name, ContainerID: args.ContainerID, IfName: args.IfName},
		life: p.Manager(conf.DataDir, conf.Type, filepath.SplitList(args.Path)),
	}, nil
}

// network is the delegate's, as of now.
func (c *call) network() (netconf.Network, error) {
	t, err := c.conf.template(c.args.StdinData)
	if err != nil {
		return netconf.Network{}, err
	}
	s, err := readSubnet(t.SubnetFile)
	if err != nil {
		return netconf.Network{}, err
	}
	return c.conf.network(t, s)
}

func (c *call) add(ctx context.Context) error {
	if err := ifname.Validate(c.args.IfName); err != nil {
		return err
	}
	if err := program.RefuseHostNetwork(c.Root, c.args); err != nil {
		return err
	}
	n, err := c.network()
	if err != nil {
		return err
	}
	_, err = c.life.Add(ctx, c.key, lifecycle.Transaction{
		Plan: lifecycle.Plan(delegate.Attachment{
			Network: n, ContainerID: c.args.ContainerID, NetNS: c.args.Netns, IfName: c.args.IfName, Args: c.args.Args,
		}),
		Report: func(_ context.Context, added []delegate.Attached) error {
			return added[0].PrintTo(c.Stdout, c.conf.CNIVersion)
		},
	})
	return err
}

func (c *call) check(ctx context.Context) error {
	if err := c.adopt(ctx); err != nil {
		return err
	}
	return c.life.Check(ctx, c.key)
}

func (c *call) del(ctx context.Context) error {
	if err := c.adopt(ctx); err != nil {
		return err
	}
	return c.life.Del(ctx, lifecycle.Removal{Key: c.key, NetNS: c.args.Netns})
}

// status is not ready without a subnet.env that can be read; what is wrong with
// the configuration itself will not become ready by waiting.
func (c *call) status(ctx context.Context) error {
	n, err := c.network()
	var file *subnetError
	if err != nil && !errors.As(err, &file) {
		return err
	}
	if err == nil {
		err = c.life.Status(ctx, []netconf.Network{n})
	}
	return status.NotReady(err)
}

// gc collects what is recorded, also while flanneld has not come up.
func (c *call) gc(ctx context.Context) error {
	valid, err := program.Valid(c.args.StdinData)
	if err != nil {
		return err
	}
	var nets []netconf.Network
	n, err := c.network()
	switch {
	case err == nil:
		nets = append(nets, n)
	case errors.Is(err, fs.ErrNotExist):
		err = nil
	}
	adoptErr := c.adoptStale(ctx, valid)
	return errors.Join(c.life.GC(ctx, lifecycle.Collection{Network: c.conf.Name, Valid: valid, Networks: nets}), err, adoptErr)
}
