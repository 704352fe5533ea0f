package podresources

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"

	"github.com/metacni/metacni/delegate/device"
	"github.com/metacni/metacni/delegate/kube/internal/bounded"
)

// A checkpoint is the file in which the kubelet's device manager keeps its state.
type checkpoint struct {
	PodDeviceEntries []struct {
		PodUID, ContainerName, ResourceName string
		DeviceIDs                           map[int][]string // by NUMA node, -1 for none
	}
	RegisteredDevices map[string][]string // by resource: the healthy devices of its device plugin
}

// readCheckpoint reads the kubelet's checkpoint. The kubelet replaces the file as a whole.
func readCheckpoint(path string) (*checkpoint, error) {
	data, err := bounded.ReadFile(path)
	if err != nil {
		return nil, err
	}
	c, err := parseCheckpoint(data)
	if err != nil {
		return nil, fmt.Errorf("checkpoint %s: %w", path, err)
	}
	return c, nil
}

func parseCheckpoint(data []byte) (*checkpoint, error) {
	var file struct{ Data *checkpoint }
	err := json.Unmarshal(data, &file)
	if err == nil && file.Data == nil {
		err = errors.New("has no Data")
	}
	return file.Data, err
}

// devicesInCheckpoint returns the devices that the kubelet's checkpoint has for the pod uid.
func devicesInCheckpoint(path, uid string) ([][]device.Device, error) {
	if uid == "" {
		return nil, errors.New("the kubelet has no socket, and its checkpoint knows pods by UID, which the runtime has not passed as K8S_POD_UID")
	}
	c, err := readCheckpoint(path)
	if errors.Is(err, fs.ErrNotExist) {
		err = fmt.Errorf("the kubelet has neither a socket nor a checkpoint: %w", err)
	}
	if err != nil {
		return nil, err
	}
	return c.devices(uid), nil
}

// devices returns the devices of the pod uid, by container in the order of their names.
func (c *checkpoint) devices(uid string) (containers [][]device.Device) {
	found := make(map[string][]device.Device)
	for _, e := range c.PodDeviceEntries {
		if e.PodUID != uid {
			continue
		}
		devices := found[e.ContainerName]
		for _, numa := range slices.Sorted(maps.Keys(e.DeviceIDs)) {
			for _, id := range e.DeviceIDs[numa] {
				devices = append(devices, device.Device{Resource: e.ResourceName, ID: id, NUMA: numa})
			}
		}
		found[e.ContainerName] = devices
	}
	for _, name := range slices.Sorted(maps.Keys(found)) {
		containers = append(containers, found[name])
	}
	return containers
}

// registered returns whether a device plugin has registered the resource, as the kubelet's
// checkpoint has it.
func registered(path, resource string) (bool, error) {
	c, err := readCheckpoint(path)
	if err == nil && c.RegisteredDevices == nil {
		err = fmt.Errorf("checkpoint %s: has no RegisteredDevices", path)
	}
	if err != nil {
		return false, err
	}
	_, is := c.RegisteredDevices[resource]
	return is, nil
}
