package main_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/delegatetest"
	"github.com/metacni/metacni/delegate/lifecycle"
	"github.com/metacni/metacni/netconf"
	"github.com/metacni/metacni/scratch"
	"github.com/metacni/metacni/status"
)

// The flannel kind of meta-plugin, whole: it completes the configuration of
// one delegated plugin, runs it, and remembers what it ran.

type call struct {
	CNIVersion, Name, DataDir string
	Valid                     []types.GCAttachment `json:"cni.dev/valid-attachments"`
	*skel.CmdArgs             `json:"-"`
	key                       scratch.Key
	life                      *lifecycle.Manager
}

func commands(ctx context.Context, exec invoke.Exec, environ []string, stdout io.Writer) skel.CNIFuncs {
	command := func(do func(call) error) func(*skel.CmdArgs) error {
		return func(args *skel.CmdArgs) error {
			c := call{CmdArgs: args} // what DEL needs; the rest may have been broken since the ADD
			if err := json.Unmarshal(args.StdinData, &c); err != nil {
				return status.Error(&netconf.Error{Kind: netconf.ErrDecode, Err: err})
			}
			c.key = scratch.Key{Network: c.Name, ContainerID: c.ContainerID, IfName: c.IfName}
			c.life = &lifecycle.Manager{Dir: c.DataDir, Invoker: &delegate.Invoker{Exec: exec, Path: filepath.SplitList(c.Path), Env: environ}}
			return status.Error(do(c))
		}
	}
	return skel.CNIFuncs{
		Add: command(func(c call) error {
			_, err := c.life.Add(ctx, c.key, lifecycle.Transaction{Plan: c.plan, Report: func(_ context.Context, added []delegate.Attached) error {
				return added[0].PrintTo(stdout, c.CNIVersion)
			}})
			return err
		}),
		Check: command(func(c call) error { return c.life.Check(ctx, c.key) }),
		Del:   command(func(c call) error { return c.life.Del(ctx, lifecycle.Removal{Key: c.key, NetNS: c.Netns}) }),
		GC: command(func(c call) error {
			n, err := c.network()
			return errors.Join(err, c.life.GC(ctx, lifecycle.Collection{Network: c.Name, Valid: c.Valid, Networks: []netconf.Network{n}}))
		}),
		Status: command(func(c call) error {
			n, err := c.network()
			return status.NotReady(errors.Join(err, c.life.Status(ctx, []netconf.Network{n})))
		}),
	}
}

func (c call) plan(context.Context, []string) ([]delegate.Attachment, error) {
	n, err := c.network()
	return []delegate.Attachment{{Network: n, ContainerID: c.ContainerID, NetNS: c.Netns, IfName: c.IfName, Args: c.Args}}, err
}

func (c call) network() (netconf.Network, error) {
	conf, err := netconf.Decode[struct {
		Subnet   string
		Delegate netconf.Plugin
	}](c.StdinData)
	if err != nil {
		return netconf.Network{}, err
	}
	plugin, err := conf.Delegate.Edit(
		netconf.Forbid("name", "ipam"), netconf.Set("name", c.Name), netconf.Set("cniVersion", c.CNIVersion),
		netconf.Default("type", "bridge"), netconf.Default("isGateway", true),
		netconf.In("ipam", netconf.Set("type", "host-local"), netconf.Set("subnet", conf.Subnet)),
	)
	return netconf.Single(plugin), err
}

func Example() {
	dir, _ := os.MkdirTemp("", "flannel")
	defer os.RemoveAll(dir)
	fake := &delegatetest.Exec{Plugins: map[string]delegatetest.Plugin{"bridge": delegatetest.Result(nil)}}
	args := &skel.CmdArgs{ContainerID: "c1", IfName: "eth0", StdinData: fmt.Appendf(nil,
		`{"cniVersion":"1.0.0","name":"pods","dataDir":%q,"subnet":"10.9.1.0/24","delegate":{"mtu":1450}}`, dir)}
	do := commands(context.Background(), fake, os.Environ(), os.Stdout)
	fmt.Println(do.Add(args), fake.Live(), string(fake.Calls()[0].Stdin))
	fmt.Println(do.Del(args), fake.Live(), fake.Trace())
	// Output:
	// {"cniVersion":"1.0.0"}
	// <nil> [bridge c1 eth0] {"cniVersion":"1.0.0","ipam":{"subnet":"10.9.1.0/24","type":"host-local"},"isGateway":true,"mtu":1450,"name":"pods","type":"bridge"}
	// <nil> [] [ADD bridge eth0 DEL bridge eth0]
}
