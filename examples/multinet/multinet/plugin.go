// Package multinet is the plugin multinet. The executable examples/multinet and the
// daemon examples/multinetd both run it.
//
// The commands are in plugin.go, the configuration in config.go, and the networks to
// attach in networks.go. The file attach.go attaches one more network to a running
// container.
package multinet

import (
	"cmp"
	"context"
	"errors"
	"path/filepath"
	"slices"

	"github.com/containernetworking/cni/pkg/skel"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/lifecycle"
	"github.com/metacni/metacni/delegate/plugin"
	"github.com/metacni/metacni/netconf"
	"github.com/metacni/metacni/status"
)

// New returns the plugin. Goroutines may share it.
func New() plugin.Plugin {
	return plugin.Plugin{
		About:    "CNI meta-plugin multinet",
		StateDir: DefaultStateDir, StateKey: "cniDir",
		Forget:  "multinet forget",
		Prepare: prepare,
		Networks: func(_ context.Context, c *plugin.Call) ([]netconf.Network, error) {
			conf, err := readConfig(c)
			if err != nil {
				return nil, err
			}
			return conf.standing()
		},
		Add:    add,
		Status: ready,
	}
}

// prepare makes c search binDir first, and attach several networks at once if
// "parallel" is true.
func prepare(c *plugin.Call) error {
	binDir, parallel := "", lenientBool(false)
	if err := errors.Join(c.Value("binDir", &binDir), c.Value("parallel", &parallel)); err != nil {
		return err
	}
	path := []string{c.Root.OnNode(cmp.Or(binDir, defaultBinDir))} // as the plugins see it
	for _, dir := range filepath.SplitList(c.Path) {
		if !slices.Contains(path, dir) {
			path = append(path, dir)
		}
	}
	invoker := c.Manager.Invoker
	invoker.Path = path
	invoker.Exec = served{invoker.Exec, ResidentState(c.Manager.Dir)}
	if parallel {
		invoker.Parallel = atOnce
	}
	return nil
}

func add(ctx context.Context, c *plugin.Call) error {
	conf, err := readConfig(c)
	if err != nil {
		return err
	}
	if err := conf.refuse(); err != nil {
		return err
	}
	if err := conf.waitReady(ctx); err != nil {
		return err
	}
	wanted, err := conf.wanted()
	if err != nil {
		return err
	}
	as := make([]delegate.Attachment, len(wanted))
	for i, w := range wanted {
		as[i] = w.Attachment
	}
	return c.Add(ctx, lifecycle.Transaction{
		Plan: c.Plan(as...),
		Adjust: func(_ context.Context, added []delegate.Attached) error {
			return moveDefaultRoute(c.Root, wanted, added)
		},
	})
}

func ready(ctx context.Context, c *plugin.Call) error {
	conf, err := readConfig(c)
	if err != nil {
		return err
	}
	if err := conf.refuse(); err != nil {
		return err
	}
	if err := conf.ready(); err != nil {
		return status.NotReady(err)
	}
	nets, err := conf.standing()
	switch {
	case errors.Is(err, netconf.ErrNotFound):
		return status.NotReady(err)
	case err != nil:
		return err
	}
	return c.Status(ctx, nets...)
}

// StateDir returns the directory of the records for the configuration conf of a node
// with the root directory root, as a path of this process. It fails as an ADD does if
// conf cannot be decoded or is refused.
func StateDir(root plugin.Root, conf []byte) (string, error) {
	c, err := New().Call(plugin.Process{Root: root}, delegate.CommandAdd, skel.CmdArgs{StdinData: conf})
	if err != nil {
		return "", err
	}
	nc, err := readConfig(c)
	if err == nil {
		err = nc.refuse()
	}
	return c.Manager.Dir, err
}
