package podresourcestest_test

import (
	"fmt"

	"github.com/metacni/metacni/delegate/kube/podresources/podresourcestest"
)

// A kubelet has a pod with a device.
func Example() {
	k, err := podresourcestest.Start()
	if err != nil {
		panic(err)
	}
	defer func() { _ = k.Close() }()
	k.SetPlugins("intel.com/vf")
	k.SetPod("blue", "web", podresourcestest.Devices("app", "intel.com/vf", "0000:03:00.1"))
	fmt.Println(k.Requests(), "on", k.Socket[len(k.Dir):])
	// Output: [] on /pod-resources/kubelet.sock
}
