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
	"github.com/metacni/metacni/ifname"
	"github.com/metacni/metacni/netconf"
	"github.com/metacni/metacni/scratch"
	"github.com/metacni/metacni/status"
)

// The Multus kind of meta-plugin, whole: it attaches a container to several
// networks, the first of them its default, all or none.

type call struct {
	CNIVersion, Name, ConfDir, DataDir string
	Valid                              []types.GCAttachment `json:"cni.dev/valid-attachments"`

	*skel.CmdArgs `json:"-"`
	key           scratch.Key
	life          *lifecycle.Manager
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
			_, err := c.life.Add(ctx, c.key, lifecycle.Transaction{
				NetNS: c.Netns, Plan: c.plan,
				Report: func(_ context.Context, added []delegate.Attached) error {
					return added[0].PrintTo(stdout, c.CNIVersion)
				},
			})
			return err
		}),
		Check: command(func(c call) error { return c.life.Check(ctx, c.key) }),
		Del:   command(func(c call) error { return c.life.Del(ctx, lifecycle.Removal{Key: c.key, NetNS: c.Netns}) }),
		GC: command(func(c call) error {
			nets, _, err := c.networks()
			return errors.Join(c.life.GC(ctx, lifecycle.Collection{Network: c.Name, Valid: c.Valid, Networks: nets}), err)
		}),
		Status: command(func(c call) error {
			nets, _, err := c.networks()
			if err == nil {
				err = c.life.Status(ctx, nets)
			}
			return status.NotReady(err)
		}),
	}
}

// networks loads the configured networks, in order, and returns the interface
// names that are asked for.
func (c call) networks() (nets []netconf.Network, asked []string, err error) {
	conf, err := netconf.Decode[struct {
		Networks []struct{ Name, IfName string }
	}](c.StdinData)
	if err != nil {
		return nil, nil, err
	}
	for _, want := range conf.Networks {
		n, err := netconf.Load(os.DirFS(c.ConfDir), want.Name)
		if err != nil {
			return nil, nil, err
		}
		nets, asked = append(nets, n), append(asked, want.IfName)
	}
	return nets, asked, nil
}

// plan gives every network an interface name before anything is attached.
func (c call) plan(_ context.Context, taken []string) ([]delegate.Attachment, error) {
	nets, asked, err := c.networks()
	if err != nil {
		return nil, err
	}
	names, err := ifname.Scheme{Primary: c.IfName, Taken: taken}.Plan(asked...)
	if err != nil {
		return nil, err
	}
	plan := make([]delegate.Attachment, len(nets))
	for i, n := range nets {
		plan[i] = delegate.Attachment{Network: n, ContainerID: c.ContainerID, NetNS: c.Netns, IfName: names[i], Args: c.Args}
	}
	return plan, nil
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
	fake := &delegatetest.Exec{Plugins: map[string]delegatetest.Plugin{
		"bridge": ok, "tuning": ok, "sriov": delegatetest.FailOn("ADD", types.ErrTryAgainLater, "no free device", ok),
	}}
	args := &skel.CmdArgs{ContainerID: "c1", IfName: "eth0", StdinData: fmt.Appendf(nil,
		`{"cniVersion":"1.1.0","name":"multi","confDir":%q,"dataDir":%q,"networks":[{"name":"pods"},{"name":"storage"}]}`, dir, filepath.Join(dir, "state"))}

	do := commands(context.Background(), fake, os.Environ(), io.Discard)
	err := do.Add(args)
	fmt.Println("ADD:", err, "- code", status.Code(err))
	fmt.Println("alive:", fake.Live())
	for _, line := range fake.Trace() {
		fmt.Println(line)
	}
	// Output:
	// ADD: lifecycle: ADD multi/c1/eth0: delegate: ADD network "storage" (net1): plugin "sriov": no free device - code 11
	// alive: []
	// ADD bridge eth0
	// ADD tuning eth0
	// ADD sriov net1
	// DEL sriov net1
	// DEL tuning eth0
	// DEL bridge eth0
}
