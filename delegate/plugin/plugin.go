// Package plugin is the main of a CNI meta-plugin: what every plugin that
// delegates to others needs around its own idea. A plugin is a value, [Plugin],
// that says which networks its configuration names:
//
//	func main() {
//		plugin.Main(plugin.Plugin{
//			StateDir: "/var/lib/cni/mine",
//			Networks: func(_ context.Context, c *plugin.Call) ([]netconf.Network, error) {
//				conf, err := plugin.Config[struct{ Delegates []netconf.Network }](c)
//				return conf.Delegates, err
//			},
//		})
//	}
//
// That is a whole plugin. It attaches all networks or none, records what it
// does before it does it, and serves ADD, CHECK, DEL, GC, STATUS and VERSION.
// Each command can be replaced by a function of the plugin's own, which finds
// what the command needs in its [Call].
//
// The same value runs everywhere: [Main] runs it as an executable, [Plugin.Run]
// in a test without a process, package delegate/thick in a daemon, package
// delegate/resident behind a socket, and package delegate/delegatetest checks
// it. All that it takes from a process is in a [Process].
package plugin

import (
	"context"
	"errors"
	"fmt"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/version"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/lifecycle"
	"github.com/metacni/metacni/ifname"
	"github.com/metacni/metacni/netconf"
	"github.com/metacni/metacni/scratch"
	"github.com/metacni/metacni/status"
)

// A Plugin is a CNI plugin apart from any process. Goroutines may share it if
// they may share what its functions use.
type Plugin struct {
	// About is what the executable prints for people who run it by hand, such
	// as "CNI meta-plugin mine". Its [Version] is added.
	About string

	// Versions are the versions of the specification that the plugin supports.
	// Nil means version.All.
	Versions version.PluginInfo

	// StateDir is the directory in which the plugin keeps its records. It is
	// made when missing. Empty means that the plugin keeps none: there is no
	// [Call.Manager], and a command without a function of its own fails with
	// CNI code 4.
	StateDir string

	// StateKey, when not empty, is the key of the configuration by which a user
	// chooses another StateDir. An ADD with a directory that is not absolute,
	// or in which runtimes keep their own state, fails with
	// [netconf.ErrInvalid], and so does every other command.
	StateKey string

	// Forget, when not empty, is the command by which an operator removes a
	// damaged record, such as "multinet forget". Error texts name it.
	Forget string

	// Prepare, when not nil, runs before the function of each command. It may
	// change c, for instance what its Manager runs plugins with.
	Prepare func(c *Call) error

	// Networks returns the networks that the configuration attaches a container
	// to. The first gets the interface CNI_IFNAME and its result is the
	// plugin's; the others get net1, net2 and so on. A network without a name
	// or a version gets the plugin's.
	//
	// ADD, GC and STATUS need it unless they have functions of their own. GC
	// collects what is recorded even if Networks fails.
	Networks func(ctx context.Context, c *Call) ([]netconf.Network, error)

	// The commands of the specification. Nil means what a meta-plugin does with
	// its Networks and its records, see [Call.Add], [Call.Check] and so on. An
	// error reaches the runtime with the code that [status.Code] finds in it.
	// What a function does should end soon after ctx has.
	Add, Check, Del, GC, Status func(ctx context.Context, c *Call) error
}

// Do executes one command whose arguments a server has checked already. It is
// for whoever has no process to offer; see [Plugin.Run] for a whole run.
//
// CNI_ARGS that name a Kubernetes pod are completed with IgnoreUnknown=1. An
// ADD is refused, before anything else, with an interface name that the kernel
// would not take (CNI code 4) and for the network namespace of this process
// (code 8, unless CNI_NETNS_OVERRIDE allows it). The error of the plugin's
// function is returned as it is.
func (p Plugin) Do(ctx context.Context, process Process, command delegate.Command, args skel.CmdArgs) error {
	c, err := p.Call(process, command, args)
	if err != nil {
		return err
	}
	if command == delegate.CommandAdd {
		if err := ifname.Validate(c.IfName); err != nil {
			return err
		}
		if err := c.refuseHost(); err != nil {
			return err
		}
	}
	if c.Manager == nil { // its functions do what they do without an Exec
		untilCaught(ctx)
	}
	do := map[delegate.Command]func(context.Context, *Call) error{
		delegate.CommandAdd: p.Add, delegate.CommandCheck: p.Check, delegate.CommandDel: p.Del,
		delegate.CommandGC: p.GC, delegate.CommandStatus: p.Status,
	}[command]
	switch {
	case do == nil && p.StateDir == "":
		return types.NewError(types.ErrInvalidEnvironmentVariables, "the plugin has no "+string(command), "")
	case do == nil:
		do = p.standard
	}
	return p.advise(do(ctx, c))
}

// standard is what a meta-plugin does that has no function for a command.
func (p Plugin) standard(ctx context.Context, c *Call) error {
	switch c.Command {
	case delegate.CommandCheck:
		return c.Check(ctx)
	case delegate.CommandDel:
		return c.Del(ctx)
	}
	nets, err := p.networks(ctx, c)
	switch c.Command {
	case delegate.CommandGC:
		return errors.Join(c.GC(ctx, nets...), err)
	case delegate.CommandStatus:
		if err != nil {
			return notReady(err)
		}
		return c.Status(ctx, nets...)
	}
	if err != nil {
		return err
	}
	as, err := c.Attachments(nets...)
	if err != nil {
		return err
	}
	return c.Add(ctx, lifecycle.Transaction{Plan: c.Plan(as...)})
}

// networks returns p's networks, complete.
func (p Plugin) networks(ctx context.Context, c *Call) ([]netconf.Network, error) {
	if p.Networks == nil {
		return nil, types.NewError(types.ErrInvalidEnvironmentVariables, "the plugin has no "+string(c.Command), "")
	}
	nets, err := p.Networks(ctx, c)
	if err != nil {
		return nil, err
	}
	complete := make([]netconf.Network, len(nets))
	for i, n := range nets {
		if complete[i], err = c.Complete(n); err != nil {
			return nil, err
		}
	}
	return complete, nil
}

// notReady marks err as the answer to a STATUS, unless waiting will not mend it:
// the configuration itself is wrong.
func notReady(err error) error {
	if errors.Is(err, netconf.ErrDecode) || errors.Is(err, netconf.ErrInvalid) {
		return err
	}
	return status.NotReady(err)
}

// advise adds to the error of a damaged record what an operator can do about it.
func (p Plugin) advise(err error) error {
	if p.Forget == "" || !errors.Is(err, scratch.ErrCorrupt) {
		return err
	}
	return fmt.Errorf("%w (clean up after the container, then let %q remove its record)", err, p.Forget)
}
