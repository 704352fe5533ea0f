package multinet

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/containernetworking/cni/pkg/skel"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/lifecycle"
	"github.com/metacni/metacni/delegate/plugin"
	"github.com/metacni/metacni/netconf"
	"github.com/metacni/metacni/netconf/nad"
)

// PrepareSweep makes s sweep the records of multinet with the configuration conf and
// the CNI_PATH cniPath. The context is that of the sweeps. If conf cannot be decoded,
// PrepareSweep fails as a DEL does and does not change s. Of the cluster only
// Definition is called, and not for long.
func PrepareSweep(ctx context.Context, s *lifecycle.Sweeper, process plugin.Process, cluster Cluster, conf []byte, cniPath string) error {
	c, err := New(cluster).Call(process, delegate.CommandGC, skel.CmdArgs{StdinData: conf, Path: cniPath})
	if err != nil {
		return err
	}
	s.Manager = c.Manager
	s.Current = func(a delegate.Attachment) (netconf.Network, error) {
		conf, err := readConfig(c, cluster)
		if err != nil {
			return netconf.Network{}, err
		}
		return conf.now(ctx, a)
	}
	return nil
}

// now returns the network of a as it is defined now: by its definition, by its
// claim, by the configuration, or by a file in confDir.
func (c *config) now(ctx context.Context, a delegate.Attachment) (netconf.Network, error) {
	switch o := nad.ParseOrigin(a.Origin); {
	case o.Definition != (nad.Ref{}):
		return c.asDefined(ctx, a, o)
	case o.Use == nad.Claimed: // a claim cannot be changed
		return a.Network, nil
	}
	name := a.Network.Name()
	nets, _ := c.current(ctx)
	for _, n := range nets {
		if n.Name() == name {
			return n, nil
		}
	}
	n, err := c.inConfDir(name)
	if err == nil {
		n, err = c.call.Complete(n)
	}
	if err != nil {
		return n, fmt.Errorf("network %q: %w", c.call.Name, err)
	}
	return n, nil
}

// asDefined returns the network of a, of the origin o, as its definition has it now, with
// what the pod asked for.
func (c *config) asDefined(ctx context.Context, a delegate.Attachment, o nad.Origin) (netconf.Network, error) {
	ctx, cancel := context.WithTimeout(ctx, currentTimeout)
	defer cancel()
	ch := choice{use: o.Use, ref: o.Definition, device: o.Device}
	_ = json.Unmarshal(o.Selection, &ch.selection) // none where the configuration names it
	n, _, err := c.defined(ctx, ch.ref, ch)
	if err == nil {
		ch.network, err = c.call.Complete(n)
	}
	if err != nil {
		return netconf.Network{}, err
	}
	a, err = c.attachment(ch, a.CapabilityArgs, a.Args)
	return a.Network, err
}
