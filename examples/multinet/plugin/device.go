package plugin

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/device"
	"github.com/metacni/metacni/netconf"
	"github.com/metacni/metacni/netconf/nad"
	"github.com/metacni/metacni/scratch"
)

// findDevices sets the device of each choice that needs one, or for which a pod has
// chosen one. It asks the cluster once, and only if a definition names a resource. Devices
// are in use if something is attached to the container with them that is not replaced, or if they are
// in kept.
func (c *config) findDevices(ctx context.Context, choices []choice, replaced func(scratch.Key, delegate.Attached) bool, kept ...device.Device) error {
	containers, err := c.allocated(ctx, choices)
	if err != nil {
		return err
	}
	requests := make([]device.Device, len(choices))
	for i, ch := range choices {
		requests[i] = device.Device{Resource: ch.definition.Resource, ID: ch.selection.DeviceID}
		if err := c.allowDevice(ch); err != nil {
			return c.about(ch, err)
		}
	}
	var used []delegate.Attached
	if i := slices.IndexFunc(choices, func(ch choice) bool { return ch.definition.Resource != "" }); i >= 0 {
		if used, err = c.attachedBeside(ctx, replaced); err != nil {
			return c.about(choices[i], err)
		}
	}
	ids, err := device.Allocate(containers, used, append(requests, kept...)...)
	if e := (*device.Error)(nil); errors.As(err, &e) {
		return c.about(choices[e.At], err)
	}
	for i := range choices {
		if choices[i].definition.Ref != (nad.Ref{}) { // plugins of a file get it if they declare the capability
			choices[i].device = ids[i]
		}
	}
	return nil
}

// allocated returns the devices of the pod, if a choice needs one. It takes the resource from each
// choice that needs none because no device plugin serves the resource.
func (c *config) allocated(ctx context.Context, choices []choice) (containers [][]device.Device, err error) {
	none := c.cluster.Devices == nil || c.pod.Name == ""
	served := make(map[string]bool) // by resource, as far as it has been asked
	for i, ch := range choices {
		resource := ch.definition.Resource
		if resource == "" {
			continue
		}
		if len(served) == 0 && !none {
			if containers, err = c.cluster.Devices(ctx, c.pod); err != nil {
				return nil, c.about(ch, err)
			}
		}
		if _, known := served[resource]; !known {
			ofPod := func(d device.Device) bool { return d.Resource == resource || d.Resource == "" }
			served[resource] = c.cluster.Serves == nil || slices.ContainsFunc(slices.Concat(containers...), ofPod)
			if !served[resource] {
				if served[resource], err = c.cluster.Serves(ctx, resource); err != nil {
					return nil, c.about(ch, err)
				}
			}
		}
		switch {
		case !served[resource]:
			choices[i].definition.Resource = ""
		case none:
			return nil, c.about(ch, types.NewError(types.ErrInvalidNetworkConfig, fmt.Sprintf(
				"the network needs a device of the resource %q, which only the daemon multinetd can learn from the kubelet, for pods with a name", resource), ""))
		}
	}
	return containers, nil
}

// allowDevice fails if the pod chooses a device of the node for a network that users
// define, and may not: a plugin such as host-device would take any. With a resource it can
// only be one that is allocated to the pod. With a file of the node it was the administrator
// who declared the capability deviceID. No pod can replace the device that a definition names.
func (c *config) allowDevice(ch choice) error {
	if ch.selection.DeviceID == "" || ch.definition.Ref == (nad.Ref{}) || ch.definition.Resource != "" {
		return nil
	}
	why := errors.New("pods may not choose a device of the node: leave it out, or set allowDeviceID in the configuration of multinet")
	if c.AllowDeviceID {
		key := otherDevice(ch.network, ch.selection.DeviceID)
		if key == "" {
			return nil
		}
		why = fmt.Errorf("the definition names the device itself (%s): leave it out", key)
	}
	return &netconf.Error{Kind: netconf.ErrInvalid, Network: ch.selection.Name, Key: "deviceID", Err: why}
}

// otherDevice returns the key by which n tells a plugin to use another device than id, or "". They
// are those of plugins such as host-device, sriov and ib-sriov, and match in upper or lower case.
func otherDevice(n netconf.Network, id string) string {
	deviceKeys := []string{"deviceID", "pciBusID", "device", "hwaddr", "kernelpath"}
	for _, p := range n.Plugins() {
		var keys map[string]any
		_ = p.Decode(&keys) // an object, which any map can have
		for _, key := range slices.Sorted(maps.Keys(keys)) {
			is := func(name string) bool { return strings.EqualFold(name, key) }
			if slices.ContainsFunc(deviceKeys, is) && keys[key] != nil && keys[key] != "" && keys[key] != id {
				return key
			}
		}
	}
	return ""
}

// attachedBeside returns what is attached to the container and not replaced.
func (c *config) attachedBeside(ctx context.Context, replaced func(scratch.Key, delegate.Attached) bool) ([]delegate.Attached, error) {
	rs, err := c.call.Manager.Container(ctx, c.call.ContainerID)
	var all []delegate.Attached
	for _, r := range rs {
		for _, a := range r.Attached {
			if !replaced(r.Key, a) {
				all = append(all, a)
			}
		}
	}
	return all, err
}

// deviceInfo is where multinet keeps device information files.
func (c *config) deviceInfo() device.Dir {
	path, err := c.call.System.Root.Node(c.DeviceInfoDir)
	if err != nil {
		path = c.DeviceInfoDir // an ADD has reported it
	}
	return device.Dir{Root: string(c.call.System.Root), Path: path, Owner: c.call.System.Root.OnNode(c.call.Manager.Dir)}
}

// fill writes the device information files of a plan. The ADD goes on without them: it returns
// nil and warns of a failure.
func (c *config) fill(ctx context.Context, plan []delegate.Attachment) error {
	switch err := c.deviceInfo().Fill(plan...); {
	case err == nil:
	case c.cluster.Warn != nil && c.inKubernetes():
		c.cluster.Warn(ctx, c.pod, err)
	default:
		c.complain(err)
	}
	return nil
}

// sweepDeviceInfo removes old device information files that no record has. It removes none
// while a record cannot be read, which GC reports.
func (c *config) sweepDeviceInfo(ctx context.Context) {
	used := func() (all []delegate.Attachment, _ error) {
		for r, err := range c.call.Manager.Records(ctx) {
			if err != nil {
				return nil, err
			}
			for _, a := range r.Attached {
				all = append(all, a.Attachment)
			}
		}
		return all, nil
	}
	if _, err := c.deviceInfo().Sweep(used); err != nil && !errors.As(err, new(*scratch.Error)) {
		c.complain(err)
	}
}

// complain writes err to stderr.
func (c *config) complain(err error) {
	if c.call.System.Stderr != nil {
		fmt.Fprintf(c.call.System.Stderr, "multinet: %v\n", err)
	}
}
