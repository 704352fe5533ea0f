package device_test

import (
	"fmt"

	"github.com/metacni/metacni/delegate/device"
)

func Example() {
	// What the kubelet has allocated to the pod.
	containers := []device.Container{{Name: "app", Devices: []device.Device{
		{Resource: "vendor.example/vf", ID: "0000:3b:0a.1"},
		{Resource: "vendor.example/vf", ID: "0000:3b:02.3"},
	}}}
	// The primary needs no device. The second selection asks for a certain one.
	ids, err := device.Allocate(containers, nil,
		device.Request{},
		device.Request{Resource: "vendor.example/vf"},
		device.Request{Resource: "vendor.example/vf", ID: "0000:3b:02.3"},
	)
	fmt.Printf("%q %v\n", ids, err)
	// Output: ["" "0000:3b:0a.1" "0000:3b:02.3"] <nil>
}
