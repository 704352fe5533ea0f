package main_test

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/skel"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/delegatetest"
	"github.com/metacni/metacni/delegate/lifecycle"
	"github.com/metacni/metacni/netconf"
	"github.com/metacni/metacni/scratch"
	"github.com/metacni/metacni/status"
)

// The flannel kind of meta-plugin, whole: it completes the configuration of
// one delegated plugin, runs it, and remembers what it ran.

type config struct {
	CNIVersion, Name, DataDir, Subnet string
	Delegate                          netconf.Plugin
}

type call struct {
	config
	*skel.CmdArgs
	key  scratch.Key
	life *lifecycle.Manager
}

func commands(ctx context.Context, exec invoke.Exec, stdout io.Writer) skel.CNIFuncs {
	command := func(do func(call) error) func(*skel.CmdArgs) error {
		return func(args *skel.CmdArgs) error {
			conf, err := netconf.Decode[config](args.StdinData)
			if err != nil {
				return status.Error(err)
			}
			return status.Error(do(call{conf, args, scratch.Key{Network: conf.Name, ContainerID: args.ContainerID, IfName: args.IfName}, &lifecycle.Manager{
				Dir:     conf.DataDir,
				Invoker: &delegate.Invoker{Exec: exec, Path: filepath.SplitList(args.Path)},
			}}))
		}
	}
	return skel.CNIFuncs{
		Add: command(func(c call) error {
			plugin, err := c.Delegate.Edit(
				netconf.Forbid("name", "ipam"),
				netconf.Set("name", c.Name),
				netconf.Set("cniVersion", c.CNIVersion),
				netconf.Default("type", "bridge"),
				netconf.Default("isGateway", true),
				netconf.In("ipam", netconf.Set("type", "host-local"), netconf.Set("subnet", c.Subnet)),
			)
			if err != nil {
				return err
			}
			_, err = c.life.Add(ctx, c.key, lifecycle.Transaction{
				Plan: lifecycle.Plan(delegate.Attachment{
					Network: netconf.Single(plugin), ContainerID: c.ContainerID, NetNS: c.Netns, IfName: c.IfName, Args: c.Args,
				}),
				Report: func(added []delegate.Attached) error { return added[0].PrintTo(stdout, c.CNIVersion) },
			})
			return err
		}),
		Check: command(func(c call) error { return c.life.Check(ctx, c.key) }),
		Del:   command(func(c call) error { return c.life.Del(ctx, c.key, c.Netns) }),
	}
}

func Example() {
	dir, _ := os.MkdirTemp("", "flannel")
	defer os.RemoveAll(dir)
	fake := &delegatetest.Exec{Plugins: map[string]delegatetest.Plugin{"bridge": delegatetest.Result(nil)}}
	args := &skel.CmdArgs{ContainerID: "c1", IfName: "eth0", StdinData: fmt.Appendf(nil,
		`{"cniVersion":"1.0.0","name":"pods","dataDir":%q,"subnet":"10.9.1.0/24","delegate":{"mtu":1450}}`, dir)}

	do := commands(context.Background(), fake, os.Stdout)
	fmt.Println(do.Add(args), fake.Live(), string(fake.Calls()[0].Stdin))
	fmt.Println(do.Del(args), fake.Live(), fake.Trace())
	// Output:
	// {"cniVersion":"1.0.0"}
	// <nil> [bridge c1 eth0] {"cniVersion":"1.0.0","ipam":{"subnet":"10.9.1.0/24","type":"host-local"},"isGateway":true,"mtu":1450,"name":"pods","type":"bridge"}
	// <nil> [] [ADD bridge eth0 DEL bridge eth0]
}
