package podresources

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	api "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/metacni/metacni/delegate/device"
)

// noNUMA is the NUMA node of a device that belongs to none.
const noNUMA = -1

// The attributes of devices of claims.
const (
	resourceAttribute = "k8s.cni.cncf.io/resourceName"
	idAttribute       = "k8s.cni.cncf.io/deviceID"
	pciAttribute      = "resource.kubernetes.io/pciBusID"
)

// containers returns what the kubelet has reported about a pod.
func (c *Client) containers(ctx context.Context, reported *api.PodResources) ([][]device.Device, error) {
	var containers [][]device.Device
	for _, r := range reported.GetContainers() {
		var devices []device.Device
		for _, d := range r.GetDevices() {
			numa := node(d.GetTopology())
			for _, id := range d.GetDeviceIds() {
				devices = append(devices, device.Device{Resource: d.GetResourceName(), ID: id, NUMA: numa})
			}
		}
		claimed, err := c.claimed(ctx, r.GetDynamicResources())
		if err != nil {
			return nil, err
		}
		containers = append(containers, append(devices, claimed...))
	}
	return containers, nil
}

// claimed returns the devices in claims, without those that belong to no resource.
func (c *Client) claimed(ctx context.Context, claims []*api.DynamicResource) ([]device.Device, error) {
	var devices []device.Device
	for _, claim := range claims {
		for _, r := range claim.GetClaimResources() {
			name := r.GetDriverName() + "/" + r.GetPoolName() + "/" + r.GetDeviceName()
			var a map[string]string
			if c.Attributes != nil {
				var err error
				if a, err = c.Attributes(ctx, r.GetDriverName(), r.GetPoolName(), r.GetDeviceName()); err != nil {
					return nil, fmt.Errorf("attributes of device %s of claim %s/%s: %w", name, claim.GetClaimNamespace(), claim.GetClaimName(), err)
				}
			}
			switch id := cmp.Or(a[idAttribute], a[pciAttribute]); {
			case a == nil:
				devices = append(devices, device.Device{ID: name, NUMA: noNUMA})
			case id != "" && a[resourceAttribute] != "":
				devices = append(devices, device.Device{Resource: a[resourceAttribute], ID: id, NUMA: noNUMA})
			}
		}
	}
	return devices, nil
}

// node returns the lowest NUMA node of a device.
func node(t *api.TopologyInfo) int {
	if len(t.GetNodes()) == 0 {
		return noNUMA
	}
	return int(slices.MinFunc(t.GetNodes(), func(a, b *api.NUMANode) int { return cmp.Compare(a.GetID(), b.GetID()) }).GetID())
}
