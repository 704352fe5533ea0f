package multinet

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/lifecycle"
	"github.com/metacni/metacni/delegate/thick/wire"
	"github.com/metacni/metacni/examples/internal/program"
	"github.com/metacni/metacni/ifname"
	"github.com/metacni/metacni/netconf"
	"github.com/metacni/metacni/status"
)

// HotPlug returns commands for one more network of a container that has been
// attached: what they are given on stdin is the configuration of that network,
// CNI_IFNAME the interface it is to have, and with what is asked of it. conf is
// multinet's own configuration, of which cniDir, binDir and type count.
//
// ADD puts the network down in the container's record, the oldest where there
// are several, so that the runtime's DEL, CHECK and GC include it. CNI_NETNS may
// be missing, and is else the recorded network namespace by whatever path: what
// is in another one the runtime's DEL would not find. DEL removes what is
// recorded, whatever the configuration. CHECK and STATUS are about that network
// alone; there is no GC.
func (p *Plugin) HotPlug(ctx context.Context, conf []byte, with *wire.Attributes) skel.CNIFuncs {
	prepare := func(args *skel.CmdArgs) (*hotCall, error) {
		c, err := readConfig(p.Root, conf)
		if err != nil {
			return nil, err
		}
		return &hotCall{Process: p.Process, args: args, with: with, conf: c, life: p.manager(c, args.Path)}, nil
	}
	return program.Commands(ctx, prepare, (*hotCall).add, (*hotCall).check, (*hotCall).del, (*hotCall).gc, (*hotCall).status)
}

// Attach attaches a's network to a container that has been attached, as the ADD
// of HotPlug does, but that a says all that is asked of it. An interface without
// a name gets one, and a network namespace is the recorded one.
func (p *Plugin) Attach(ctx context.Context, conf []byte, a delegate.Attachment) error {
	c, err := p.own(conf, &skel.CmdArgs{ContainerID: a.ContainerID, Netns: a.NetNS, IfName: a.IfName, Args: program.CNIArgs(a.Args)})
	if err != nil {
		return err
	}
	return c.attach(ctx, func(name, cniVersion string) (netconf.Network, map[string]json.RawMessage, error) {
		n, err := program.Complete(a.Network, name, cniVersion)
		return n, a.CapabilityArgs, err
	}, nil)
}

// Detach removes the interface ifName from a container, as the DEL of HotPlug
// does.
func (p *Plugin) Detach(ctx context.Context, conf []byte, containerID, ifName string) error {
	c, err := p.own(conf, &skel.CmdArgs{ContainerID: containerID, IfName: ifName})
	if err != nil {
		return err
	}
	return c.del(ctx)
}

// own is a call that no runtime has made.
func (p *Plugin) own(conf []byte, args *skel.CmdArgs) (*hotCall, error) {
	c, err := readConfig(p.Root, conf)
	if err != nil {
		return nil, err
	}
	return &hotCall{Process: p.Process, args: args, conf: c, life: p.manager(c, "")}, nil
}

// A hotCall is one command for one network of a container.
type hotCall struct {
	program.Process
	args *skel.CmdArgs
	with *wire.Attributes
	conf config
	life *lifecycle.Manager
}

func (c *hotCall) add(ctx context.Context) error {
	if err := ifname.Validate(c.args.IfName); err != nil {
		return err
	}
	return c.attach(ctx, c.network, func(_ context.Context, added []delegate.Attached) error {
		return added[0].PrintTo(c.Stdout, "") // in the version it has
	})
}

// attach attaches the network that network makes, given the name and the version
// to complete it with. An interface that nobody has named gets a name.
func (c *hotCall) attach(
	ctx context.Context,
	network func(name, cniVersion string) (netconf.Network, map[string]json.RawMessage, error),
	report func(context.Context, []delegate.Attached) error,
) error {
	r, err := c.record(ctx, func(r lifecycle.Record) bool { return r.State.Attached() && len(r.Attached) > 0 })
	if err != nil {
		return err
	}
	if r == nil {
		return c.notThere("")
	}
	first := r.Attached[0]
	n, capabilityArgs, err := network(r.Key.Network, first.Network.CNIVersion())
	if err != nil {
		return err
	}
	c.args.Netns = cmp.Or(c.args.Netns, first.NetNS)
	if err := program.RefuseHostNetwork(c.Root, c.args); err != nil {
		return err
	}
	if c.args.Netns != first.NetNS && !program.SameFile(c.Root, c.args.Netns, first.NetNS) {
		return types.NewError(types.ErrInvalidNetNS, "CNI_NETNS is not the network namespace of the container", c.args.Netns)
	}
	c.args.Netns = first.NetNS
	_, err = c.life.Attach(ctx, r.Key, lifecycle.Transaction{
		NetNS: c.args.Netns,
		Plan: func(_ context.Context, taken []string) ([]delegate.Attachment, error) {
			name, err := c.name(r.Key.IfName, taken)
			return []delegate.Attachment{{
				Network: n, ContainerID: c.args.ContainerID, NetNS: c.args.Netns, IfName: name,
				Args: c.args.Args, CapabilityArgs: capabilityArgs,
			}}, err
		},
		Report: report,
	})
	return err
}

