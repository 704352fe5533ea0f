package main

import (
	"context"
	"os"
)

func Example() {
	dir, err := os.MkdirTemp("", "tour")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	if err := tour(context.Background(), os.Stdout, dir); err != nil {
		panic(err)
	}
	// Output:
	// The second network fails, so the first is detached again:
	//    ADD bridge eth0
	//    ADD tuning eth0
	//    ADD sriov net1
	//    DEL sriov net1
	//    DEL tuning eth0
	//    DEL bridge eth0
	//    attached: [], CNI code 11
	//    ADD c1 eth0: network "storage" (net1): plugin "sriov": no free device
	// There is a device now. Both are attached and recorded:
	//    ADD bridge eth0
	//    ADD tuning eth0
	//    ADD sriov net1
	//    record tour/c1/eth0: added, 2 networks, error <nil>
	// A DEL that fails keeps the record, and the next one does the rest:
	//    DEL sriov net1
	//    DEL tuning eth0
	//    DEL bridge eth0
	//    attached: ["bridge c1 eth0"], CNI code 11
	//    DEL bridge eth0
	//    attached: [], records: 0
}
