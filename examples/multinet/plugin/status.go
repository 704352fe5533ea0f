package plugin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/lifecycle"
	"github.com/metacni/metacni/delegate/plugin"
	"github.com/metacni/metacni/examples/internal/program"
	"github.com/metacni/metacni/netconf"
	"github.com/metacni/metacni/netconf/nad"
	"github.com/metacni/metacni/scratch"
	"github.com/metacni/metacni/status"
)

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

// ready fails if the readiness indicator file is missing.
func (c *config) ready() error {
	if c.ReadinessIndicator == "" {
		return nil
	}
	_, err := fs.Stat(c.call.System.Root.Dir(filepath.Dir(c.ReadinessIndicator)), filepath.Base(c.ReadinessIndicator))
	if errors.Is(err, fs.ErrNotExist) {
		err = errors.New("readinessindicatorfile is missing")
	}
	if err != nil {
		return types.NewError(types.ErrTryAgainLater, fmt.Sprintf("network %q is not ready: %s", c.call.Name, err), c.ReadinessIndicator)
	}
	return nil
}

// waitReady waits for the readiness indicator file, at most for readinessTimeout.
func (c *config) waitReady(ctx context.Context) error {
	timeout := readyTimeout
	if c.ReadinessTimeout != nil {
		timeout = time.Duration(*c.ReadinessTimeout)
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	for {
		if err := c.ready(); err == nil || !program.Pause(ctx, 50*time.Millisecond) {
			return err
		}
	}
}

// currentTimeout limits how long GC and STATUS wait for the definitions of networks.
const currentTimeout = 100 * time.Millisecond

// current returns the networks of the configuration, for GC and STATUS, and the errors of
// those that were not found. For GC it returns no network without the primary: the first
// would be taken for it.
//
// Neither command depends on the API of the cluster: a node whose STATUS fails is not
// ready, and its pods are evicted. So current leaves out a network for which it has to
// ask the cluster, unless the cluster knows it at once.
func (c *config) current(ctx context.Context) ([]netconf.Network, error) {
	all, err := c.standing()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, currentTimeout)
	defer cancel()
	chain, err := c.chain()
	var nets []netconf.Network
	errs := []error{err}
	for _, w := range append(all, chain...) {
		n, _, err := c.find(ctx, w)
		if err == nil {
			if w.use == nad.UseCluster {
				c.takeVersion(n)
			}
			nets = append(nets, n)
			continue
		}
		if _, named := c.ref(w); !named || c.cluster.Definition == nil {
			errs = append(errs, c.about(w, err))
		}
		if w.use == nad.UseCluster && c.call.Command == delegate.CommandGC {
			break
		}
	}
	return nets, errors.Join(errs...)
}

// Status returns a network that a node offers to pods, and fails if they cannot be attached to
// it now. The network is namespace/name of a definition, which has the types that pods may
// select, or the name of a file in confDir. The configuration and the Path of asked are used as
// in an ADD.
//
// Status fails as an ADD does where the network is not found or not valid. Otherwise it asks
// the plugins with STATUS, as far as the version of the network has that command, and returns
// the network with the first error.
func Status(ctx context.Context, process plugin.System, asked skel.CmdArgs, cluster Cluster, network string) (netconf.Network, error) {
	c, err := configOf(process, asked, cluster)
	var n netconf.Network
	switch {
	case err != nil:
	case strings.Contains(network, "/"):
		var ref nad.Ref
		if ref, err = nad.ParseRef(network, ""); err == nil {
			n, _, err = c.find(ctx, choice{use: nad.UseClaimed, ref: ref})
		}
	default:
		n, err = c.inConfDir(network)
	}
	if err != nil {
		return netconf.Network{}, err
	}
	return n, c.call.Manager.Status(ctx, []netconf.Network{n})
}

// PodOf returns the pod of a recorded container, as the runtime named it in the ADD.
func PodOf(r lifecycle.AddRecord) nad.Pod {
	var p nad.Pod
	if len(r.Attached) > 0 {
		p = nad.PodOf(r.Attached[0].Args)
	}
	p.Container = r.Key.ContainerID
	return p
}

// State returns the state of the i-th of r.Attached, as operators see it: the others are attached
// even if one is incomplete.
func State(r lifecycle.AddRecord, i int) string {
	switch {
	case r.State != scratch.Partial:
		return string(r.State)
	case r.Whole(i):
		return string(scratch.Added)
	}
	return "incomplete" // one more network is being attached, or could not be detached
}

// OfStaticPod reports whether r is known to be of a static pod. The kubelet runs it without
// the API, which only has a mirror of it, under another UID.
func OfStaticPod(r lifecycle.AddRecord) bool {
	return slices.ContainsFunc(r.Attached, func(a delegate.Attached) bool {
		source := nad.ParseOrigin(a.Origin).PodSource
		return source != "" && source != "api"
	})
}

// NetworkStatusPath is the page on the daemon's socket with the annotation network-status that
// the API has of a pod. The query has its namespace, name and uid.
const NetworkStatusPath = "/network-status"

// NetworkStatus returns the elements of the pod's annotation network-status that r is the
// source of, see [lifecycle.AddRecord.Networks]. Networks have the names that people know them by:
// "namespace/name" of the definition, or the CNI name where there is none.
func NetworkStatus(r lifecycle.AddRecord) []status.Network {
	return r.Networks(func(a delegate.Attached) string {
		return cmp.Or(nad.ParseOrigin(a.Origin).Definition.String(), a.Network.Name())
	})
}
