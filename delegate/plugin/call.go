package plugin

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/lifecycle"
	"github.com/metacni/metacni/ifname"
	"github.com/metacni/metacni/netconf"
	"github.com/metacni/metacni/scratch"
	"github.com/metacni/metacni/status"
)

// delTries is how many DELs may fail before the runtime is told that an attachment
// in a deleted network namespace is gone. A kubelet tries about ten times a minute.
const delTries = 10

// A Call is one command that a plugin executes. Its methods are the standard
// commands and their parts. A Call must not be used by several goroutines at once.
type Call struct {
	// System has the streams, the environment and the Exec of the plugin's process. Prepare may
	// change it. A function may change it for the methods that it calls.
	System System

	Command delegate.Command // CNI_COMMAND

	// The other variables of the runtime: CNI_CONTAINERID, CNI_NETNS, CNI_IFNAME, CNI_ARGS
	// and CNI_PATH. One that is missing is empty.
	ContainerID, NetNS, IfName, Args, Path string

	// Config is the configuration, as the runtime passes it on stdin; see the function
	// [Config], which decodes it.
	Config []byte

	// The name, type and cniVersion in the configuration. Without cniVersion
	// it is "0.1.0", as the specification says (section 1).
	Name, Type, CNIVersion string

	// Manager keeps the plugin's records and runs the plugins in CNI_PATH. If
	// the plugin has no StateDir, what needs a record fails.
	Manager *lifecycle.Manager

	// Shared, if not nil, says which networks GC leaves alone; see
	// [lifecycle.GCRequest.Shared]. A plugin's GC sets it.
	Shared func(network string) (why string)

	override string   // CNI_NETNS_OVERRIDE
	own      string   // the plugin's type in records and steps
	types    []string // under which runtimes know the plugin

	result func(context.Context, *Call, []delegate.Attached) (json.RawMessage, error) // see Plugin.Result
}

// CmdArgs returns c as package skel passes a command to a plugin.
func (c *Call) CmdArgs() *skel.CmdArgs {
	return &skel.CmdArgs{
		ContainerID: c.ContainerID, Netns: c.NetNS, IfName: c.IfName, Args: c.Args, Path: c.Path,
		NetnsOverride: c.override, StdinData: c.Config,
	}
}

// Call returns the Call with which [Plugin.Do] executes a command, after Prepare.
// It is for programs that work on the plugin's records without executing a
// command: the Manager is the one that the configuration in args selects.
//
// Call fails if the configuration cannot be decoded; see [Config]. If the plugin
// has no StateDir it ignores this, because nothing here depends on it.
func (p Plugin) Call(system System, command delegate.Command, args skel.CmdArgs) (*Call, error) {
	c, err := p.decoded(system, command, args)
	return c, p.manage(c, err)
}

// decoded returns the Call of a command without its Manager. The error is that of the
// configuration.
func (p Plugin) decoded(system System, command delegate.Command, args skel.CmdArgs) (*Call, error) {
	c := &Call{
		System: system, Command: command, CNIVersion: "0.1.0", Config: args.StdinData,
		ContainerID: args.ContainerID, NetNS: args.Netns, IfName: args.IfName, Args: withIgnoreUnknown(args.Args), Path: args.Path,
		override: args.NetnsOverride, result: p.Result,
	}
	c.System.Exec = system.exec()
	if c.System.Stderr == nil {
		c.System.Stderr = io.Discard
	}
	c.System.Env = slices.Clip(slices.Clone(system.Env)) // Prepare may change it
	err := c.decode()
	c.own = cmp.Or(p.Type, c.Type)
	c.types = append([]string{c.own, c.Type}, p.Aliases...)
	return c, err
}

// manage gives c its Manager. err is why the configuration of c cannot be decoded.
func (p Plugin) manage(c *Call, err error) error {
	dir := ""
	if p.StateDir != "" {
		if err != nil {
			return err
		}
		if dir, err = p.stateDir(c); err != nil {
			return err
		}
	}
	c.Manager = c.System.NewManager(dir, c.own, filepath.SplitList(c.Path))
	c.Manager.Configured = c.configured
	c.Manager.OnlyNetwork = c.onlyNetwork
	own := []string{c.own, c.Type}
	c.Manager.Invoker.Refuse = p.refuse(own)
	c.Manager.Invoker.Exec = &steps{c.System.Exec, p, c.System, own}
	if p.Prepare != nil {
		return p.Prepare(c)
	}
	return nil
}

// Key returns the key of the attachment in the plugin's records.
func (c *Call) Key() scratch.Key {
	return scratch.Key{Network: c.Name, ContainerID: c.ContainerID, IfName: c.IfName}
}

