package plugin

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/lifecycle"
	"github.com/metacni/metacni/delegate/plugin"
	"github.com/metacni/metacni/delegate/thick/wire"
	"github.com/metacni/metacni/ifname"
	"github.com/metacni/metacni/netconf"
	"github.com/metacni/metacni/netconf/nad"
	"github.com/metacni/metacni/scratch"
	"github.com/metacni/metacni/status"
)

// Secondary returns a plugin that attaches one more network to a running container,
// and detaches it. The configuration on its stdin is that of the network, CNI_IFNAME
// is the interface, and with holds the attributes of the interface. conf is multinet's
// own configuration, of which cniDir, binDir, type and legacyArgs are used.
//
// ADD adds the network to the container's record, so that the runtime's DEL, CHECK
// and GC include it. If the container has several records, it is the oldest. CNI_NETNS
// may be missing. Otherwise it must be the recorded network namespace, because the
// runtime's DEL would not find an interface in another one. DEL uses the record,
// whatever the configuration says; for a container without a record it runs the plugins of
// the configuration, if there is one. CHECK and STATUS are about this network only. There is
// no GC.
func Secondary(conf []byte, with *wire.Attributes) plugin.Plugin {
	do := func(command func(*secondary, context.Context) error) func(context.Context, *plugin.Call) error {
		return func(ctx context.Context, c *plugin.Call) error {
			s, err := newSecondary(c, conf)
			if err != nil {
				return err
			}
			s.with = with
			return command(s, ctx)
		}
	}
	return plugin.Plugin{
		Add: do((*secondary).add), Check: do((*secondary).check), Del: do((*secondary).del), Status: do((*secondary).status),
	}
}

// Attach attaches a's network to a running container, as the ADD of [Secondary] does.
// An attachment without an interface name gets one, and one without an Origin that of
// [nad.UseAttached]. The network namespace is the recorded one.
func Attach(ctx context.Context, process plugin.System, conf []byte, a delegate.Attachment) error {
	c, err := plugin.Plugin{}.Call(process, delegate.CommandAdd, skel.CmdArgs{
		ContainerID: a.ContainerID, Netns: a.NetNS, IfName: a.IfName, Args: a.Args,
	})
	if err != nil {
		return err
	}
	s, err := newSecondary(c, conf)
	if err != nil {
		return err
	}
	return s.attach(ctx, func(c *plugin.Call) (delegate.Attachment, error) {
		a := a
		a.Args = s.Args
		a.Network, err = c.Complete(a.Network)
		return a, err
	}, nil)
}

// Detach removes the interface ifName from a container, as the DEL of
// [Secondary] does.
func Detach(ctx context.Context, process plugin.System, conf []byte, containerID, ifName string) error {
	return Secondary(conf, nil).Do(ctx, process, delegate.CommandDel, skel.CmdArgs{ContainerID: containerID, IfName: ifName})
}

// A secondary is one command for one network of a running container.
type secondary struct {
	*plugin.Call              // with the network's configuration
	own          *plugin.Call // with multinet's configuration
	with         *wire.Attributes
}

func newSecondary(c *plugin.Call, conf []byte) (*secondary, error) {
	own, err := New(Cluster{}).Call(c.System, c.Command, skel.CmdArgs{StdinData: conf, Path: c.Path})
	return &secondary{Call: c, own: own}, err
}

func (s *secondary) add(ctx context.Context) error {
	return s.attach(ctx, s.network, func(_ context.Context, added []delegate.Attached) error {
		return added[0].PrintTo(s.System.Stdout, "") // in its own version
	})
}

// attach attaches the network that what returns, with its CNI_ARGS, capability arguments
// and origin. The call that what receives can complete it. An interface without a name gets
// one.
func (s *secondary) attach(
	ctx context.Context,
	what func(*plugin.Call) (delegate.Attachment, error),
	report func(context.Context, []delegate.Attached) error,
) error {
	r, err := s.record(ctx, func(r lifecycle.AddRecord) bool { return r.State.Attached() && len(r.Attached) > 0 })
	if err != nil {
		return err
	}
	if r == nil {
		return s.notThere("")
	}
	first := r.Attached[0]
	a, err := what(&plugin.Call{Name: r.Key.Network, CNIVersion: first.Network.CNIVersion()})
	if err != nil {
		return err
	}
	a.ContainerID, a.NetNS = r.Key.ContainerID, cmp.Or(s.NetNS, first.NetNS)
	if a.Origin == nil {
		a.Origin = nad.Origin{Use: nad.UseAttached}.JSON()
	}
	own := &config{call: s.own}
	if err := s.own.Value("deviceInfoDir", &own.DeviceInfoDir); err != nil {
		return err
	}
	_, err = s.own.Manager.Attach(ctx, r.Key, lifecycle.Transaction{
		NetNS: a.NetNS,
		Plan: func(_ context.Context, taken []string) ([]delegate.Attachment, error) {
			named := a
			named.IfName, err = freeName(r.Key.IfName, s.IfName, taken)
			return []delegate.Attachment{own.deviceInfo().Assign(named)}, err
		},
		Prepare: own.fill,
		Report:  report,
	})
	return err
}

// freeName returns a name for an interface that is neither primary nor in taken. It is
// asked if that is not empty.
func freeName(primary, asked string, taken []string) (string, error) {
	taken = slices.DeleteFunc(taken, func(name string) bool { return name == primary })
	names, err := ifname.Scheme{Primary: primary, Taken: taken}.Plan("", asked)
	if err != nil {
		return "", err
	}
	return names[1], nil
}

