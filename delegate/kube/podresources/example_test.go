package podresources_test

import (
	"context"
	"fmt"

	"github.com/metacni/metacni/delegate/device"
	"github.com/metacni/metacni/delegate/kube/podresources"
	"github.com/metacni/metacni/delegate/kube/podresources/podresourcestest"
	"github.com/metacni/metacni/netconf/nad"
)

func Example() {
	kubelet, err := podresourcestest.Start()
	if err != nil {
		fmt.Println(err)
		return
	}
	defer kubelet.Close()
	kubelet.SetPod("default", "web", podresourcestest.Devices("app", "vendor.example/vf", "0000:3b:02.3", "0000:3b:02.1"))

	client := &podresources.Client{Socket: kubelet.Socket}
	defer client.Close()
	containers, err := client.Devices(context.Background(), nad.Pod{Namespace: "default", Name: "web"})
	if err != nil {
		fmt.Println(err)
		return
	}
	ids, err := device.Allocate(containers, nil, device.Device{Resource: "vendor.example/vf"})
	fmt.Println(ids, err)
	// Output: [0000:3b:02.1] <nil>
}
