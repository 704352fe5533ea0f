package dra

import (
	"bytes"
	"encoding/json"
	"net/netip"
	"slices"
	"strings"

	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// The condition of devices in the status of claims, and its reasons.
const (
	conditionReady = "Ready"
	reasonReady    = "NetworkInterfaceReady"
	reasonNotReady = "NetworkInterfaceNotReady"
)

// maxMessage is a limit for the message of a condition.
const maxMessage = 32 << 10

// A result is what the status of a claim says of a CNI result. It is read without the types of
// CNI, whose conversion between versions cannot bear every result.
type result struct {
	Interfaces []*resultInterface
	IPs        []*struct {
		Interface *int
		Address   string
	}
	IP4, IP6 *struct{ IP string } // before CNI 0.3
}

type resultInterface struct{ Name, Mac, Sandbox string }

// networkData returns what the status of a claim says about an interface. It has less than
// the result where that is not valid, or the API server would refuse it.
func (a attachment) networkData() *resourcev1.NetworkDeviceData {
	data := &resourcev1.NetworkDeviceData{InterfaceName: a.ifName}
	var r result
	if json.Unmarshal(a.result, &r) != nil {
		return data
	}
	at := r.inside(a.ifName, a.netns)
	if at >= 0 {
		if name := r.Interfaces[at].Name; len(name) <= resourcev1.NetworkDeviceDataInterfaceNameMaxLength {
			data.InterfaceName = name
		}
		if mac := r.Interfaces[at].Mac; len(mac) <= resourcev1.NetworkDeviceDataHardwareAddressMaxLength {
			data.HardwareAddress = mac
		}
	}
	add := func(address string) {
		prefix, err := netip.ParsePrefix(address)
		text := prefix.String()
		if err == nil && !prefix.Addr().Is4In6() && !slices.Contains(data.IPs, text) && len(data.IPs) < resourcev1.NetworkDeviceDataMaxIPs {
			data.IPs = append(data.IPs, text)
		}
	}
	for _, ip := range r.IPs {
		if ip != nil && (ip.Interface == nil || *ip.Interface == at) {
			add(ip.Address)
		}
	}
	if r.IP4 != nil {
		add(r.IP4.IP)
	}
	if r.IP6 != nil {
		add(r.IP6.IP)
	}
	return data
}

// inside returns the index of the interface of that name in the container, or else of the
// first one in the container. It returns -1 if there is none. If an interface is in netns, only
// such ones are in the container: others may have a sandbox that is none.
func (r result) inside(name, netns string) int {
	first := -1
	known := slices.ContainsFunc(r.Interfaces, func(n *resultInterface) bool { return n != nil && n.Sandbox == netns && netns != "" })
	for i, n := range r.Interfaces {
		switch {
		case n == nil || n.Sandbox == "" || known && n.Sandbox != netns:
		case n.Name == name:
			return i
		case first < 0:
			first = i
		}
	}
	return first
}

// data returns the CNI result, or nil if it is too long or no object.
func (a attachment) data() *runtime.RawExtension {
	text := bytes.TrimSpace(a.result)
	if len(text) > resourcev1.AllocatedDeviceStatusDataMaxLength || !isObject(text) {
		return nil
	}
	return &runtime.RawExtension{Raw: text}
}

func isObject(text []byte) bool { return len(text) > 0 && text[0] == '{' && json.Valid(text) }

// desired returns status.devices of an object: that of others as it is, and that of the
// devices of claim as attached says. failure is why devices are not attached, if known. Times
// of conditions that have not changed are kept.
func desired(object *resourcev1.ResourceClaim, driver string, claim Claim, attached []attachment, failure string) []resourcev1.AllocatedDeviceStatus {
	var all []resourcev1.AllocatedDeviceStatus
	for _, s := range object.Status.Devices {
		if s.Driver != driver {
			all = append(all, s)
		}
	}
	for _, n := range claim.Networks {
		if !allocated(object, driver, n.device()) {
			continue // the API server would refuse the others too
		}
		s := resourcev1.AllocatedDeviceStatus{Driver: driver, Pool: n.Claim.Pool, Device: n.Claim.Device}
		if n.Claim.Share != "" {
			s.ShareID = &n.Claim.Share
		}
		i := slices.IndexFunc(object.Status.Devices, func(old resourcev1.AllocatedDeviceStatus) bool {
			return old.Driver == driver && deviceOf(old.Pool, old.Device, old.ShareID) == n.device()
		})
		if i >= 0 {
			s.Conditions = slices.Clone(object.Status.Devices[i].Conditions)
		}
		condition := metav1.Condition{Type: conditionReady, Status: metav1.ConditionFalse, Reason: reasonNotReady, Message: failure}
		if i := slices.IndexFunc(attached, func(a attachment) bool { return a.device == n.device() }); i >= 0 {
			condition.Status, condition.Reason, condition.Message = metav1.ConditionTrue, reasonReady, ""
			s.NetworkData, s.Data = attached[i].networkData(), attached[i].data()
		}
		condition.Message = text(condition.Message)
		meta.SetStatusCondition(&s.Conditions, condition)
		all = append(all, s)
	}
	return all
}

// text returns a message as an API server takes it: UTF-8 of at most maxMessage bytes.
func text(message string) string {
	return strings.ToValidUTF8(message[:min(len(message), maxMessage)], "?")
}

// allocated reports whether a device is allocated to a claim.
func allocated(object *resourcev1.ResourceClaim, driver string, id device) bool {
	return object.Status.Allocation != nil && slices.ContainsFunc(object.Status.Allocation.Devices.Results,
		func(r resourcev1.DeviceRequestAllocationResult) bool {
			return r.Driver == driver && deviceOf(r.Pool, r.Device, r.ShareID) == id
		})
}
