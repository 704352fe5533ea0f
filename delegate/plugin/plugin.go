// Package plugin turns a function that chooses networks into a complete CNI
// meta-plugin: a plugin that attaches containers by running other plugins. The
// plugin is a [Plugin] value:
//
//	func main() {
//		plugin.Main(plugin.Plugin{
//			StateDir: "/var/lib/cni/mine", StateKey: "stateDir",
//			Networks: func(_ context.Context, c *plugin.Call) ([]netconf.Network, error) {
//				conf, err := plugin.Config[struct{ Delegates []netconf.Network }](c)
//				return conf.Delegates, err
//			},
//		})
//	}
//
// This plugin is complete. It attaches a container to all of its networks or to
// none, writes a record before it changes anything, and serves ADD, CHECK, DEL,
// GC, STATUS and VERSION. A field of Plugin replaces what one command does. The
// function receives a [Call], which has the command's arguments and the methods
// that the standard commands use.
//
// Work that a plugin does itself, such as a firewall rule, is a [Step] in the list of a
// network. It is recorded, undone and removed like what a delegated plugin does.
//
// [Main] runs a Plugin as an executable. Tests run the same value with
// [Plugin.Run], daemons with [Plugin.Do], and resident plugins with package
// delegate/resident. A Plugin takes nothing from the process it runs in: what it
// may use is in a [System].
package plugin

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

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

// A Plugin is a CNI plugin, independent of any process. Goroutines may share a
// Plugin if its functions allow it.
type Plugin struct {
	// About is printed, with the [Version], when somebody runs the executable
	// by hand. Example: "CNI meta-plugin mine".
	About string

	// Versions are the versions of the CNI specification that the plugin
	// supports. Nil means version.All.
	Versions version.PluginInfo

	// Type is the plugin's type in records, where its steps have it too. It is for a
	// plugin that is known to runtimes under several types, such as that of a shim.
	// Empty means the type in the configuration.
	Type string

	// Aliases are the other types under which runtimes know the plugin, such as that of a
	// shim. A network of the runtime with one of them is a network of the plugin.
	Aliases []string

	// StateDir is the directory of the plugin's records. It is created if it
	// does not exist. A plugin without a StateDir keeps no records: each command
	// that it serves needs a function below. Without one the command fails with
	// CNI code 4.
	StateDir string

	// StateKey, if not empty, is a key of the configuration with which a user
	// can replace StateDir. Every command fails with [netconf.ErrInvalid] if
	// its value is not an absolute path, or a directory in which container
	// runtimes keep their own state; see [CheckStateDir].
	StateKey string

	// Forget, if not empty, is the shell command with which an operator removes
	// a damaged record, such as "multinet forget". Errors about damaged records
	// mention it.
	Forget string

	// Prepare, if not nil, runs before each command and may change c. For
	// example, it may set the Path of c.Manager.Invoker. If Prepare fails, the
	// command fails. It does not run before a step.
	Prepare func(c *Call) error

	// Networks returns the networks to attach a container to, in order. The
	// first network gets the interface CNI_IFNAME, and the plugin prints its
	// result, unless Result is set. The others get net1, net2 and so on. A network without a name or
	// version gets those of c.
	//
	// The standard ADD, GC and STATUS use Networks. CHECK and DEL do not: they
	// use the record. For GC and STATUS there is no container: c has no CNI_ARGS
	// and no annotations then, and Networks returns every network that an ADD may
	// choose. GC removes stale attachments even if Networks fails.
	// STATUS is 50 (not available) if Networks fails, unless the configuration
	// itself is invalid.
	Networks func(ctx context.Context, c *Call) ([]netconf.Network, error)

	// Result, if not nil, returns what an ADD prints, in any version, of what it has attached:
	// an attachment for each network, in order, with the results of their plugins. Nil prints
	// the result of the first. In both cases prevResult comes first in a chain. [Call.Merge]
	// makes one of those of all networks. If Result fails, or the version of the configuration cannot
	// express what it returns, the ADD is undone.
	Result func(ctx context.Context, c *Call, added []delegate.Attached) (json.RawMessage, error)

	// Steps are work of the plugin's own, by name. [Call.Append] puts a step in the
	// list of a network.
	Steps map[string]Step

	// Functions that replace the standard commands. Nil means the standard
	// command, which uses Networks and the method of Call with the same name,
	// such as [Call.Add]. The runtime receives the whole text of an error, and
	// the CNI code that [status.Code] finds in it. A function must return soon
	// after its ctx has ended. What the plugin does itself in a container belongs
	// in a [Step]: undo, GC and sweeps do not call Del.
	Add, Check, Del, GC, Status func(ctx context.Context, c *Call) error
}