// Tag returns a name for something of the attachment, such as a table or a chain of a firewall; see
// [scratch.Key.Tag]. In a [Step] it is the same for each command, of the step's network. Do not put
// IfName into the text of another program.
func (c *Call) Tag(prefix string) string { return c.Key().Tag(prefix) }

// Attachment returns n applied to the interface that the runtime asks for, with the
// ContainerID, NetNS, IfName and Args of c. It has no capability arguments. The network is completed, see [Call.Complete]. If that
// fails the attachment has no network, and an ADD of it is refused.
func (c *Call) Attachment(n netconf.Network) delegate.Attachment {
	n, _ = c.Complete(n)
	return delegate.Attachment{Network: n, ContainerID: c.ContainerID, NetNS: c.NetNS, IfName: c.IfName, Args: c.Args}
}

// Attachments returns an attachment for each of nets, without an interface name:
// [Call.Plan] names them. The networks are completed, see [Call.Complete]. The
// first one receives all capability arguments of the runtime and its CNI_ARGS, the
// others what is [Shared] of them ([SharedArgs]).
func (c *Call) Attachments(nets ...netconf.Network) ([]delegate.Attachment, error) {
	var args map[string]json.RawMessage
	if err := c.Value("runtimeConfig", &args); err != nil {
		return nil, err
	}
	nets, err := c.complete(nets)
	as := make([]delegate.Attachment, len(nets))
	for i, n := range nets {
		as[i] = c.Attachment(n)
		as[i].IfName, as[i].CapabilityArgs = "", args
		if i == 0 {
			args = Shared(args)
		} else {
			as[i].Args = SharedArgs(c.Args)
		}
	}
	return as, err
}

// Shared returns the capability arguments in args that apply to every interface
// of a container. Addresses, ports, bandwidth and devices are not among them: the
// runtime means them for the interface that it asks for.
func Shared(args map[string]json.RawMessage) map[string]json.RawMessage {
	shared := maps.Clone(args)
	for _, key := range []string{"portMappings", "ipRanges", "bandwidth", "ips", "mac", "infinibandGUID", "deviceID", "CNIDeviceInfoFile"} {
		delete(shared, key)
	}
	return shared
}

// SharedArgs returns args, the value of CNI_ARGS, without IP, MAC and GATEWAY. The
// runtime means these for the interface that it asks for, and plugins of any network
// read them. podman, for example, passes a container's fixed address as IP. Everything
// else stays as it is.
func SharedArgs(args string) string {
	own := func(pair string) bool {
		key, _, _ := strings.Cut(pair, "=")
		return key == "IP" || key == "MAC" || key == "GATEWAY"
	}
	for pair := range strings.SplitSeq(args, ";") {
		if own(pair) {
			return strings.Join(slices.DeleteFunc(strings.Split(args, ";"), own), ";")
		}
	}
	return args
}

// Plan returns a [lifecycle.Transaction.Plan] that names the interface of each
// attachment. The first gets CNI_IFNAME. One with an IfName keeps it. The others
// get net1, net2 and so on, by their place in as; if that name is in use, the next
// one. Plan fails as [ifname.Scheme.Plan] does.
func (c *Call) Plan(as ...delegate.Attachment) func(ctx context.Context, taken []string) ([]delegate.Attachment, error) {
	return func(_ context.Context, taken []string) ([]delegate.Attachment, error) {
		asked := make([]string, len(as))
		for i, a := range as {
			asked[i] = a.IfName
		}
		names, err := ifname.Scheme{Primary: c.IfName, Taken: taken}.Plan(asked...)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", askers(as, c.IfName, err), err)
		}
		plan := slices.Clone(as)
		for i := range plan {
			plan[i].IfName = names[i]
		}
		return plan, nil
	}
}

// askers returns the networks that want the name that err is about. The first
// attachment always wants primary.
func askers(as []delegate.Attachment, primary string, err error) string {
	var about *ifname.Error
	errors.As(err, &about)
	var names []string
	for i, a := range as {
		if about != nil && (a.IfName == about.Name || i == 0 && primary == about.Name) {
			names = append(names, strconv.Quote(a.Network.Name()))
		}
	}
	return "network " + strings.Join(names, " and ")
}

// complete returns nets, in which those that can be completed are, see [Call.Complete].
func (c *Call) complete(nets []netconf.Network) ([]netconf.Network, error) {
	nets = slices.Clone(nets)
	var errs []error
	for i, n := range nets {
		n, err := c.Complete(n)
		if err == nil {
			nets[i] = n
		}
		errs = append(errs, err)
	}
	return nets, errors.Join(errs...)
}

