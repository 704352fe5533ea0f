package cluster

import (
	"context"
	"errors"
	"log/slog"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/kube"
	"github.com/metacni/metacni/delegate/lifecycle"
	"github.com/metacni/metacni/examples/internal/program"
	multinet "github.com/metacni/metacni/examples/multinet/plugin"
	"github.com/metacni/metacni/netconf"
	"github.com/metacni/metacni/netconf/nad"
	"github.com/metacni/metacni/scratch"
	"github.com/metacni/metacni/status"
)

// Reasons of Events.
const (
	failedAddingInterface   = "FailedAddingInterface"
	failedRemovingInterface = "FailedRemovingInterface"

	noNetworkFound   = "NoNetworkFound"   // a definition does not exist
	invalidNetwork   = "InvalidNetwork"   // a definition or a selection cannot be used
	networkForbidden = "NetworkForbidden" // by the policy of the node
	networksIgnored  = "NetworksIgnored"  // what a pod asks for is not done

	deviceInfoLost    = "DeviceInfoLost"    // a device information file cannot be written or read
	claimMetadataLost = "ClaimMetadataLost" // containers do not see what their claims are attached to
)

// Adding returns a context for the ADD of a container with these CNI_ARGS. The caller
// calls end with the error of the ADD. An Event tells users of the cluster what was attached,
// or why the ADD has failed if they can do something about it. After an ADD that has succeeded
// what the pod selects is compared with what it has got: that may have changed meanwhile.
func (c *Cluster) Adding(ctx context.Context, container, cniArgs string) (_ context.Context, end func(error)) {
	p := nad.PodOf(cniArgs)
	if !c.conf.On() || !p.Valid() {
		return ctx, func(error) {}
	}
	p.Container = container
	a := &add{container: container, definitions: make(map[nad.Ref]nad.Definition)}
	return context.WithValue(ctx, addKey{}, a), func(err error) {
		if err == nil {
			c.follow.added(p)
			c.tellAdded(ctx, a.record, p, a.added)
		}
		c.tellFailed(p, a, err)
		if a.claims {
			c.driver.Attached(p.UID, err)
		}
	}
}

// tellAdded tells users what was added to the pod p with the record k, and what is missing in
// its status.
func (c *Cluster) tellAdded(ctx context.Context, k scratch.Key, p nad.Pod, added []delegate.Attached) {
	networks, err := c.networks([]program.Record{{AddRecord: lifecycle.AddRecord{Key: k, State: scratch.Added, Attached: added}}})
	if err != nil {
		c.warn(ctx, p, err)
	}
	if c.conf.Events != eventsFull {
		c.events.Added(p, networks)
		return
	}
	for _, n := range networks {
		c.events.Added(p, []status.Network{n})
	}
}

// tellFailed tells users why the ADD a of the pod p has failed.
func (c *Cluster) tellFailed(p nad.Pod, a *add, err error) {
	if tooFew(err) {
		c.exhausted.Add(1)
	}
	reason, ref := blame(err)
	if reason == "" {
		return
	}
	c.events.Pod(p, reason, "AddNetwork", status.Error(err).Error())
	var bad *nad.Error
	if d, used := a.definitions[ref]; used && reason == invalidNetwork && errors.As(err, &bad) {
		c.events.Definition(d, reason, "AddNetwork", status.Error(bad).Error()) // the same for all pods
	}
}

// blame returns the reason of the Event for an ADD that has failed with err, and the
// definition that is to blame, if it is known. The reason is empty for what users cannot
// mend, or need not.
func blame(err error) (reason string, ref nad.Ref) {
	var bad *nad.Error
	if errors.As(err, &bad) {
		ref = bad.Ref
	}
	switch {
	case errors.Is(err, nad.ErrForbidden):
		return networkForbidden, ref
	case errors.Is(err, kube.ErrNotFound), bad != nil && errors.Is(bad, netconf.ErrNotFound):
		return noNetworkFound, ref
	case tooFew(err): // the pod must ask for more devices, or for other ones
		return invalidNetwork, nad.Ref{}
	case bad != nil && (errors.Is(bad, netconf.ErrInvalid) || errors.Is(bad, netconf.ErrDecode)):
		return invalidNetwork, ref
	}
	return "", ref
}

// Leftover tells users of the pod of r that what its failed ADD has left cannot be removed
// because of err.
func (c *Cluster) Leftover(r lifecycle.AddRecord, err error) {
	c.events.Pod(multinet.PodOf(r), failedRemovingInterface, "RemoveNetwork",
		"left of an attachment that failed, and tried again until it is removed: "+status.Error(err).Error())
}

// tellIgnored tells users that a pod in the network of its node gets no networks: the
// runtime makes no ADD for it.
func (c *Cluster) tellIgnored(p kube.Pod) {
	selected, err := multinet.Selected(p.Annotations)
	if p.HostNetwork && !p.Deleted && (err != nil || len(selected) > 0) {
		c.events.Pod(nad.Pod{Namespace: p.Namespace, Name: p.Name, UID: p.UID}, networksIgnored, "AddNetwork",
			"the pod has the network of its node (hostNetwork): the networks that it selects are ignored")
	}
}

// warn tells of what has gone wrong in the ADD of the pod p, which goes on.
func (c *Cluster) warn(ctx context.Context, p nad.Pod, err error) {
	c.log.LogAttrs(ctx, slog.LevelWarn, "device information", slog.String("pod", p.String()), slog.Any("error", err))
	c.events.Pod(p, deviceInfoLost, "AddNetwork", err.Error())
}
