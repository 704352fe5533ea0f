package multinet

import (
	"context"
	"strings"

	"github.com/containernetworking/cni/pkg/skel"

	"github.com/metacni/metacni/delegate/plugin"
	"github.com/metacni/metacni/netconf"
	"github.com/metacni/metacni/netconf/nad"
)

// Status returns a network that a node offers to pods, and fails if they cannot be attached to
// it now. The network is namespace/name of a definition, which has the types that pods may
// select, or the name of a file in confDir. The configuration and the Path of asked are used as
// in an ADD.
//
// Status fails as an ADD does where the network is not found or not valid. Otherwise it asks
// the plugins with STATUS, as far as the version of the network has that command, and returns
// the network with the first error.
func Status(ctx context.Context, process plugin.Process, asked skel.CmdArgs, cluster Cluster, network string) (netconf.Network, error) {
	c, err := configOf(process, asked, cluster)
	if err != nil {
		return netconf.Network{}, err
	}
	n, err := c.offered(ctx, network)
	if err != nil {
		return netconf.Network{}, err
	}
	return n, c.call.Manager.Status(ctx, []netconf.Network{n})
}

// offered returns the network of that name.
func (c *config) offered(ctx context.Context, name string) (netconf.Network, error) {
	if !strings.Contains(name, "/") {
		n, err := c.inConfDir(name)
		if err == nil {
			n, err = c.call.Complete(n)
		}
		return n, err
	}
	ref, err := nad.ParseRef(name, "")
	if err != nil {
		return netconf.Network{}, err
	}
	n, _, err := c.find(ctx, wanted{use: nad.Claimed, ref: ref})
	return n, err
}
