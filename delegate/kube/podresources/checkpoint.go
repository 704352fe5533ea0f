package podresources

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"

	"github.com/metacni/metacni/delegate/device"
	"github.com/metacni/metacni/internal/bounds"
)

// readCheckpoint returns the devices that the kubelet's checkpoint has for the pod uid, by
// container in the order of their names. The kubelet replaces the file as a whole.
func readCheckpoint(path, uid string) ([][]device.Device, error) {
	if uid == "" {
		return nil, errors.New("the kubelet has no socket, and its checkpoint knows pods by UID, which the runtime has not passed as K8S_POD_UID")
	}
	data, err := bounds.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		err = fmt.Errorf("the kubelet has neither a socket nor a checkpoint: %w", err)
	}
	if err != nil {
		return nil, err
	}
	containers, err := parseCheckpoint(data, uid)
	if err != nil {
		return nil, fmt.Errorf("checkpoint %s: %w", path, err)
	}
	return containers, nil
}

// parseCheckpoint returns the devices of the pod uid in a checkpoint.
func parseCheckpoint(data []byte, uid string) ([][]device.Device, error) {
	var checkpoint struct {
		Data *struct {
			PodDeviceEntries []struct {
				PodUID, ContainerName, ResourceName string
				DeviceIDs                           map[int][]string // by NUMA node, -1 for none
			}
		}
	}
	if err := json.Unmarshal(data, &checkpoint); err != nil {
		return nil, err
	}
	if checkpoint.Data == nil {
		return nil, errors.New("has no Data")
	}
	found := make(map[string][]device.Device)
	for _, e := range checkpoint.Data.PodDeviceEntries {
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
	var containers [][]device.Device
	for _, name := range slices.Sorted(maps.Keys(found)) {
		containers = append(containers, found[name])
	}
	return containers, nil
}
