package device

import (
	"encoding/json"
	"maps"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/netconf"
)

// capabilityName is the capability of plugins that take a device.
const capabilityName = "deviceID"

// Edits returns the edits that give the plugins of a network the device id, for
// [netconf.Network.EditPlugins]. They set "deviceID" and "pciBusID", the keys that plugins
// such as sriov, host-device and ib-sriov read. Everything else stays as it was written.
func Edits(id string) []netconf.Edit {
	return []netconf.Edit{netconf.Set("deviceID", id), netconf.Set("pciBusID", id)}
}

// Give returns a with the device id: in the configuration of each plugin, see [Edits], and
// as the capability argument "deviceID", which replaces one that a has. Plugins receive
// that if they declare the capability. With an empty id a does not change. A recorded
// attachment keeps the device, so that nobody has to ask the kubelet when it is removed.
//
// It fails with a [*netconf.Error] if a plugin's configuration cannot be edited.
func Give(a delegate.Attachment, id string) (delegate.Attachment, error) {
	if id == "" {
		return a, nil
	}
	n, err := a.Network.EditPlugins(Edits(id)...)
	if err != nil {
		return a, err
	}
	a.Network = n
	args := make(map[string]json.RawMessage, len(a.CapabilityArgs)+1)
	maps.Copy(args, a.CapabilityArgs)
	maps.Copy(args, netconf.Selection{DeviceID: id}.CapabilityArgs())
	a.CapabilityArgs = args
	return a, nil
}

// capability returns the device in capability arguments, or "".
func capability(args map[string]json.RawMessage) string {
	var id string
	if json.Unmarshal(args[capabilityName], &id) != nil {
		return ""
	}
	return id
}
