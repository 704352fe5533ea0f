package device_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/delegatetest"
	"github.com/metacni/metacni/delegate/device"
	"github.com/metacni/metacni/delegate/lifecycle"
	"github.com/metacni/metacni/netconf"
	"github.com/metacni/metacni/scratch"
	"github.com/metacni/metacni/status"
)

func Example() {
	root, err := os.MkdirTemp("", "node")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(root)
	dir := device.Dir{Root: root, Owner: "/var/lib/cni/example"}
	manager := &lifecycle.Manager{
		Dir: filepath.Join(root, "records"), Root: root,
		Invoker: &delegate.Invoker{Exec: &delegatetest.Exec{Plugins: map[string]delegatetest.Fake{
			"userspace": delegatetest.Result(&types100.Result{CNIVersion: "1.0.0"}),
		}}},
	}
	network, err := netconf.Parse([]byte(`{"cniVersion":"1.0.0","name":"fast","plugins":[
		{"type":"userspace","capabilities":{"CNIDeviceInfoFile":true}}]}`))
	if err != nil {
		fmt.Println(err)
		return
	}
	a := dir.Assign(delegate.Attachment{Network: network, ContainerID: "c1", IfName: "eth0"})
	key := scratch.Key{Network: "example", ContainerID: "c1", IfName: "eth0"}
	added, err := manager.Add(context.Background(), key, lifecycle.Transaction{
		Plan:    lifecycle.Plan(a),
		Prepare: func(_ context.Context, plan []delegate.Attachment) error { return dir.Fill(plan...) },
		Report: func(context.Context, []delegate.Attached) error { // what the plugin does
			return os.WriteFile(filepath.Join(root, a.Files[0]), []byte(`{"type":"memif","memif":{"role":"master"}}`), 0o444)
		},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	networks := []status.Network{{Interface: "eth0"}}
	err = device.Describe(root, networks, added...)
	info := networks[0].DeviceInfo
	fmt.Println(info.Type, info.Memif.Role, err)

	err = manager.Del(context.Background(), key, lifecycle.DelRequest{})
	_, gone := os.Stat(filepath.Join(root, a.Files[0]))
	fmt.Println(err, os.IsNotExist(gone))
	// Output:
	// memif master <nil>
	// <nil> true
}
