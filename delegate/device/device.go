// Package device gives attachments their devices, and keeps what is known of a device in a
// file of the attachment.
//
// The kubelet allocates devices of a resource, such as "vendor.example/vf", to the
// containers of a pod. A network that needs a device names the resource. [Allocate] takes
// the devices of the whole pod and the requests of all its attachments at once, so that no
// two attachments get the same device. [Give] puts a device into an attachment.
//
// A device plugin writes what it knows of a device to a file, as in the Device Information
// Specification of the Network Plumbing Working Group, version 1.1.0. A [Dir] copies that to
// a file for the attachment that gets the device. The plugins of the network receive the
// path as the capability argument "CNIDeviceInfoFile", and may replace the file. [Describe]
// adds its content to the status after the ADD. The life of a device and of its file, with
// package lifecycle:
//
//	ids, err := device.Allocate(containers, recorded, requests...)
//	...
//	a, err := device.Give(attachment, ids[i])
//	dir := device.Dir{Root: string(root), Owner: stateDir}
//	lifecycle.Transaction{
//		Plan: ...                     // attachments, each through dir.Assign
//		Prepare: func(ctx context.Context, plan []delegate.Attachment) error {
//			return dir.Fill(plan...)
//		},
//	}
//	networks := record.Networks(nil)
//	err := device.Describe(root, networks, record.Attached...)
//
// Lifecycle removes the file when the attachment is detached. [Dir.Sweep] removes files that
// no record has.
package device

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/internal/fault"
	"github.com/metacni/metacni/netconf"
	"github.com/metacni/metacni/netconf/nad"
)

// A Device is one device of a resource, or the request for one.
type Device struct {
	Resource string // such as "vendor.example/vf"; empty if nobody knows it
	ID       string // as the device plugin calls it, most often a PCI address
	NUMA     int    // the lowest NUMA node that it belongs to, or -1 if it belongs to none
}

// Allocate returns the ID of the device that each request gets. containers are the devices
// that the kubelet has allocated to each container of the pod, in the order in which it
// reports them. A device may be there twice. What is attached already has its devices: those
// of its [nad.Origin], or of its capability argument "deviceID".
//
// A request has the Resource that the network names, if it names one, and an ID if the
// attachment is to have that device. A request without both gets "". A request with an ID
// and no Resource gets that device, which nobody checks: whether pods may choose such
// devices is for the caller to decide.
//
// The requests with an ID are served first. Then each of the others gets the next free
// device of its resource, in this order:
//
//   - those of the first container, then those of the second, and so on
//   - within a container those of no NUMA node, then those of the lowest, and so on
//   - within a NUMA node those with shorter IDs, then in the order of the bytes: PCI
//     addresses by number, and "vf2" before "vf10"
//
// A device that several containers share is that of the first. A device of containers
// without Resource is given to nobody. The result depends on the arguments only.
//
// If a request cannot be served, Allocate fails with an [*Error] for the first such
// request. Its CNI code is 7, because the pod's networks and its containers ask for
// different devices, or 11 (try again later) if the pod has a device without Resource that
// may be the missing one.
func Allocate(containers [][]Device, attached []delegate.Attached, requests ...Device) ([]string, error) {
	p := pool{all: make(map[string][]string), used: make(map[Device]bool)}
	for _, devices := range containers {
		p.add(devices)
	}
	for _, a := range attached {
		p.use(inUse(a))
	}
	for _, r := range requests {
		if r.Resource == "" {
			p.use(r)
		}
	}
	before := maps.Clone(p.used)
	ids := make([]string, len(requests))
	for i, r := range requests {
		ids[i] = r.ID
		if r.Resource == "" || r.ID == "" {
			continue
		}
		if !slices.Contains(p.all[r.Resource], r.ID) {
			return nil, p.fail(i, requests, "not allocated to the pod")
		}
		if p.taken(r.Resource, r.ID) {
			return nil, p.fail(i, requests, inUseText)
		}
		p.use(r)
	}
	for i, r := range requests {
		if r.Resource == "" || r.ID != "" {
			continue
		}
		all := p.all[r.Resource]
		free := slices.IndexFunc(all, func(id string) bool { return !p.taken(r.Resource, id) })
		if free < 0 {
			why := ""
			p.used = before
			if slices.ContainsFunc(all, func(id string) bool { return p.taken(r.Resource, id) }) {
				why = inUseText
			}
			return nil, p.fail(i, requests, why)
		}
		ids[i] = all[free]
		p.use(Device{Resource: r.Resource, ID: ids[i]})
	}
	return ids, nil
}