// Complete returns n with the name and version of c where n has none. It fails
// with [netconf.ErrInvalid] for the zero Network, which null or a missing key in a
// configuration is decoded to, and for a list that also has a "type", which other programs take for a
// plugin. The other methods of c do this themselves with the networks that they
// are given.
func (c *Call) Complete(n netconf.Network) (netconf.Network, error) {
	if n.IsZero() {
		return n, c.Invalid("", errors.New("a network is missing or null, want an object"))
	}
	return n.Complete(c.Name, c.CNIVersion)
}

// Add attaches the container as t says and prints the result of the first
// attachment, or what [Plugin.Result] returns, after t.Report. It calls
// [lifecycle.Manager.Add]. If t has no NetNS,
// Add sets CNI_NETNS.
//
// If the runtime runs this plugin after others in a chain, the configuration has their
// prevResult. Then what Add prints begins with its interfaces, addresses, routes and
// DNS settings, as the specification asks (section 2, "ADD"). The record and t.Report
// have the delegates' own results.
func (c *Call) Add(ctx context.Context, t lifecycle.Transaction) error {
	prev, err := c.prevResult()
	if err != nil {
		return err
	}
	t.NetNS = cmp.Or(t.NetNS, c.NetNS)
	report := t.Report
	t.Report = func(ctx context.Context, added []delegate.Attached) error {
		if report != nil {
			if err := report(ctx, added); err != nil {
				return err
			}
		}
		return c.print(ctx, prev, added)
	}
	_, err = c.Manager.Add(ctx, c.Key(), t)
	return err
}

// Check runs CHECK of the plugins in the record; see [lifecycle.Manager.Check].
func (c *Call) Check(ctx context.Context) error { return c.Manager.Check(ctx, c.Key(), c.NetNS) }

// Del runs DEL of the plugins in the record and removes the record; see
// [lifecycle.Manager.Del].
func (c *Call) Del(ctx context.Context) error {
	return c.Manager.Del(ctx, c.Key(), lifecycle.DelRequest{NetNS: c.NetNS})
}

// GC removes the attachments that are recorded and not on the runtime's list, and
// runs GC of the plugins in nets and in the records, except for c.Shared; see
// [lifecycle.Manager.GC].
func (c *Call) GC(ctx context.Context, nets ...netconf.Network) error {
	valid, err := c.Valid()
	if err != nil {
		return err
	}
	nets, err = c.complete(nets)
	return errors.Join(c.Manager.GC(ctx, lifecycle.GCRequest{Network: c.Name, Valid: valid, Networks: nets, Shared: c.Shared}), err)
}

// Status runs STATUS of the plugins in nets, in order. It stops at the first that
// is not ready, with CNI code 50 or 51; see [status.NotReady].
func (c *Call) Status(ctx context.Context, nets ...netconf.Network) error {
	nets, err := c.complete(nets)
	if err != nil {
		return err
	}
	return status.NotReady(c.Manager.Status(ctx, nets))
}

// refuseArgs fails if CNI_ARGS are not pairs of a key and a value: plugins refuse them in a DEL
// too. A ";" may be last.
func (c *Call) refuseArgs() error {
	args := strings.TrimSuffix(c.Args, ";")
	for pair := range strings.SplitSeq(args, ";") {
		if key, _, ok := strings.Cut(pair, "="); c.Args != "" && (!ok || key == "") {
			return types.NewError(types.ErrInvalidEnvironmentVariables, fmt.Sprintf("CNI_ARGS: %q is not KEY=VALUE", pair), "")
		}
	}
	return nil
}

// refuseHost fails for a path to the network namespace of this process, unless override, the
// value of CNI_NETNS_OVERRIDE, allows it: plugins would configure the host.
func (r Root) refuseHost(netns, override string) error {
	if override != "1" && !strings.EqualFold(override, "true") && r.OwnNetNS(netns) {
		return types.NewError(types.ErrInvalidNetNS, "CNI_NETNS is the host's own network namespace", netns)
	}
	return nil
}

// withIgnoreUnknown adds IgnoreUnknown=1 to args, the value of CNI_ARGS, if they
// name a Kubernetes pod and have no IgnoreUnknown. Container runtimes set it.
// multus-dynamic-networks-controller does not, and then bridge, macvlan and
// host-local refuse its arguments, in DEL too.
func withIgnoreUnknown(args string) string {
	ofPod := false
	for pair := range strings.SplitSeq(args, ";") {
		key, _, ok := strings.Cut(pair, "=")
		if key == "IgnoreUnknown" {
			return args
		}
		ofPod = ofPod || ok && strings.HasPrefix(key, "K8S_")
	}
	if !ofPod {
		return args
	}
	return "IgnoreUnknown=1;" + args
}