// Do executes one command. It is for servers, which have checked args; see
// [Plugin.Run] for everything that an executable does.
//
// If the configuration has the key "step", Do executes that step alone and touches no
// record: another program, which has the record, asks for it. It fails with CNI code 7
// if the plugin has no such step. A plugin that has neither Steps nor a StateDir, such as a
// shim, executes it with its Add, Check, Del, GC or Status.
//
// Do adds IgnoreUnknown=1 to CNI_ARGS that name a Kubernetes pod. It refuses an
// ADD with an interface name that the kernel would not accept or CNI_ARGS that are
// not pairs of a key and a value (CNI code 4), and an ADD for the network namespace
// of this process (code 8, unless CNI_NETNS_OVERRIDE allows it). Do returns errors as
// Go errors: it prints none.
//
// A runtime sends a DEL after an ADD that has failed. If the interface was another
// attachment's, Do notes this, so that the DEL leaves that alone; see
// [lifecycle.Manager.Refuse].
//
// A DEL, CHECK or GC of an attachment without a record may be about one that was made
// when the network had another name. That is so only if the runtime's directory of
// networks, which can be read completely, has ours and no network of the other name with
// this plugin. The directory is that of the configuration's key runtimeConfDir, or
// /etc/cni/net.d, or that of k3s or MicroK8s; see [Call.RuntimeConfDirs].
func (p Plugin) Do(ctx context.Context, system System, command delegate.Command, args skel.CmdArgs) error {
	do, known := Step{p.Add, p.Check, p.Del, p.GC, p.Status}.function(command)
	if !known {
		return types.NewError(types.ErrInvalidEnvironmentVariables, "unknown CNI_COMMAND: "+string(command), "")
	}
	c, err := p.decoded(system, command, args)
	ctx, ended := c.System.Stages.Begin(ctx, delegate.StageCommand, delegate.Event{Command: command, Network: c.Name, ContainerID: c.ContainerID, IfName: c.IfName})
	outcome := errPanicked
	defer func() { ended(outcome) }()
	outcome = p.do(ctx, c, do, err)
	return outcome
}

// errPanicked is the outcome of a command for [delegate.Stages] if it panics.
var errPanicked = errors.New("panic")

// do executes c with a function of p, or nil. err is why the configuration cannot be decoded.
func (p Plugin) do(ctx context.Context, c *Call, do func(context.Context, *Call) error, err error) error {
	step := c.step()
	if p.Steps == nil && p.StateDir == "" {
		step = ""
	}
	if step == "" {
		err = p.manage(c, err)
	}
	if c.Command == delegate.CommandAdd && err == nil {
		err = cmp.Or(ifname.Validate(c.IfName), c.refuseArgs(), c.System.Root.refuseHost(c.NetNS, c.override))
	}
	if err == nil {
		err = p.served(ctx, c, do, step)
	}
	if c.Command == delegate.CommandAdd && err != nil && step == "" && !errors.Is(err, lifecycle.ErrAdded) {
		p.noteRefusal(ctx, c)
	}
	return err
}

// served executes c with a function of p, or nil, or a step.
func (p Plugin) served(ctx context.Context, c *Call, do func(context.Context, *Call) error, step string) error {
	switch {
	case step != "":
		return p.execute(ctx, c, step)
	case do == nil && p.StateDir == "":
		return types.NewError(types.ErrInvalidEnvironmentVariables, "the plugin has no "+string(c.Command), "")
	case do == nil:
		do = p.standard
	}
	return p.advise(do(ctx, c))
}

// noteTimeout is how long it may take to note that an ADD has failed, whose context may have
// ended.
const noteTimeout = time.Second

// noteRefusal notes that the ADD c has failed, for the DEL that follows.
func (p Plugin) noteRefusal(ctx context.Context, c *Call) {
	if p.StateDir == "" {
		return
	}
	if c.Manager == nil { // the configuration is invalid, and a DEL accepts it
		dir, err := p.stateDir(c)
		if err != nil {
			return // the DEL fails too
		}
		c.Manager = c.System.NewManager(dir, c.own, nil)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), noteTimeout)
	defer cancel()
	_ = c.Manager.Refuse(ctx, c.Key(), c.NetNS) // the error of the ADD says more
}

// standard executes a command for which p has no function.
func (p Plugin) standard(ctx context.Context, c *Call) error {
	switch c.Command {
	case delegate.CommandCheck:
		return c.Check(ctx)
	case delegate.CommandDel:
		return c.Del(ctx)
	}
	nets, err := p.networks(ctx, c)
	switch {
	case c.Command == delegate.CommandGC:
		return errors.Join(c.GC(ctx, nets...), err)
	case err == nil && len(nets) == 0:
		return c.Invalid("", errors.New("there is no network to attach"))
	case c.Command == delegate.CommandStatus && err != nil:
		return notReady(err)
	case c.Command == delegate.CommandStatus:
		return c.Status(ctx, nets...)
	case err != nil:
		return err
	}
	as, err := c.Attachments(nets...)
	if err != nil {
		return err
	}
	return c.Add(ctx, lifecycle.Transaction{Plan: c.Plan(as...)})
}

// networks returns p's networks.
func (p Plugin) networks(ctx context.Context, c *Call) ([]netconf.Network, error) {
	if p.Networks == nil {
		return nil, types.NewError(types.ErrInvalidEnvironmentVariables, "the plugin has no "+string(c.Command), "")
	}
	return p.Networks(ctx, c)
}

// notReady makes err the answer to a STATUS. It leaves errors in the
// configuration, which waiting does not fix.
func notReady(err error) error {
	if errors.Is(err, netconf.ErrDecode) || errors.Is(err, netconf.ErrInvalid) {
		return err
	}
	return status.NotReady(err)
}

// advise adds to an error about a record that cannot be removed what an operator can do.
func (p Plugin) advise(err error) error {
	switch {
	case p.Forget == "":
	case errors.Is(err, scratch.ErrCorrupt):
		err = fmt.Errorf("%w (clean up after the container, then let %q remove its record)", err, p.Forget)
	case errors.Is(err, lifecycle.ErrAbsent):
		err = fmt.Errorf("%w (after %d tries the runtime is let go; if it can never succeed, clean up, then let %q remove the record)", err, delTries, p.Forget)
	}
	return err
}
