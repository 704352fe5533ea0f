package plugin

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/adopt"
	"github.com/metacni/metacni/delegate/lifecycle"
	"github.com/metacni/metacni/delegate/plugin"
	"github.com/metacni/metacni/netconf"
	"github.com/metacni/metacni/netconf/nad"
)

// del removes the attachment of c. If it has no record, the runtime may have begun to
// attach the container before multinet was published: then del removes what libcni's
// cache has of the primary network. Mistakes in the configuration are no obstacle.
func del(ctx context.Context, c *plugin.Call) error {
	return c.Manager.Del(ctx, c.Key(), lifecycle.DelRequest{NetNS: c.NetNS, Adopt: func() (lifecycle.Adoption, error) {
		node := adopt.Node{Root: string(c.System.Root), Network: c.Name, Own: append(OwnTypes(), c.Type), CacheDir: cacheDir(c)}
		if name := primaryName(c); name != "" {
			node.Primary = []string{name}
		}
		return node.Attachment(c.ContainerID, c.IfName)
	}})
}

// cacheDir returns the directory of libcni's cache, or "" if the key is invalid.
func cacheDir(c *plugin.Call) string {
	dir := DefaultCacheDir
	if err := c.Value("cniCacheDir", &dir); err != nil || !filepath.IsAbs(dir) {
		return ""
	}
	dir, _ = c.System.Root.Node(dir) // "" if that is not known
	return dir
}

// primaryName returns the name of the clusterNetwork or of the first delegate, or "" if it
// is not known.
func primaryName(c *plugin.Call) string {
	var cluster string
	var delegates []struct {
		Name string `json:"name"`
	}
	_, _ = c.Value("clusterNetwork", &cluster), c.Value("delegates", &delegates)
	switch {
	case strings.Contains(cluster, "/"):
		n, _ := (&config{call: c}).atPath(cluster)
		return n.Name()
	case cluster != "":
		return cluster
	case len(delegates) > 0:
		return delegates[0].Name
	}
	return ""
}

// ResidentState returns the directory in which the daemon with the records in
// stateDir notes which types of plugins are resident.
func ResidentState(stateDir string) string { return stateDir + ".relay" }

// A served is an Exec that finds no executable for a type that is noted in dir: only
// the resident plugin can detach what it has attached.
type served struct {
	delegate.Exec

	dir        string
	privileges privileges
}

// FindInPath fails with code 11 for the type of a resident plugin, unless the Exec
// below has it: it then returns a path that is not absolute.
func (x served) FindInPath(plugin string, paths []string) (string, error) {
	path, err := x.Exec.FindInPath(plugin, paths)
	if err == nil && !filepath.IsAbs(path) {
		return path, nil
	}
	note := filepath.Join(x.dir, plugin)
	if _, noteErr := os.Lstat(note); noteErr == nil {
		return "", &residentError{note}
	}
	return path, err
}

// A residentError is why an executable is not run: the type is noted.
type residentError struct{ note string }

func (e *residentError) Error() string {
	return fmt.Sprintf("only a resident plugin of multinetd serves this type (to use an executable again, remove %s)", e.note)
}

func (*residentError) CNICode() uint { return types.ErrTryAgainLater }
func (*residentError) Unwrap() error { return delegate.ErrNotRun }

// PrepareSweep makes s sweep the records of multinet with the configuration conf and
// the CNI_PATH cniPath. The context is that of the sweeps. If conf cannot be decoded,
// PrepareSweep fails as a DEL does and does not change s. Of the cluster only
// Definition is called, and not for long.
func PrepareSweep(ctx context.Context, s *lifecycle.Sweeper, process plugin.System, cluster Cluster, conf []byte, cniPath string) error {
	c, err := New(cluster).Call(process, delegate.CommandGC, skel.CmdArgs{StdinData: conf, Path: cniPath})
	if err != nil {
		return err
	}
	s.Manager = c.Manager
	s.Current = func(a delegate.Attachment) (netconf.Network, error) {
		conf, err := readConfig(c, cluster)
		if err != nil {
			return netconf.Network{}, err
		}
		n, err := conf.now(ctx, a)
		if err != nil {
			return n, err
		}
		steps := slices.DeleteFunc(slices.Clone(a.Network.Plugins()), func(p netconf.Plugin) bool { return p.Step() == "" })
		return n.WithPlugins(slices.Concat(n.Plugins(), steps)...)
	}
	return nil
}

// now returns the network of a as it is defined now: by its definition, by its
// claim, by the configuration, or by a file in confDir.
func (c *config) now(ctx context.Context, a delegate.Attachment) (netconf.Network, error) {
	switch o := nad.ParseOrigin(a.Origin); {
	case o.Definition != (nad.Ref{}):
		return c.asDefined(ctx, a, o)
	case o.Use == nad.UseClaimed: // a claim cannot be changed
		return a.Network, nil
	}
	nets, _ := c.current(ctx)
	for _, n := range nets {
		if n.Name() == a.Network.Name() {
			return n, nil
		}
	}
	return c.inConfDir(a.Network.Name())
}

// asDefined returns the network of a, of the origin o, as its definition has it now, with
// what the pod asked for.
func (c *config) asDefined(ctx context.Context, a delegate.Attachment, o nad.Origin) (netconf.Network, error) {
	ctx, cancel := context.WithTimeout(ctx, currentTimeout)
	defer cancel()
	ch := choice{use: o.Use, ref: o.Definition, device: o.Device}
	ch.selection, _ = recordedSelection(o) // none where the configuration names it
	n, _, err := c.defined(ctx, ch.ref, ch)
	if err == nil {
		ch.network, err = c.call.Complete(n)
	}
	if err == nil {
		a, err = c.attachment(ch, a.CapabilityArgs, a.Args)
	}
	return a.Network, err
}
