// Package plugin is the plugin multinet. The program multinet and the daemon multinetd both
// run it.
//
// The way of an ADD (plugin.go):
//
//   - the configuration (config.go)
//   - the choices of networks: those of the node (networks.go), and those that the pod's
//     annotations and claims ask for and that it may have (pod.go)
//   - the networks chosen (networks.go), with their devices (device.go)
//   - the plan (plan.go), which package lifecycle carries out
//
// DEL and sweeps are in del.go, what GC must know of others in shared.go, STATUS and the status of pods in status.go. The networks of a
// running container are changed in secondary.go, for others, and in reconcile.go, for its pod.
// What is asked of a Kubernetes cluster is in cluster.go.
package plugin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/containernetworking/cni/pkg/skel"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/lifecycle"
	"github.com/metacni/metacni/delegate/plugin"
	"github.com/metacni/metacni/ifname"
	"github.com/metacni/metacni/netconf/nad"
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
	return plugin.Plugin{
		About:    "CNI meta-plugin multinet",
		Type:     "multinet", // the records of the daemon are those of multinet
		Aliases:  OwnTypes(),
		Steps:    map[string]plugin.Step{routeStep: {Add: addRoute, Check: checkRoute}},
		StateDir: DefaultStateDir, StateKey: "cniDir",
		Forget:  "multinet forget",
		Prepare: prepare,
		GC: func(ctx context.Context, c *plugin.Call) error {
			c.Shared = sharing(ctx, c, c.Manager.Dir)
			conf, err := readConfig(c, cluster)
			if err != nil {
				return errors.Join(c.GC(ctx), err)
			}
			nets, err := conf.current(ctx)
			err = errors.Join(c.GC(ctx, nets...), err)
			conf.sweepDeviceInfo(ctx)
			return err
		},
		Add:    configured((*config).add),
		Del:    del,
		Status: configured((*config).status),
	}
}

// prepare makes c search binDir first, run plugins with their privileges, and attach several
// networks at once if "parallel" is true.
func prepare(c *plugin.Call) error {
	conf, err := plugin.Config[struct {
		BinDir             string     `json:"binDir"`
		Parallel           bool       `json:"parallel"`
		DelegatePrivileges privileges `json:"delegatePrivileges"`
	}](c)
	if err != nil {
		return err
	}
	binDir, err := c.System.Root.Node(cmp.Or(conf.BinDir, DefaultBinDir)) // as the plugins see it
	if err != nil {
		return c.Invalid("binDir", err)
	}
	others := slices.DeleteFunc(filepath.SplitList(c.Path), func(dir string) bool { return dir == binDir })
	invoker := c.Manager.Invoker
	invoker.Path = append([]string{binDir}, others...)
	invoker.Exec = served{invoker.Exec, ResidentState(c.Manager.Dir), conf.DelegatePrivileges}
	if conf.Parallel {
		invoker.Parallel = atOnce
	}
	return nil
}

// logSlow begins an ADD. The function that it returns writes where its time went to stderr, if
// the ADD was slow and nobody else is told: the daemon has a log of its own.
func (c *config) logSlow(ctx context.Context) (end func()) {
	limit := DefaultSlowAfter
	if c.SlowAfter != nil {
		limit = *c.SlowAfter
	}
	if limit < 0 || c.call.System.Timed != nil {
		return func() {}
	}
	start := time.Now()
	var timing lifecycle.Timing
	c.call.Manager.Timed = func(t lifecycle.Timing) { timing = t }
	return func() {
		if took := time.Since(start); took > time.Duration(limit) {
			slog.New(slog.NewTextHandler(c.call.System.Stderr, nil)).LogAttrs(ctx, slog.LevelWarn, "slow ADD",
				slog.String("container", c.call.ContainerID), slog.String("ifname", c.call.IfName), slog.String("network", c.call.Name),
				slog.String("pod", c.pod.String()), slog.Duration("duration", took), slog.Any("timing", timing))
		}
	}
}

func (c *config) add(ctx context.Context) error {
	defer c.logSlow(ctx)()
	if err := c.waitReady(ctx); err != nil {
		return err
	}
	plan, err := c.attachments(ctx)
	if err != nil {
		return err
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
			if c.cluster.Planned != nil && c.inKubernetes() {
				if err := c.cluster.Planned(ctx, c.pod, plan); err != nil {
					return err
				}
			}
			return c.fill(ctx, plan)
		},
		Report: func(ctx context.Context, added []delegate.Attached) error {
			if c.cluster.Attached == nil || !c.inKubernetes() {
				return nil
			}
			return c.cluster.Attached(ctx, c.call.Key(), c.pod, added)
		},
	})
	return About(plan, err)
}

// About returns err with the claims and definitions of the attachments that it is
// about: the one whose plugin has failed, or those that ask for an interface which they cannot
// have. The names of their networks may be others.
func About(as []delegate.Attachment, err error) error {
	ifName := ""
	if failed := (*delegate.Error)(nil); errors.As(err, &failed) {
		ifName = failed.IfName
	} else if wrong := (*ifname.Error)(nil); errors.As(err, &wrong) {
		ifName = wrong.Name
	}
	var about []string
	for _, a := range as {
		if words := aboutOrigin(nad.ParseOrigin(a.Origin)); ifName != "" && a.IfName == ifName && words != "" {
			about = append(about, words)
		}
	}
	if about == nil {
		return err
	}
	return fmt.Errorf("%s: %w", strings.Join(about, " and "), err)
}

// aboutOrigin returns the claim and the definition of an attachment, as far as it has them.
func aboutOrigin(o nad.Origin) string {
	var words []string
	if o.Use == nad.UseClaimed {
		words = append(words, o.Claim.String())
	}
	if o.Definition != (nad.Ref{}) {
		words = append(words, "NAD "+o.Definition.String())
	}
	return strings.Join(words, ", ")
}

// StateDir returns the directory of the records for the configuration conf of a node
// with the root directory root, as a path of this process. It fails as an ADD does if
// conf cannot be decoded or a key is not valid.
func StateDir(root plugin.Root, conf []byte) (string, error) {
	c, err := configOf(plugin.System{Root: root}, skel.CmdArgs{StdinData: conf}, Cluster{})
	if err != nil {
		return "", err
	}
	return c.call.Manager.Dir, nil
}

// configOf returns the configuration in the stdin of an ADD.
func configOf(process plugin.System, asked skel.CmdArgs, cluster Cluster) (*config, error) {
	c, err := New(cluster).Call(process, delegate.CommandAdd, skel.CmdArgs{IfName: asked.IfName, StdinData: asked.StdinData, Path: asked.Path})
	if err != nil {
		return nil, err
	}
	return readConfig(c, cluster)
}