// network returns the attachment to the network on stdin, completed by c.
func (s *secondary) network(c *plugin.Call) (a delegate.Attachment, err error) {
	a.Network, err = netconf.Parse(s.Config)
	if err == nil {
		a.Network, err = c.Complete(a.Network)
	}
	if err != nil {
		return a, err
	}
	// Check the attributes like those of a pod's selection.
	asked, err := json.Marshal(netconf.Selection{
		Name: a.Network.Name(), IPs: s.with.IPs, MAC: s.with.MAC, CNIArgs: s.with.CNIArgs, IPAMClaimReference: s.with.IPAMClaimReference,
	})
	var selected netconf.Selection
	if err == nil {
		err = json.Unmarshal(asked, &selected)
	}
	legacy := legacyArgs(s.own)
	if err == nil {
		err = s.own.Value("legacyArgs", &legacy)
	}
	if err == nil {
		a.Network, a.Args, err = withSelection(a.Network, selected, s.Args, legacy)
	}
	if err != nil {
		return a, fmt.Errorf("interfaceAttributes: %w", err)
	}
	a.CapabilityArgs = selected.CapabilityArgs()
	a.Origin = nad.Origin{Use: nad.UseAttached, Selection: asked}.JSON()
	return a, nil
}

// check runs CHECK of this attachment. It takes no lock, because it changes nothing
// and the server runs one operation on a container at a time.
func (s *secondary) check(ctx context.Context) error {
	r, err := s.record(ctx, func(r lifecycle.AddRecord) bool { return r.State.Attached() && s.in(r) != nil })
	if err != nil {
		return err
	}
	if r == nil || s.in(*r).Result == nil {
		return s.notThere(" as " + strconv.Quote(s.IfName))
	}
	return s.own.Manager.Invoker.Check(ctx, *s.in(*r))
}

// del detaches the recorded interface. It succeeds if there is none, unless a record
// of the container cannot be read.
func (s *secondary) del(ctx context.Context) error {
	r, err := s.record(ctx, func(r lifecycle.AddRecord) bool { return s.in(r) != nil })
	if r != nil {
		return s.own.Manager.Detach(ctx, r.Key, s.IfName)
	}
	known, knownErr := s.records(ctx)
	if err = cmp.Or(err, knownErr); err != nil || len(known) > 0 || len(s.Config) == 0 {
		return err
	}
	return s.delUnknown(ctx)
}

// delUnknown runs the DEL of the network on stdin for a container without a record.
// Another program may have attached it.
func (s *secondary) delUnknown(ctx context.Context) error {
	if s.System.Root.OwnNetNS(s.NetNS) {
		return types.NewError(types.ErrInvalidNetNS, "CNI_NETNS is the host's own network namespace", s.NetNS)
	}
	a, err := s.network(s.withoutRecord())
	if err != nil {
		return err
	}
	lock, err := scratch.Store[struct{}]{Dir: s.own.Manager.Dir}.Lock(ctx, s.ContainerID)
	if err != nil {
		return err
	}
	a.ContainerID, a.NetNS, a.IfName = s.ContainerID, s.NetNS, s.IfName
	err = s.own.Manager.Invoker.Del(ctx, delegate.Attached{Attachment: a})
	return errors.Join(err, lock.Unlock())
}

func (s *secondary) status(ctx context.Context) error {
	a, err := s.network(s.withoutRecord())
	if err != nil {
		return err
	}
	return status.NotReady(s.own.Manager.Status(ctx, []netconf.Network{a.Network}))
}

// withoutRecord completes the networks of a container without a record.
func (s *secondary) withoutRecord() *plugin.Call {
	return &plugin.Call{Name: cmp.Or(s.own.Name, "multinet"), CNIVersion: s.own.CNIVersion}
}

// record returns the oldest record of the container that is wanted, even if others
// cannot be read. If there is none, it returns nil and the errors of the others.
func (s *secondary) record(ctx context.Context, wanted func(lifecycle.AddRecord) bool) (*lifecycle.AddRecord, error) {
	found, err := s.records(ctx)
	found = slices.DeleteFunc(found, func(r lifecycle.AddRecord) bool { return !wanted(r) })
	if len(found) == 0 {
		return nil, err
	}
	oldest := slices.MinFunc(found, func(a, b lifecycle.AddRecord) int { return a.Created.Compare(b.Created) })
	return &oldest, nil
}

// records returns the records of the container. Some callers have the ID of a container in the pod
// instead of the sandbox's: then the network namespace says which it is.
func (s *secondary) records(ctx context.Context) ([]lifecycle.AddRecord, error) {
	found, err := s.own.Manager.Container(ctx, s.ContainerID)
	if len(found) > 0 || err != nil || s.NetNS == "" {
		return found, err
	}
	return s.own.Manager.InNetNS(ctx, s.NetNS)
}

// in returns the attachment in r with the interface, or nil.
func (s *secondary) in(r lifecycle.AddRecord) *delegate.Attached {
	i := slices.IndexFunc(r.Attached, func(a delegate.Attached) bool { return a.IfName == s.IfName })
	if i < 0 {
		return nil
	}
	return &r.Attached[i]
}

func (s *secondary) notThere(as string) error {
	return types.NewError(types.ErrInvalidNetworkConfig, fmt.Sprintf("container %q is not recorded as attached%s", s.ContainerID, as), "")
}
