package dra

import (
	"context"
	"fmt"
	"slices"
	"strings"

	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/dynamic-resource-allocation/resourceslice"
)

// A device is a network that pods of this node can be attached to.
type device struct {
	name       string            // a DNS label, different from that of all others
	attributes map[string]string // a name without a domain is in that of the driver
	exclusive  bool
	err        error // why pods cannot be attached now: the device is withdrawn, and pods that have it keep it
}

// The limits of the API.
const (
	maxAttributes = 32
	maxDevices    = resourcev1.ResourceSliceMaxDevices // in a slice
)

// publish makes these the devices that the scheduler can allocate to pods of this node, in
// ResourceSlices of one pool that has the name of the node. It replaces those of the last call.
// It does not wait for the API server: the Driver tries for as long as it runs. ResourceSlices
// stay when the Driver ends.
func (d *Driver) publish(ctx context.Context, devices []device) error {
	var all []resourcev1.Device
	for _, device := range ready(devices) {
		all = append(all, device.object())
	}
	slices.SortFunc(all, func(a, b resourcev1.Device) int { return strings.Compare(a.Name, b.Name) })
	pool := resourceslice.Pool{}
	for some := range slices.Chunk(all, maxDevices) {
		pool.Slices = append(pool.Slices, resourceslice.Slice{Devices: some})
	}
	if len(all) == 0 {
		pool.Slices = []resourceslice.Slice{{}} // says that the node has no device
	}
	d.serving.Lock()
	defer d.serving.Unlock()
	d.service.published = &resourceslice.DriverResources{Pools: map[string]resourceslice.Pool{d.config.Node: pool}}
	if d.service.helper == nil {
		return nil // the next one does it
	}
	return d.service.helper.PublishResources(ctx, *d.service.published)
}

// check fails for a name or attributes that no API server takes.
func (d device) check() error {
	if why := validation.IsDNS1123Label(d.name); len(why) > 0 {
		return fmt.Errorf("device %q: %s", d.name, why[0])
	}
	if len(d.attributes) > maxAttributes {
		return fmt.Errorf("device %q: %d attributes, at most %d are possible", d.name, len(d.attributes), maxAttributes)
	}
	for key, value := range d.attributes {
		domain, id, qualified := strings.Cut(key, "/")
		if !qualified {
			domain, id = "", key
		}
		if qualified && (len(validation.IsDNS1123Subdomain(domain)) > 0 || len(domain) > resourcev1.DeviceMaxDomainLength) ||
			len(validation.IsCIdentifier(id)) > 0 || len(id) > resourcev1.DeviceMaxIDLength {
			return fmt.Errorf("device %q: %q is no name of an attribute", d.name, short(key))
		}
		if len(value) > resourcev1.DeviceAttributeMaxValueLength {
			return fmt.Errorf("device %q: attribute %q is longer than %d bytes", d.name, key, resourcev1.DeviceAttributeMaxValueLength)
		}
	}
	return nil
}

func (d device) object() resourcev1.Device {
	o := resourcev1.Device{Name: d.name}
	for key, value := range d.attributes {
		if o.Attributes == nil {
			o.Attributes = map[resourcev1.QualifiedName]resourcev1.DeviceAttribute{}
		}
		o.Attributes[resourcev1.QualifiedName(key)] = resourcev1.DeviceAttribute{StringValue: &value}
	}
	if !d.exclusive {
		shared := true
		o.AllowMultipleAllocations = &shared
	}
	return o
}
