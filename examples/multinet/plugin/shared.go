package plugin

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"sync"

	"github.com/containernetworking/cni/pkg/skel"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/adopt"
	"github.com/metacni/metacni/delegate/lifecycle"
	"github.com/metacni/metacni/delegate/plugin"
	"github.com/metacni/metacni/netconf"
	"github.com/metacni/metacni/scratch"
)

// nriStateDir is the directory of the records of examples/nri.
const nriStateDir = "/var/lib/cni/nri"

// podmanDir is where podman keeps its networks.
const podmanDir = "/etc/containers/networks"

// Sharing returns a function that says why others than multinet may have attachments to the
// network of a name, or "". A GC must not tell the plugins of such a network which attachments are
// valid: they would remove those of the others. What cannot be read is a reason.
//
// The configuration is conf, on a node with the root directory root. stateDir is the directory of
// the records as a path of this process; empty means that of the configuration. The function looks
// at each thing once, until ctx ends. Goroutines must not share it.
func Sharing(ctx context.Context, root plugin.Root, conf []byte, stateDir string) func(network string) (why string) {
	c, err := New(Cluster{}).Call(plugin.System{Root: root}, delegate.CommandGC, skel.CmdArgs{StdinData: conf})
	if err != nil {
		return func(string) string { return err.Error() }
	}
	return sharing(ctx, c, cmp.Or(stateDir, c.Manager.Dir))
}

func sharing(ctx context.Context, c *plugin.Call, stateDir string) func(network string) string {
	keys, err := sharedNetworks(c)
	if err != nil {
		return func(string) string { return err.Error() }
	}
	elsewhere := sync.OnceValues(func() (map[string]string, error) { return recordedElsewhere(ctx, c, stateDir) })
	known := sync.OnceValues(func() (map[scratch.Key]bool, error) { return recordedIn(ctx, stateDir) })
	return func(network string) string {
		where, err := elsewhere()
		if where[network] == "" && err != nil {
			return err.Error()
		}
		_, noPodman := fs.Stat(c.System.Root.Dir(podmanDir), network+".json")
		switch {
		case slices.Contains(keys, network):
			return "the key sharedNetworks names it"
		case where[network] != "":
			return "it has attachments in " + where[network]
		case noPodman == nil:
			return "podman has a network of this name, " + filepath.Join(podmanDir, network+".json")
		case !errors.Is(noPodman, fs.ErrNotExist):
			return noPodman.Error()
		}
		return attachedByRuntime(c, network, known)
	}
}

// attachedByRuntime returns why libcni's cache may have attachments to a network without a record,
// or "". Those with a plugin of ours are ours.
func attachedByRuntime(c *plugin.Call, network string, known func() (map[scratch.Key]bool, error)) string {
	n := adopt.Node{Root: string(c.System.Root), Primary: []string{network}, Own: OwnTypes(), CacheDir: cacheDir(c)}
	for a, err := range n.Attachments() {
		if err != nil {
			return err.Error()
		}
		recorded, err := known()
		switch k := a.Key; {
		case err != nil:
			return err.Error()
		case !recorded[scratch.Key{ContainerID: k.ContainerID, IfName: k.IfName}]:
			return fmt.Sprintf("the runtime has attached %s of %s to it, without a record: %s", k.IfName, k.ContainerID, a.Sources[0])
		}
	}
	return ""
}

// recordedIn returns the containers and interfaces that have a record in dir.
func recordedIn(ctx context.Context, dir string) (map[scratch.Key]bool, error) {
	known := make(map[scratch.Key]bool)
	var errs []error
	for r, err := range (&lifecycle.Manager{Dir: dir}).Records(ctx) {
		errs = append(errs, err)
		for _, a := range r.Attached {
			known[scratch.Key{ContainerID: r.Key.ContainerID, IfName: a.IfName}] = true
		}
	}
	return known, errors.Join(errs...)
}

// recordedElsewhere returns the networks with records in other directories than stateDir, and
// where. The directories are the usual ones, and those of the runtime's networks.
func recordedElsewhere(ctx context.Context, c *plugin.Call, stateDir string) (map[string]string, error) {
	elsewhere := make(map[string]string)
	var errs []error
	for _, dir := range append(stateDirs(c), DefaultStateDir, nriStateDir) {
		path, err := c.System.Root.Resolve(dir)
		if err != nil || plugin.Root("").SameFile(path, stateDir) {
			continue // it is not there, or ours
		}
		for r, err := range (&lifecycle.Manager{Dir: path}).Records(ctx) {
			if err != nil {
				errs = append(errs, fmt.Errorf("%s: %w", dir, err))
			}
			for _, a := range slices.Concat(r.Attached, r.Leftovers) {
				elsewhere[a.Network.Name()] = dir
			}
		}
	}
	return elsewhere, errors.Join(errs...)
}

// stateDirs returns the directories of records that the runtime's networks with our plugin name.
func stateDirs(c *plugin.Call) (dirs []string) {
	for _, dir := range c.RuntimeConfDirs() {
		for f, err := range netconf.Files(c.System.Root.Dir(dir)) {
			if err != nil {
				continue // nobody knows which directory it names
			}
			for _, p := range f.Network.Plugins() {
				var conf struct{ CNIDir string }
				if (p.Type() == "multinet" || p.Type() == "multinet-shim") && p.Decode(&conf) == nil && filepath.IsAbs(conf.CNIDir) {
					dirs = append(dirs, conf.CNIDir)
				}
			}
		}
	}
	return dirs
}

// sharedNetworks returns the value of the key. It fails with code 7 if that is no list of names.
func sharedNetworks(c *plugin.Call) (names []string, err error) {
	var value json.RawMessage
	if err := c.Value("sharedNetworks", &value); err != nil || value == nil {
		return nil, err
	}
	if json.Unmarshal(value, &names) != nil {
		return nil, c.Invalid("sharedNetworks", errors.New("not a list of names of networks"))
	}
	return names, nil
}