const inUseText = "in use by another attachment of the pod"

// A pool has the devices of a pod.
type pool struct {
	all  map[string][]string // by resource, in the order in which they are taken
	used map[Device]bool     // without NUMA; without Resource it is used in all resources
}

// add adds the devices of a container behind those that are there.
func (p *pool) add(devices []Device) {
	devices = slices.SortedFunc(slices.Values(devices), func(a, b Device) int {
		return cmp.Or(cmp.Compare(a.NUMA, b.NUMA), cmp.Compare(len(a.ID), len(b.ID)), cmp.Compare(a.ID, b.ID))
	})
	for _, d := range devices {
		if d.ID != "" && !slices.Contains(p.all[d.Resource], d.ID) {
			p.all[d.Resource] = append(p.all[d.Resource], d.ID)
		}
	}
}

func (p *pool) use(d Device) { p.used[Device{Resource: d.Resource, ID: d.ID}] = true }

func (p *pool) taken(resource, id string) bool {
	return p.used[Device{Resource: resource, ID: id}] || p.used[Device{ID: id}]
}

// inUse returns the device that a has.
func inUse(a delegate.Attached) Device {
	o := nad.ParseOrigin(a.Origin)
	if o.Device == "" {
		_ = json.Unmarshal(a.CapabilityArgs[capability], &o.Device) // that of the runtime may be anything
	}
	return Device{Resource: o.Resource, ID: o.Device}
}

// An Error says which request cannot be served.
type Error struct {
	At  int // the index of the request
	Err error
}

// Error describes the failure in one line.
func (e *Error) Error() string { return e.Err.Error() }

// Unwrap returns e.Err.
func (e *Error) Unwrap() error { return e.Err }

// fail is the error of requests[at]. why is empty if the pod has too few devices.
func (p *pool) fail(at int, requests []Device, why string) error {
	r := requests[at]
	what, free := fmt.Sprintf("device %q is %s", r.ID, why), ""
	if r.ID == "" {
		asked, more := 0, ""
		for _, other := range requests {
			if other.Resource == r.Resource {
				asked++
			}
		}
		if why == inUseText {
			more, free = "more ", ", not all of them free"
		}
		what = fmt.Sprintf("the pod's networks ask for %d %sof its devices", asked, more)
	}
	has := "none"
	if all := p.all[r.Resource]; len(all) > 0 {
		has = fmt.Sprintf("%d%s: %s", len(all), free, list(all))
	}
	code := types.ErrInvalidNetworkConfig
	if unknown := p.all[""]; len(unknown) > 0 && why != inUseText {
		has += "; the resource is not known of " + list(unknown)
		code = types.ErrTryAgainLater
	}
	return &Error{at, fault.New(code, fmt.Sprintf("resource %q: %s; the pod's containers have %s", r.Resource, what, has))}
}

// listed is how many IDs an error lists.
const listed = 8

func list(ids []string) string {
	quoted := make([]string, min(len(ids), listed))
	for i := range quoted {
		quoted[i] = strconv.Quote(ids[i])
	}
	text := strings.Join(quoted, ", ")
	if len(ids) > listed {
		text += fmt.Sprintf(" and %d more", len(ids)-listed)
	}
	return text
}

// capability is the capability of plugins that take a device.
const capability = "deviceID"

// Give returns a with the device id: as "deviceID" and "pciBusID" in the configuration of
// each plugin, the keys that plugins such as sriov, host-device and ib-sriov read, and as the
// capability argument "deviceID", which replaces one that a has. Everything else stays as it
// was written. With an empty id a does not change. A recorded attachment keeps the device, so
// that nobody has to ask the kubelet when it is removed.
//
// It fails with a [*netconf.Error] if a plugin's configuration cannot be edited.
func Give(a delegate.Attachment, id string) (delegate.Attachment, error) {
	if id == "" {
		return a, nil
	}
	n, err := a.Network.EditPlugins(netconf.Set(capability, id), netconf.Set("pciBusID", id))
	if err != nil {
		return a, err
	}
	a.Network = n
	a.CapabilityArgs = with(a.CapabilityArgs, netconf.Selection{DeviceID: id}.CapabilityArgs())
	return a, nil
}

// with returns a copy of capability arguments, with more of them.
func with(args, more map[string]json.RawMessage) map[string]json.RawMessage {
	all := make(map[string]json.RawMessage, len(args)+len(more))
	maps.Copy(all, args)
	maps.Copy(all, more)
	return all
}
