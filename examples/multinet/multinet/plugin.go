// Package multinet is the plugin multinet. The executable examples/multinet and the
// daemon examples/multinetd both run it.
//
// The commands are in plugin.go. An ADD goes from the annotations of the pod
// (annotations.go), its claims (claim.go) and the configuration (config.go, standing.go) to
// the wanted networks and what the pod may have of them (wanted.go), then to definitions and
// files (find.go), and then to attachments (wanted.go) with devices (device.go). What is
// asked of a Kubernetes cluster is in cluster.go. The file attach.go attaches one more
// network to a running container, and reconcile.go follows what its pod selects. What can be
// said before there is a container is in review.go and offered.go.
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

// New returns the plugin, in a cluster. Goroutines may share it if they may share the
// cluster.
func New(cluster Cluster) plugin.Plugin {
	configured := func(do func(*config, context.Context) error) func(context.Context, *plugin.Call) error {
		return func(ctx context.Context, c *plugin.Call) error {
			conf, err := readConfig(c, cluster)
			if err != nil {
				return err
			}
			return do(conf, ctx)
		}
	}
	networks := func(ctx context.Context, c *plugin.Call) ([]netconf.Network, error) {
		conf, err := readConfig(c, cluster)
		if err != nil {
			return nil, err
		}
		return conf.current(ctx)
	}
	return plugin.Plugin{
		About:    "CNI meta-plugin multinet",
		StateDir: DefaultStateDir, StateKey: "cniDir",
		Forget:   "multinet forget",
		Prepare:  prepare,
		Networks: networks,
		GC: func(ctx context.Context, c *plugin.Call) error {
			nets, err := networks(ctx, c)
			err = errors.Join(c.GC(ctx, nets...), err)
			sweepDeviceInfo(ctx, c)
			return err
		},
		Add:    configured((*config).add),
		Del:    del,
		Status: configured((*config).status),
	}
}

// prepare makes c search binDir first, and attach several networks at once if
// "parallel" is true.
func prepare(c *plugin.Call) error {
	conf, err := plugin.Config[struct {
		BinDir   string `json:"binDir"`
		Parallel bool   `json:"parallel"`
	}](c)
	if err != nil {
		return err
	}
	path := []string{c.Root.OnNode(cmp.Or(conf.BinDir, defaultBinDir))} // as the plugins see it
	for _, dir := range filepath.SplitList(c.Path) {
		if !slices.Contains(path, dir) {
			path = append(path, dir)
		}
	}
	c.Manager.Type = "multinet" // the records of the daemon are those of multinet
	invoker := c.Manager.Invoker
	invoker.Path = path
	invoker.Exec = served{invoker.Exec, ResidentState(c.Manager.Dir)}
	if conf.Parallel {
		invoker.Parallel = atOnce
	}
	return nil
}

func (c *config) add(ctx context.Context) error {
	if err := c.waitReady(ctx); err != nil {
		return err
	}
	attachments, err := c.attachments(ctx)
	if err != nil {
		return err
	}
	plan := make([]delegate.Attachment, len(attachments))
	for i, a := range attachments {
		plan[i] = a.Attachment
	}
	names := c.call.Plan(plan...)
	err = c.call.Add(ctx, lifecycle.Transaction{
		Plan: func(ctx context.Context, taken []string) ([]delegate.Attachment, error) {
			named, err := names(ctx, taken)
			if err != nil {
				return nil, err
			}
			plan = named // for errors from here on
			for i, a := range plan {
				plan[i] = c.deviceInfo().Assign(a)
			}
			return plan, nil
		},
		Prepare: func(ctx context.Context, plan []delegate.Attachment) error {
			c.fill(ctx, plan)
			return nil
		},
		Adjust: func(_ context.Context, added []delegate.Attached) error {
			return moveDefaultRoute(c.call.Root, attachments, added)
		},
		Report: func(ctx context.Context, added []delegate.Attached) error {
			if c.cluster.Attached == nil || !c.inKubernetes() {
				return nil
			}
			return c.cluster.Attached(ctx, c.call.Key(), c.pod, added)
		},
	})
	return aboutAttachments(plan, err)
}

func (c *config) status(ctx context.Context) error {
	if err := c.ready(); err != nil {
		return status.NotReady(err)
	}
	nets, err := c.current(ctx)
	switch {
	case errors.Is(err, netconf.ErrNotFound):
		return status.NotReady(err)
	case err != nil:
		return err
	}
	return c.call.Status(ctx, nets...)
}

// StateDir returns the directory of the records for the configuration conf of a node
// with the root directory root, as a path of this process. It fails as an ADD does if
// conf cannot be decoded or a key is not valid.
func StateDir(root plugin.Root, conf []byte) (string, error) {
	c, err := configOf(plugin.Process{Root: root}, skel.CmdArgs{StdinData: conf}, Cluster{})
	if err != nil {
		return "", err
	}
	return c.call.Manager.Dir, nil
}

// configOf returns the configuration in the stdin of an ADD.
func configOf(process plugin.Process, asked skel.CmdArgs, cluster Cluster) (*config, error) {
	c, err := New(cluster).Call(process, delegate.CommandAdd, skel.CmdArgs{IfName: asked.IfName, StdinData: asked.StdinData, Path: asked.Path})
	if err != nil {
		return nil, err
	}
	return readConfig(c, cluster)
}
