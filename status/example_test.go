package status_test

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/types/create"

	"github.com/metacni/metacni/status"
)

// A quotaError takes part by having a method.
type quotaError struct{ node string }

func (e *quotaError) Error() string { return "no addresses left on " + e.node }
func (*quotaError) CNICode() uint   { return types.ErrTryAgainLater }

// The runtime gets the cause's code and everyone's words.
func Example() {
	err := fmt.Errorf("network %q: %w", "blue", &quotaError{"node-7"})
	data, _ := json.Marshal(status.Error(err))
	fmt.Println(string(data))
	// Output: {"code":11,"msg":"network \"blue\": no addresses left on node-7"}
}

// A plain error that comes first does not hide the code of the next.
func ExampleCode() {
	err := errors.Join(errors.New("clean up: no such link"), types.NewError(107, "out of devices", ""))
	fmt.Println(status.Code(err))
	// Output: 107
}

// One delegate is down, and another says that running containers suffer.
func ExampleNotReady() {
	err := status.NotReady(errors.Join(
		errors.New("blue: no daemon"),
		types.NewError(51, "red: uplink lost", ""),
	))
	fmt.Println(status.Code(err))
	fmt.Println(err)
	// Output:
	// 51
	// blue: no daemon; red: uplink lost
}

func ExampleNetworks() {
	result, err := create.CreateFromBytes([]byte(`{
		"cniVersion": "1.1.0",
		"interfaces": [{"name": "cni0"}, {"name": "eth0", "mac": "02:42:0a:01:00:05", "mtu": 1450, "sandbox": "/run/netns/c1"}],
		"ips": [{"interface": 1, "address": "10.1.0.5/24", "gateway": "10.1.0.1"}],
		"routes": [{"dst": "0.0.0.0/0"}]
	}`))
	if err != nil {
		fmt.Println(err)
		return
	}
	list, err := status.Networks("blue", result, true)
	if err != nil {
		fmt.Println(err)
		return
	}
	data, _ := json.Marshal(list)
	fmt.Println(string(data))
	// Output: [{"name":"blue","interface":"eth0","ips":["10.1.0.5"],"mac":"02:42:0a:01:00:05","mtu":1450,"default":true,"gateway":["10.1.0.1"]}]
}

// Who knows more about the device puts it in.
func ExampleDeviceInfo() {
	list, err := status.Networks("sriov", &types100.Result{Interfaces: []*types100.Interface{{Name: "net1", Sandbox: "/run/netns/c1"}}}, false)
	if err != nil {
		fmt.Println(err)
		return
	}
	list[0].DeviceInfo = &status.DeviceInfo{
		Type: "vhost-user", Version: status.DeviceInfoVersion,
		VhostUser: &status.VhostDevice{Mode: "client", Path: "/run/vhost.sock"},
	}
	data, _ := json.Marshal(list)
	fmt.Println(string(data))
	// Output: [{"name":"sriov","interface":"net1","device-info":{"type":"vhost-user","version":"1.1.0","vhost-user":{"mode":"client","path":"/run/vhost.sock"}}}]
}
