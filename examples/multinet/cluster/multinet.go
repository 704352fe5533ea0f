package cluster

import (
	"context"

	"github.com/containernetworking/cni/pkg/types"

	multinet "github.com/metacni/metacni/examples/multinet/plugin"
	"github.com/metacni/metacni/netconf/nad"
)

// Multinet returns what multinet asks about the cluster. The zero value asks nothing.
func (c *Cluster) Multinet() multinet.Cluster {
	if !c.conf.On() {
		return multinet.Cluster{}
	}
	m := multinet.Cluster{Definition: c.definition, Annotations: c.annotations, Attached: c.attached, Devices: c.devices, Serves: c.serves, Warn: c.warn}
	m.Claims = c.noClaims
	if c.conf.DRA != nil {
		m.Claims, m.Planned = c.claimed, c.held
	}
	return m
}

// definition returns the definition r, and notes in the ADD of ctx that it was used. A
// name in the configuration is often that of a file: no ADD waits for such a definition.
func (c *Cluster) definition(ctx context.Context, r nad.Ref, use nad.Use) (nad.Definition, error) {
	find := c.view.Definition
	if use == nad.UseCluster || use == nad.UseDefault {
		find = c.view.KnownDefinition
	}
	d, err := find(ctx, r)
	if a := addOf(ctx); a != nil && err == nil {
		a.definitions[r] = d
	}
	return d, err
}

// annotations returns the annotations of the pod p, for which the runtime passes none. With
// the first of them the daemon begins to watch the pods of its node.
func (c *Cluster) annotations(ctx context.Context, p nad.Pod) (map[string]string, error) {
	if c.conf.Node == "" {
		return nil, types.NewError(types.ErrTryAgainLater,
			"the container runtime passes none, and without nodeName the daemon cannot ask the API server for them", "")
	}
	pod, err := c.view.Pod(ctx, p)
	return pod.Annotations, err
}
