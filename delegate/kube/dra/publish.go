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

// A Device is a network that pods of this node can be attached to.
type Device struct {
	// Name is a DNS label, different from that of all others.
	Name string

	// Attributes are what DeviceClasses and claims select by, such as "plugin" and "master".
	// A name without a domain is in that of the driver. A value has at most 64 bytes.
	Attributes map[string]string

	// Exclusive means that only one claim at a time can have the network. Otherwise any
	// number of claims share it.
	Exclusive bool

	// Err is why pods cannot be attached now, such as the error of the network's STATUS. The
	// device is withdrawn until a call of [Driver.Publish] without an error. Pods that have
	// it keep it.
	Err error
}

// The limits of the API.
const (
	maxAttributes = 32
	maxDevices    = resourcev1.ResourceSliceMaxDevices // in a slice
)

// Publish makes these the devices that the scheduler can allocate to pods of this node, in
// ResourceSlices of one pool that has the name of the node. It replaces those of the last call.
// An empty list withdraws all. It does not wait for the API server: the Driver tries for as
// long as it runs. ResourceSlices stay when the Driver ends.
//
// It fails for a device with a name or attributes that no API server takes, and for two of
// the same name; nothing changes then.
func (d *Driver) Publish(ctx context.Context, devices []Device) error {
	var ready []resourcev1.Device
	names := map[string]bool{}
	for _, device := range devices {
		if err := device.check(); err != nil {
			return err
		}
		if names[device.Name] {
			return fmt.Errorf("two devices have the name %q", device.Name)
		}
		names[device.Name] = true
		if device.Err != nil {
			d.log.DebugContext(ctx, "network withdrawn", "device", device.Name, "error", device.Err)
			continue
		}
		ready = append(ready, device.object())
	}
	slices.SortFunc(ready, func(a, b resourcev1.Device) int { return strings.Compare(a.Name, b.Name) })
	pool := resourceslice.Pool{}
	for some := range slices.Chunk(ready, maxDevices) {
		pool.Slices = append(pool.Slices, resourceslice.Slice{Devices: some})
	}
	if len(ready) == 0 {
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
func (d Device) check() error {
	if why := validation.IsDNS1123Label(d.Name); len(why) > 0 {
		return fmt.Errorf("device %q: %s", d.Name, why[0])
	}
	if len(d.Attributes) > maxAttributes {
		return fmt.Errorf("device %q: %d attributes, at most %d are possible", d.Name, len(d.Attributes), maxAttributes)
	}
	for key, value := range d.Attributes {
		domain, id, qualified := strings.Cut(key, "/")
		if !qualified {
			domain, id = "", key
		}
		if qualified && (len(validation.IsDNS1123Subdomain(domain)) > 0 || len(domain) > resourcev1.DeviceMaxDomainLength) ||
			len(validation.IsCIdentifier(id)) > 0 || len(id) > resourcev1.DeviceMaxIDLength {
			return fmt.Errorf("device %q: %q is no name of an attribute", d.Name, short(key))
		}
		if len(value) > resourcev1.DeviceAttributeMaxValueLength {
			return fmt.Errorf("device %q: attribute %q is longer than %d bytes", d.Name, key, resourcev1.DeviceAttributeMaxValueLength)
		}
	}
	return nil
}

func (d Device) object() resourcev1.Device {
	o := resourcev1.Device{Name: d.Name}
	for key, value := range d.Attributes {
		if o.Attributes == nil {
			o.Attributes = map[resourcev1.QualifiedName]resourcev1.DeviceAttribute{}
		}
		o.Attributes[resourcev1.QualifiedName(key)] = resourcev1.DeviceAttribute{StringValue: &value}
	}
	if !d.Exclusive {
		shared := true
		o.AllowMultipleAllocations = &shared
	}
	return o
}