// name is that of the interface, clear of primary and of those that are taken.
func (c *hotCall) name(primary string, taken []string) (string, error) {
	taken = slices.DeleteFunc(taken, func(name string) bool { return name == primary })
	names, err := ifname.Scheme{Primary: primary, Taken: taken}.Plan("", c.args.IfName)
	if err != nil {
		return "", err
	}
	return names[1], nil
}

// network is the one to attach, completed with a name and a version, and what
// is asked of it.
func (c *hotCall) network(name, cniVersion string) (n netconf.Network, capabilityArgs map[string]json.RawMessage, err error) {
	n, err = netconf.Parse(c.args.StdinData)
	if err == nil {
		n, err = program.Complete(n, name, cniVersion)
	}
	if err != nil {
		return n, nil, err
	}
	// It is a selection of that network, in other clothes, and checked as one.
	asked, err := json.Marshal(netconf.Selection{Name: n.Name(), IPs: c.with.IPs, MAC: c.with.MAC, CNIArgs: c.with.CNIArgs})
	var s netconf.Selection
	if err == nil {
		err = json.Unmarshal(asked, &s)
	}
	if err == nil {
		err = s.ServedBy(n)
	}
	if err == nil {
		n, err = withArgs(n, s.CNIArgs)
	}
	if err != nil {
		return n, nil, fmt.Errorf("interfaceAttributes: %w", err)
	}
	return n, s.CapabilityArgs(), nil
}

// check asks the plugins of this one attachment. No lock is held: it changes
// nothing, and who serves it serialises the container.
func (c *hotCall) check(ctx context.Context) error {
	r, err := c.record(ctx, func(r lifecycle.Record) bool { return r.State.Attached() && c.in(r) != nil })
	if err != nil {
		return err
	}
	if r == nil || c.in(*r).Result == nil {
		return c.notThere(" as " + strconv.Quote(c.args.IfName))
	}
	return c.life.Invoker.CheckAll(ctx, []delegate.Attached{*c.in(*r)})
}

// del removes what is recorded. What is not recorded is not there, unless a
// record that cannot be read could say otherwise.
func (c *hotCall) del(ctx context.Context) error {
	r, err := c.record(ctx, func(r lifecycle.Record) bool { return c.in(r) != nil })
	if r == nil {
		return err
	}
	return c.life.Detach(ctx, r.Key, c.args.IfName)
}

func (c *hotCall) gc(context.Context) error {
	return types.NewError(types.ErrInvalidEnvironmentVariables, "GC: it is multinet's networks that are collected, and not one of a container", "")
}

func (c *hotCall) status(ctx context.Context) error {
	n, err := netconf.Parse(c.args.StdinData)
	if err == nil {
		n, err = program.Complete(n, cmp.Or(c.conf.Name, "multinet"), c.conf.CNIVersion)
	}
	if err != nil {
		return err
	}
	return status.NotReady(c.life.Status(ctx, []netconf.Network{n}))
}

// record returns the oldest record of the container that is wanted, whatever
// is the matter with others. Where there is none it returns nil, and what is
// wrong with the container's records.
func (c *hotCall) record(ctx context.Context, wanted func(lifecycle.Record) bool) (*lifecycle.Record, error) {
	found, err := c.life.Container(ctx, c.args.ContainerID)
	found = slices.DeleteFunc(found, func(r lifecycle.Record) bool { return !wanted(r) })
	if len(found) == 0 {
		return nil, err
	}
	oldest := slices.MinFunc(found, func(a, b lifecycle.Record) int { return a.Created.Compare(b.Created) })
	return &oldest, nil
}

// in returns the attachment in r that has the interface, or nil.
func (c *hotCall) in(r lifecycle.Record) *delegate.Attached {
	for i, a := range r.Attached {
		if a.IfName == c.args.IfName {
			return &r.Attached[i]
		}
	}
	return nil
}

func (c *hotCall) notThere(as string) error {
	return types.NewError(types.ErrInvalidNetworkConfig, fmt.Sprintf("container %q is not recorded as attached%s", c.args.ContainerID, as), "")
}
