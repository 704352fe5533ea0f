package main

import (
	"context"
	"fmt"
	"os"

	"github.com/containernetworking/cni/pkg/skel"

	"github.com/metacni/metacni/delegate/delegatetest"
	"github.com/metacni/metacni/delegate/plugin"
	"github.com/metacni/metacni/netconf"
)

// A whole plugin of flannel's kind: it completes the configuration of one
// delegated plugin and runs it. A main that calls plugin.Main(short) makes it an
// executable.
var short = plugin.Plugin{
	StateDir: "/var/lib/cni/short", StateKey: "dataDir",
	Networks: func(_ context.Context, c *plugin.Call) ([]netconf.Network, error) {
		conf, err := plugin.Config[struct {
			Subnet   string
			Delegate netconf.Plugin
		}](c)
		if err != nil {
			return nil, err
		}
		bridge, err := conf.Delegate.Edit(
			netconf.Forbid("name", "ipam"), netconf.Default("type", "bridge"), netconf.Default("isGateway", true),
			netconf.In("ipam", netconf.Set("type", "host-local"), netconf.Set("subnet", conf.Subnet)),
		)
		return []netconf.Network{netconf.Single(bridge)}, err
	},
}

func Example() {
	dir, _ := os.MkdirTemp("", "flannel")
	defer os.RemoveAll(dir)
	fake := &delegatetest.Exec{Plugins: map[string]delegatetest.Fake{"bridge": delegatetest.Result(nil)}}
	process := plugin.System{Exec: fake, Stdout: os.Stdout}
	args := skel.CmdArgs{ContainerID: "c1", IfName: "eth0", StdinData: fmt.Appendf(nil,
		`{"cniVersion":"1.0.0","name":"pods","dataDir":%q,"subnet":"10.9.1.0/24","delegate":{"mtu":1450}}`, dir)}
	fmt.Println(short.Do(context.Background(), process, "ADD", args), fake.Live(), string(fake.Calls()[0].Stdin))
	fmt.Println(short.Do(context.Background(), process, "DEL", args), fake.Live(), fake.Trace())
	// Output:
	// {"cniVersion":"1.0.0"}
	// <nil> [bridge c1 eth0] {"cniVersion":"1.0.0","ipam":{"subnet":"10.9.1.0/24","type":"host-local"},"isGateway":true,"mtu":1450,"name":"pods","type":"bridge"}
	// <nil> [] [ADD bridge eth0 DEL bridge eth0]
}
