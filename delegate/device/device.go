// Package device decides which of a pod's devices each of its attachments gets.
//
// The kubelet allocates devices of a resource, such as "vendor.example/vf", to the
// containers of a pod. A network that needs a device names the resource. [Allocate] takes
// the devices of the whole pod and the requests of all its attachments at once, so that no
// two attachments get the same device:
//
//	ids, err := device.Allocate(containers, device.InUse(recorded...), requests...)
//	...
//	attachment, err = device.Give(attachment, ids[i])
//
// An attachment never goes without the device that it needs. The package asks nobody and
// reads no files: the caller learns the devices from the kubelet, and records what it has
// attached.
package device

import (
	"cmp"
	"errors"
	"slices"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/netconf/nad"
)

// NoNUMA is the [Device].NUMA of a device that belongs to no NUMA node.
const NoNUMA = -1

// A Device is one device of a resource.
type Device struct {
	Resource string // such as "vendor.example/vf"; empty if nobody knows it
	ID       string // as the device plugin calls it, most often a PCI address
	NUMA     int    // the lowest NUMA node that it belongs to, or [NoNUMA]
}

// A Container has the devices that the kubelet has allocated to one container, in any
// order. A device may be there twice.
type Container struct {
	Name    string
	Devices []Device
}

// A Request is what one attachment needs.
type Request struct {
	// Resource is the resource that the network names, if it names one.
	Resource string

	// ID, if not empty, is the device that the attachment is to have. Without a
	// Resource nobody checks it: whether pods may choose such devices is for the
	// caller to decide.
	ID string
}

// Allocate returns the ID of the device that each request gets: "" for a request without
// Resource and ID. containers are those of the pod, in the order in which the kubelet
// reports them. used are devices that other attachments of the pod have already, see
// [InUse]. A used device without Resource is used in all resources.
//
// The requests with an ID are served first, and with them the requests without Resource.
// Then each of the others gets the next free device of its resource, in this order:
//
//   - those of the first container, then those of the second, and so on
//   - within a container those of no NUMA node, then those of the lowest, and so on
//   - within a NUMA node PCI addresses by number, then other IDs, with the numbers in
//     them by value: "vf2" is before "vf10"
//
// A device that several containers share is that of the first. The result depends on the
// arguments only.
//
// A device of containers without Resource is given to nobody.
//
// If a request cannot be served, Allocate fails with an [*Error] for the first such
// request.
func Allocate(containers []Container, used []Device, requests ...Request) ([]string, error) {
	ids := make([]string, len(requests))
	needed := false
	for i, r := range requests {
		needed = needed || r.Resource != ""
		if r.Resource == "" && r.ID != "" {
			ids[i] = r.ID
			used = append(slices.Clip(used), Device{ID: r.ID})
		}
	}
	if !needed {
		return ids, nil
	}
	p := pool{all: make(map[string][]string), used: make(map[Device]bool)}
	for _, c := range containers {
		p.add(c)
	}
	for _, d := range used {
		p.use(d.Resource, d.ID)
	}
	for i, r := range requests {
		if r.Resource == "" || r.ID == "" {
			continue
		}
		if why := p.wanted(r); why != nil {
			return nil, p.fail(i, requests, why)
		}
		p.use(r.Resource, r.ID)
		ids[i] = r.ID
	}
	for i, r := range requests {
		if r.Resource == "" || r.ID != "" {
			continue
		}
		free := slices.IndexFunc(p.all[r.Resource], func(id string) bool { return !p.taken(r.Resource, id) })
		if free < 0 {
			return nil, p.fail(i, requests, p.none(r.Resource, used))
		}
		ids[i] = p.all[r.Resource][free]
		p.use(r.Resource, ids[i])
	}
	return ids, nil
}

// A pool has the devices of a pod.
type pool struct {
	all  map[string][]string // by resource, in the order in which they are taken
	used map[Device]bool     // without NUMA
}

// add adds the devices of c behind those that are there.
func (p *pool) add(c Container) {
	devices := slices.Clone(c.Devices)
	slices.SortFunc(devices, func(a, b Device) int {
		return cmp.Or(cmp.Compare(a.NUMA, b.NUMA), compareIDs(a.ID, b.ID), cmp.Compare(a.Resource, b.Resource))
	})
	for _, d := range devices {
		if d.ID != "" && !slices.Contains(p.all[d.Resource], d.ID) {
			p.all[d.Resource] = append(p.all[d.Resource], d.ID)
		}
	}
}

func (p *pool) use(resource, id string) { p.used[Device{Resource: resource, ID: id}] = true }

func (p *pool) taken(resource, id string) bool {
	return p.used[Device{Resource: resource, ID: id}] || p.used[Device{ID: id}]
}

// wanted says why r, which has an ID, cannot be served, or returns nil.
func (p *pool) wanted(r Request) error {
	switch {
	case !slices.Contains(p.all[r.Resource], r.ID):
		return ErrNotAllocated
	case p.taken(r.Resource, r.ID):
		return ErrInUse
	}
	return nil
}

// none says why there is no free device of resource, if used were used before.
func (p *pool) none(resource string, used []Device) error {
	if slices.ContainsFunc(used, func(d Device) bool {
		return (d.Resource == "" || d.Resource == resource) && slices.Contains(p.all[resource], d.ID)
	}) {
		return ErrInUse
	}
	return ErrNotAllocated
}

// fail is the error of requests[at].
func (p *pool) fail(at int, requests []Request, why error) error {
	r := requests[at]
	e := &Error{At: at, Request: r, Allocated: p.all[r.Resource], Err: why}
	if errors.Is(why, ErrNotAllocated) {
		e.Unknown = p.all[""]
	}
	for _, other := range requests {
		if other.Resource == r.Resource {
			e.Asked++
		}
	}
	return e
}

// InUse returns the devices that attached have, for [Allocate]: those of their
// [nad.Origin], and those of their capability arguments.
func InUse(attached ...delegate.Attached) []Device {
	var devices []Device
	for _, a := range attached {
		o := nad.ParseOrigin(a.Origin)
		if o.Device == "" {
			o.Device = capability(a.CapabilityArgs)
		}
		if o.Device != "" {
			devices = append(devices, Device{Resource: o.Resource, ID: o.Device, NUMA: NoNUMA})
		}
	}
	return devices
}
