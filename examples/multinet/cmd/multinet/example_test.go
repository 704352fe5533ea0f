package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/delegatetest"
	"github.com/metacni/metacni/delegate/lifecycle"
	"github.com/metacni/metacni/delegate/plugin"
	"github.com/metacni/metacni/netconf"
	"github.com/metacni/metacni/status"
)

// A whole plugin of Multus's kind: it attaches a container to several networks of a
// directory, all or none, with the interface names in the configuration. A main that
// calls plugin.Main(short) makes it an executable.
var short = plugin.Plugin{
	StateDir: "/var/lib/cni/short", StateKey: "dataDir",
	Networks: func(_ context.Context, c *plugin.Call) ([]netconf.Network, error) {
		nets, _, err := networks(c)
		return nets, err
	},
	Add: func(ctx context.Context, c *plugin.Call) error {
		nets, asked, err := networks(c)
		if err != nil {
			return err
		}
		as, err := c.Attachments(nets...)
		for i := range as {
			as[i].IfName = asked[i]
		}
		if err != nil {
			return err
		}
		return c.Add(ctx, lifecycle.Transaction{Plan: c.Plan(as...)})
	},
}

// networks loads the configured networks, in order, and returns the interface names
// in the configuration.
func networks(c *plugin.Call) (nets []netconf.Network, asked []string, err error) {
	conf, err := plugin.Config[struct {
		ConfDir  string
		Networks []struct{ Name, IfName string }
	}](c)
	for _, want := range conf.Networks {
		n, err := netconf.Load(os.DirFS(conf.ConfDir), want.Name)
		if err != nil {
			return nil, nil, err
		}
		nets, asked = append(nets, n), append(asked, want.IfName)
	}
	return nets, asked, err
}

func Example() {
	dir, _ := os.MkdirTemp("", "multinet")
	defer os.RemoveAll(dir)
	for file, conf := range map[string]string{
		"a.conflist": `{"cniVersion":"1.1.0","name":"pods","plugins":[{"type":"bridge"},{"type":"tuning"}]}`,
		"b.conflist": `{"cniVersion":"1.1.0","name":"storage","plugins":[{"type":"sriov"}]}`,
	} {
		_ = os.WriteFile(filepath.Join(dir, file), []byte(conf), 0o600)
	}
	ok := delegatetest.Result(nil)
	fake := &delegatetest.Exec{Plugins: map[string]delegatetest.Fake{
		"bridge": ok, "tuning": ok, "sriov": delegatetest.FailOn("ADD", types.ErrTryAgainLater, "no free device", ok),
	}}
	args := skel.CmdArgs{ContainerID: "c1", IfName: "eth0", StdinData: fmt.Appendf(nil,
		`{"cniVersion":"1.1.0","name":"multi","confDir":%q,"dataDir":%q,"networks":[{"name":"pods"},{"name":"storage","ifname":"sto0"}]}`,
		dir, filepath.Join(dir, "state"))}

	err := short.Do(context.Background(), plugin.System{Exec: fake, Stdout: io.Discard}, delegate.CommandAdd, args)
	fmt.Println("ADD:", err, "- code", status.Code(err))
	fmt.Println("alive:", fake.Live())
	for _, line := range fake.Trace() {
		fmt.Println(line)
	}
	// Output:
	// ADD: ADD c1 eth0: network "storage" (sto0): plugin "sriov": no free device - code 11
	// alive: []
	// ADD bridge eth0
	// ADD tuning eth0
	// ADD sriov sto0
	// DEL sriov sto0
	// DEL tuning eth0
	// DEL bridge eth0
}
