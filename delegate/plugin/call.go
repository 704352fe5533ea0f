package plugin

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
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

// delTries is how often a runtime may have tried in vain to delete an attachment
// whose network namespace is gone: about a minute's worth of a kubelet's tries.
const delTries = 10

// A Call is one command that the plugin executes. It belongs to one goroutine.
type Call struct {
	Process
	skel.CmdArgs // as the runtime gave them

	Command delegate.Command // CNI_COMMAND

	// Of the configuration: its name, the type of the plugin, and the version
	// of the specification, which is 0.1.0 where it has none (SPEC, section 1).
	Name, Type, CNIVersion string

	// Manager keeps the plugin's records, and runs the plugins of CNI_PATH. It
	// is nil for a plugin without a StateDir.
	Manager *lifecycle.Manager

	keys map[string]json.RawMessage // of the configuration
}

// Call returns the Call that [Plugin.Do] makes for a command, prepared. It is for
// who works on the plugin's records without executing a command: its Manager is
// the one that the configuration in args has.
//
// A configuration that cannot be decoded, see [Config], is an error unless the
// plugin has no StateDir: then what it says is left to the plugin's functions.
func (p Plugin) Call(process Process, command delegate.Command, args skel.CmdArgs) (*Call, error) {
	args.Args = withIgnoreUnknown(args.Args)
	c := &Call{Process: process, CmdArgs: args, Command: command, CNIVersion: "0.1.0"}
	err := c.decode()
	switch {
	case p.StateDir == "":
	case err != nil:
		return nil, err
	default:
		dir, err := p.stateDir(c)
		if err != nil {
			return nil, err
		}
		c.Manager = process.NewManager(dir, c.Type, filepath.SplitList(args.Path))
	}
	if p.Prepare != nil {
		if err := p.Prepare(c); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// Key is that of the attachment in the plugin's records.
func (c *Call) Key() scratch.Key {
	return scratch.Key{Network: c.Name, ContainerID: c.ContainerID, IfName: c.IfName}
}

// Attachment is n applied to the interface that the runtime asks for, without
// capability arguments.
func (c *Call) Attachment(n netconf.Network) delegate.Attachment {
	return delegate.Attachment{Network: n, ContainerID: c.ContainerID, NetNS: c.Netns, IfName: c.IfName, Args: c.Args}
}

// Attachments applies each of nets to an interface of the container, for
// [Call.Plan] to name. The first receives the capability arguments of the
// runtime, the others those of them that are not meant for one interface alone.
func (c *Call) Attachments(nets ...netconf.Network) ([]delegate.Attachment, error) {
	var args map[string]json.RawMessage
	err := c.Value("runtimeConfig", &args)
	as := make([]delegate.Attachment, len(nets))
	for i, n := range nets {
		as[i] = c.Attachment(n)
		as[i].IfName, as[i].CapabilityArgs = "", args
		if i == 0 {
			args = Shared(args)
		}
	}
	return as, err
}

// Shared returns those of the capability arguments args that hold for every
// interface of a container: not its addresses, ports, bandwidth or device, which
// the runtime means for the interface that it asks for.
func Shared(args map[string]json.RawMessage) map[string]json.RawMessage {
	shared := maps.Clone(args)
	for _, key := range []string{"portMappings", "ipRanges", "bandwidth", "ips", "mac", "infinibandGUID", "deviceID", "CNIDeviceInfoFile"} {
		delete(shared, key)
	}
	return shared
}

// Plan returns a [lifecycle.Transaction.Plan] that gives each attachment its
// interface: CNI_IFNAME to the first, the name it asks for to one that has an
// IfName, and to the others the first of net1, net2 and so on that is free. The
// place of an attachment decides its number, so that names do not depend on
// what others ask for. See [ifname.Scheme.Plan] for how it fails.
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

// askers says which attachments ask for the name that err is about; the first
// gets primary without asking.
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

// Complete gives n the name and the version that it lacks: the plugin's. The
// zero Network, which a null in the configuration leaves, fails with
// [netconf.ErrInvalid].
func (c *Call) Complete(n netconf.Network) (netconf.Network, error) {
	if n.IsZero() {
		return n, c.Invalid("", errors.New("a network is null, want an object"))
	}
	edits := []netconf.Edit{netconf.Default("name", c.Name)}
	if !n.Has("cniVersions") {
		edits = append(edits, netconf.Default("cniVersion", c.CNIVersion))
	}
	return n.Edit(edits...)
}

// Add attaches the container as t says and prints the result of its first
// attachment. It is [lifecycle.Manager.Add] with the NetNS and the Report of c
// where t has none.
func (c *Call) Add(ctx context.Context, t lifecycle.Transaction) error {
	t.NetNS = cmp.Or(t.NetNS, c.Netns)
	if t.Report == nil {
		t.Report = func(_ context.Context, added []delegate.Attached) error {
			return added[0].PrintTo(c.Stdout, c.CNIVersion)
		}
	}
	_, err := c.Manager.Add(ctx, c.Key(), t)
	return err
}

// Check asks the plugins to confirm what is recorded, see
// [lifecycle.Manager.Check].
func (c *Call) Check(ctx context.Context) error { return c.Manager.Check(ctx, c.Key()) }

// Del removes what is recorded, see [lifecycle.Manager.Del].
func (c *Call) Del(ctx context.Context) error {
	return c.Manager.Del(ctx, lifecycle.Removal{Key: c.Key(), NetNS: c.Netns})
}

// GC removes what is recorded and not on the runtime's list, and tells the
// plugins of nets and of the records: see [lifecycle.Manager.GC].
func (c *Call) GC(ctx context.Context, nets ...netconf.Network) error {
	valid, err := c.Valid()
	if err != nil {
		return err
	}
	return c.Manager.GC(ctx, lifecycle.Collection{Network: c.Name, Valid: valid, Networks: nets})
}

// Status asks the plugins of nets, in order, whether they are ready. The first
// that is not is an error with CNI code 50 or 51, see [status.NotReady].
func (c *Call) Status(ctx context.Context, nets ...netconf.Network) error {
	return status.NotReady(c.Manager.Status(ctx, nets))
}

// refuseHost fails for the network namespace that this process runs in, unless
// CNI_NETNS_OVERRIDE allows it: a plugin would configure the host.
func (c *Call) refuseHost() error {
	if c.NetnsOverride == "1" || strings.EqualFold(c.NetnsOverride, "true") {
		return nil
	}
	if c.Root.OwnNetNS(c.Netns) {
		return types.NewError(types.ErrInvalidNetNS, "CNI_NETNS is the host's own network namespace", c.Netns)
	}
	return nil
}

// withIgnoreUnknown returns args, the value of CNI_ARGS, with IgnoreUnknown=1 if
// they name a Kubernetes pod and do not say whether to ignore what is unknown.
// Runtimes say so, multus-dynamic-networks-controller does not, and bridge,
// macvlan and host-local refuse its arguments, in the DEL too.
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
