package dra

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"slices"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/types/create"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// The condition of devices in the status of claims, and its reasons.
const (
	ConditionReady = "Ready"
	ReasonReady    = "NetworkInterfaceReady"
	ReasonNotReady = "NetworkInterfaceNotReady"
)

// maxMessage is a limit for the message of a condition.
const maxMessage = 32 << 10

// An Attachment says what a pod is attached to because of a device of a claim.
type Attachment struct {
	DeviceID
	IfName string          // the interface in the container
	Result json.RawMessage // of the ADD, in any version of CNI
}

// networkData returns what the status of a claim says about an interface. It has less than
// the result where that is not valid, or the API server would refuse it.
func (a Attachment) networkData() *resourcev1.NetworkDeviceData {
	data := &resourcev1.NetworkDeviceData{InterfaceName: a.IfName}
	old, err := create.CreateFromBytes(a.Result)
	var result *types100.Result
	if err == nil {
		result, err = types100.GetResult(old)
	}
	if err != nil {
		return data
	}
	at := interfaceOf(result, a.IfName)
	if at >= 0 {
		data.InterfaceName = result.Interfaces[at].Name
		if mac := result.Interfaces[at].Mac; len(mac) <= resourcev1.NetworkDeviceDataHardwareAddressMaxLength {
			data.HardwareAddress = mac
		}
	}
	for _, ip := range result.IPs {
		if ip.Interface != nil && *ip.Interface != at {
			continue
		}
		text, ok := cidr(ip.Address)
		if ok && !slices.Contains(data.IPs, text) && len(data.IPs) < resourcev1.NetworkDeviceDataMaxIPs {
			data.IPs = append(data.IPs, text)
		}
	}
	return data
}

// interfaceOf returns the index of the interface of that name in the container, or else of
// the first one in the container. It returns -1 if there is none.
func interfaceOf(r *types100.Result, name string) int {
	inside := func(i *types100.Interface) bool { return i != nil && i.Sandbox != "" }
	at := slices.IndexFunc(r.Interfaces, func(i *types100.Interface) bool { return inside(i) && i.Name == name })
	if at < 0 {
		at = slices.IndexFunc(r.Interfaces, inside)
	}
	return at
}

// cidr returns an address with the length of its prefix. It reports false for what is none.
func cidr(n net.IPNet) (string, bool) {
	ones, bits := n.Mask.Size()
	if ip := n.IP.To4(); ip != nil && bits == 32 || len(n.IP) == net.IPv6len && bits == 128 {
		return fmt.Sprintf("%v/%d", n.IP, ones), true
	}
	return "", false
}

// data returns the CNI result, or nil if it is too long or no object.
func (a Attachment) data() *runtime.RawExtension {
	text := bytes.TrimSpace(a.Result)
	if len(text) > resourcev1.AllocatedDeviceStatusDataMaxLength || !isObject(text) {
		return nil
	}
	return &runtime.RawExtension{Raw: text}
}

func isObject(text []byte) bool { return len(text) > 0 && text[0] == '{' && json.Valid(text) }

// desired returns status.devices of an object: that of others as it is, and that of the
// devices of claim as attached says. failure is why devices are not attached, if known. Times
// of conditions that have not changed are kept.
func desired(object *resourcev1.ResourceClaim, driver string, claim Claim, attached []Attachment, failure string) []resourcev1.AllocatedDeviceStatus {
	var all []resourcev1.AllocatedDeviceStatus
	for _, s := range object.Status.Devices {
		if s.Driver != driver {
			all = append(all, s)
		}
	}
	for _, n := range claim.Networks {
		if !allocated(object, driver, n.DeviceID) {
			continue // the API server would refuse the others too
		}
		s := resourcev1.AllocatedDeviceStatus{Driver: driver, Pool: n.Pool, Device: n.Device}
		if n.Share != "" {
			s.ShareID = &n.Share
		}
		i := slices.IndexFunc(object.Status.Devices, func(old resourcev1.AllocatedDeviceStatus) bool {
			return old.Driver == driver && deviceID(old.Pool, old.Device, old.ShareID) == n.DeviceID
		})
		if i >= 0 {
			s.Conditions = slices.Clone(object.Status.Devices[i].Conditions)
		}
		condition := metav1.Condition{Type: ConditionReady, Status: metav1.ConditionFalse, Reason: ReasonNotReady, Message: failure}
		if i := slices.IndexFunc(attached, func(a Attachment) bool { return a.DeviceID == n.DeviceID }); i >= 0 {
			condition.Status, condition.Reason, condition.Message = metav1.ConditionTrue, ReasonReady, ""
			s.NetworkData, s.Data = attached[i].networkData(), attached[i].data()
		}
		if len(condition.Message) > maxMessage {
			condition.Message = condition.Message[:maxMessage]
		}
		meta.SetStatusCondition(&s.Conditions, condition)
		all = append(all, s)
	}
	return all
}

// allocated reports whether a device is allocated to a claim.
func allocated(object *resourcev1.ResourceClaim, driver string, id DeviceID) bool {
	return object.Status.Allocation != nil && slices.ContainsFunc(object.Status.Allocation.Devices.Results,
		func(r resourcev1.DeviceRequestAllocationResult) bool {
			return r.Driver == driver && deviceID(r.Pool, r.Device, (*string)(r.ShareID)) == id
		})
}

func deviceID(pool, device string, share *string) DeviceID {
	id := DeviceID{Pool: pool, Device: device}
	if share != nil {
		id.Share = *share
	}
	return id
}
