package plugin

import (
	"cmp"
	"errors"
	"io/fs"
	"path/filepath"
	"slices"

	"github.com/metacni/metacni/netconf"
)

// RuntimeConfDirs returns the directories of the node in which a runtime may look for the network
// of c. The first is that of the key runtimeConfDir, or else /etc/cni/net.d. The others, of k3s and
// MicroK8s, are the runtime's only if they have the network. It returns nil if the key is invalid.
func (c *Call) RuntimeConfDirs() []string {
	var dir string
	err := c.Value("runtimeConfDir", &dir)
	if dir = cmp.Or(dir, "/etc/cni/net.d"); err != nil || !filepath.IsAbs(dir) {
		return nil
	}
	return []string{dir, "/var/lib/rancher/k3s/agent/etc/cni/net.d", "/var/snap/microk8s/current/args/cni-network"}
}

// configured is [lifecycle.Manager.Configured]. It knows that a network is not configured only if
// it has read all of the directory from which the runtime has ours.
func (c *Call) configured(ours, other string) (configured, known bool) {
	complete := true
	for i, dir := range c.RuntimeConfDirs() {
		has, err := c.networksIn(dir)
		_, runtimes := has[ours]
		switch {
		case i > 0 && !runtimes:
			continue
		case has[other]:
			return true, true
		}
		known = known || runtimes
		complete = complete && (err == nil || errors.Is(err, fs.ErrNotExist))
	}
	return false, known && complete
}

// onlyNetwork is [lifecycle.Manager.OnlyNetwork].
func (c *Call) onlyNetwork(ours string) bool {
	all := make(map[string]bool)
	for _, dir := range c.RuntimeConfDirs() {
		has, err := c.networksIn(dir)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return false
		}
		for name, mine := range has {
			if mine {
				all[name] = true
			}
		}
	}
	return len(all) == 1 && all[ours]
}

// networksIn returns the names of the networks in a directory of the node, and whether they have
// our plugin. The error says why there may be others.
func (c *Call) networksIn(dir string) (has map[string]bool, err error) {
	has = make(map[string]bool)
	var errs []error
	for f, err := range netconf.Files(c.System.Root.Dir(dir)) {
		errs = append(errs, err)
		if name := f.Network.Name(); err == nil {
			has[name] = has[name] || slices.ContainsFunc(f.Network.Plugins(), func(p netconf.Plugin) bool { return slices.Contains(c.types, p.Type()) })
		}
	}
	return has, errors.Join(errs...)
}
