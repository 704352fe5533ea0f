package plugin_test

import (
	"context"
	"fmt"
	"os"

	"github.com/metacni/metacni/delegate/delegatetest"
	"github.com/metacni/metacni/delegate/plugin"
	"github.com/metacni/metacni/netconf"
)

// A plugin attaches a container to the networks of its configuration. As an executable its main
// calls plugin.Main; here it runs with fakes.
func Example() {
	mine := plugin.Plugin{
		StateDir: "/var/lib/cni/mine", StateKey: "stateDir",
		Networks: func(_ context.Context, c *plugin.Call) ([]netconf.Network, error) {
			conf, err := plugin.Config[struct{ Delegates []netconf.Network }](c)
			return conf.Delegates, err
		},
	}
	records, err := os.MkdirTemp("", "records-")
	if err != nil {
		panic(err)
	}
	defer func() { _ = os.RemoveAll(records) }()

	fakes := &delegatetest.Exec{Plugins: map[string]delegatetest.Fake{"bridge": delegatetest.Result(nil), "sriov": delegatetest.Result(nil)}}
	conf := fmt.Appendf(nil, `{"cniVersion":"1.1.0","name":"two","type":"mine","stateDir":%q,"delegates":[{"type":"bridge"},{"type":"sriov"}]}`, records)
	for _, command := range []string{"ADD", "DEL"} {
		out := delegatetest.RunPlugin(context.Background(), mine.Execute, fakes, delegatetest.Invocation{
			Command: command, ContainerID: "c1", NetNS: "/run/netns/c1", IfName: "eth0", Path: "/opt/cni/bin", Stdin: conf,
		})
		fmt.Println(command, out.Err())
	}
	for _, call := range fakes.Trace() {
		fmt.Println(call)
	}
	// Output:
	// ADD <nil>
	// DEL <nil>
	// ADD bridge eth0
	// ADD sriov net1
	// DEL sriov net1
	// DEL bridge eth0
}
