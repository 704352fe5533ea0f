package main_test

import (
	"context"
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

type config struct {
	CNIVersion, Name, ConfDir, DataDir string
	Networks                           []struct{ Name, IfName string }
	Valid                              []types.GCAttachment `json:"cni.dev/valid-attachments"`
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
			nets, err := c.networks()
			if err != nil {
				return err
			}
			_, err = c.life.Add(ctx, c.key, lifecycle.Transaction{
				Plan:   func(taken []string) ([]delegate.Attachment, error) { return c.plan(nets, taken) },
				Report: func(added []delegate.Attached) error { return added[0].PrintTo(stdout, c.CNIVersion) },
			})
			return err
		}),
		Check: command(func(c call) error { return c.life.Check(ctx, c.key) }),
		Del:   command(func(c call) error { return c.life.Del(ctx, c.key, c.Netns) }),
		GC: command(func(c call) error {
			nets, err := c.networks()
			return errors.Join(c.life.GC(ctx, c.Name, c.Valid, nets), err)
		}),
		Status: command(func(c call) error {
			nets, err := c.networks()
			if err == nil {
				err = c.life.Status(ctx, nets)
			}
			return status.NotReady(err)
		}),
	}
}

// networks loads the configured networks, in order.
func (c call) networks() ([]netconf.Network, error) {
	var nets []netconf.Network
	for _, want := range c.Networks {
		n, err := netconf.Load(os.DirFS(c.ConfDir), want.Name)
		if err != nil {
			return nil, err
		}
		nets = append(nets, n)
	}
	return nets, nil
}

// plan gives every network an interface name before anything is attached.
func (c call) plan(nets []netconf.Network, taken []string) ([]delegate.Attachment, error) {
	asked := make([]string, len(nets))
	for i, want := range c.Networks {
		asked[i] = want.IfName
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

	do := commands(context.Background(), fake, io.Discard)
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
