package main

import (
	"cmp"
	"fmt"
	"path/filepath"

	"github.com/metacni/metacni/examples/internal/daemon"
	"github.com/metacni/metacni/examples/multinet/multinet"
	"github.com/metacni/metacni/examples/multinet/publish"
	"github.com/metacni/metacni/netconf"
)

// A path is a configured path.
type path struct {
	key string  // of the file
	at  *string // the field
}

// tidy cleans paths, and fails if one is relative. Empty paths stay empty.
func tidy(paths []path) error {
	for _, p := range paths {
		if *p.at == "" {
			continue
		}
		if err := daemon.Absolute(p.key, *p.at); err != nil {
			return err
		}
		*p.at = filepath.Clean(*p.at)
	}
	return nil
}

// checkNADDir fails if a copy of a definition, which is nadDir/NAMESPACE/NAME.conf, could be
// taken for something else than a definition. Users choose both names. In confDir it could
// be a plugin of auxiliaryCNIChainName, and run for every pod.
func (c *config) checkNADDir() error {
	if c.cluster.NADDir == "" {
		return nil
	}
	conf, err := netconf.Decode[struct {
		ConfDir        string `json:"confDir"`
		ClusterNetwork string `json:"clusterNetwork"`
	}](c.multinet())
	if err != nil {
		return err
	}
	networks := map[string]string{"confDir": cmp.Or(conf.ConfDir, multinet.DefaultConfDir)}
	if filepath.IsAbs(conf.ClusterNetwork) {
		networks["clusterNetwork"] = filepath.Dir(conf.ClusterNetwork)
	}
	for key, dir := range networks {
		if networks[key], err = c.root().Resolve(dir); err != nil {
			return fmt.Errorf("%s: %w", key, err)
		}
	}
	for _, other := range []struct{ key, dir string }{
		{"confDir", networks["confDir"]},
		{"the directory of clusterNetwork", networks["clusterNetwork"]},
		{"cniConfigDir", c.publish.Dir},
		{"multusAutoconfigDir", c.publish.From},
		{"cniDir", c.stateDir},
		{"queueDir", c.QueueDir},
	} {
		below, err := filepath.Rel(followed(c.cluster.NADDir), followed(other.dir))
		if err == nil && filepath.IsLocal(below) {
			return fmt.Errorf("nadDir is, or contains, %s (%s): give the copies of definitions a directory of their own", other.key, other.dir)
		}
	}
	return nil
}

// followed returns the directory that dir leads to, if it exists.
func followed(dir string) string {
	if found, err := filepath.EvalSymlinks(dir); err == nil {
		return found
	}
	return dir
}

// findInRoot replaces paths of the node by the paths of this process, in which the
// node's symbolic links have been followed. The plugin does this for the paths in
// requests.
func (c *config) findInRoot() error {
	c.queueOnNode = c.QueueDir
	paths := []path{{"socketDir", &c.SocketDir}, {"queueDir", &c.QueueDir}, {"nadDir", &c.cluster.NADDir}}
	c.cluster.Root = c.root()
	if p := &c.publish; p.File != "" {
		p.Dir = cmp.Or(p.Dir, publish.ConfDir)
		paths = append(paths, path{"cniConfigDir", &p.Dir}, path{"multusAutoconfigDir", &p.From}, path{"readinessindicatorfile", &p.Ready},
			path{"cniCacheDir", &p.CacheDir}, path{"multusStateDir", &p.MultusDir})
	}
	if err := tidy(paths); err != nil {
		return err
	}
	for _, p := range paths {
		if *p.at == "" {
			continue
		}
		found, err := c.root().Resolve(*p.at)
		if err != nil {
			return fmt.Errorf("%s: %w", p.key, err)
		}
		*p.at = found
	}
	return nil
}

// queueMoved fails when the daemon does not read the DELs that shims queue: the node's
// symbolic links have changed, and the shims use another directory than QueueDir.
func (c *config) queueMoved() error {
	if c.QueueDir == "" {
		return nil
	}
	now, err := c.root().Resolve(c.queueOnNode)
	if err == nil && now != c.QueueDir {
		err = fmt.Errorf("on the node %q is now %q, but the daemon uses %q: restart the daemon", c.queueOnNode, now, c.QueueDir)
	}
	if err != nil {
		return fmt.Errorf("queueDir: %w", err)
	}
	return nil
}
