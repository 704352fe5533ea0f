package daemon

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/metacni/metacni/delegate/plugin"
	"github.com/metacni/metacni/examples/internal/program"
	multinet "github.com/metacni/metacni/examples/multinet/plugin"
	"github.com/metacni/metacni/examples/multinet/publish"
	"github.com/metacni/metacni/netconf"
)

// check validates the configuration and derives everything else from it.
func (c *config) check() error {
	if c.SocketDir == "" {
		return errors.New(`socketDir "" is not an absolute path`)
	}
	if err := cmp.Or(
		tidy(path{"chrootDir", &c.ChrootDir}),
		program.OneOf("logFormat", c.LogFormat, "text", "json"),
		program.NotNegative("connectionLimit", c.ConnectionLimit),
		program.NotNegative("drainTimeout", time.Duration(c.DrainTimeout)),
		program.NotNegative("sweepInterval", time.Duration(c.SweepInterval)),
	); err != nil {
		return err
	}
	if c.ChrootDir == "/" {
		c.ChrootDir = ""
	}
	if info, err := os.Stat(cmp.Or(c.ChrootDir, "/")); err != nil {
		return fmt.Errorf("chrootDir: %w", err)
	} else if !info.IsDir() {
		return fmt.Errorf("chrootDir %q is not a directory", c.ChrootDir)
	}
	if c.QueueDir != "" {
		onNode, err := c.root().Node(c.QueueDir)
		if err == nil {
			_, err = plugin.CheckStateDir(onNode)
		}
		if err != nil {
			return fmt.Errorf("queueDir: %w", err)
		}
	}
	if c.MetricsAddress == "" && c.MetricsPort != 0 {
		c.MetricsAddress = net.JoinHostPort("", strconv.Itoa(int(c.MetricsPort)))
	}
	if err := c.findInRoot(); err != nil {
		return err
	}
	var err error
	if c.stateDir, err = multinet.StateDir(c.root(), c.multinet()); err != nil {
		return fmt.Errorf("%s: %w", cmp.Or(c.file, defaultFile), err) // no flag sets its keys
	}
	if err := c.forShims(); err != nil {
		return err
	}
	return errors.Join(c.checkPublishing(), c.checkResidents(), c.cluster.Check())
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
	for _, p := range paths {
		if *p.at == "" {
			continue
		}
		err := tidy(p)
		if err != nil {
			return err
		}
		if *p.at, err = c.root().Resolve(*p.at); err != nil {
			return fmt.Errorf("%s: %w", p.key, err)
		}
	}
	return nil
}

// forShims makes each path in override a path of the node: shims execute DELs with it while
// the daemon is away.
func (c *config) forShims() error {
	for _, key := range slices.Sorted(maps.Keys(c.override)) {
		var path string
		if c.ChrootDir == "" || json.Unmarshal(c.override[key], &path) != nil || !filepath.IsAbs(path) {
			continue
		}
		onNode, err := c.root().Node(path)
		if err != nil {
			return fmt.Errorf("%s: %w", key, err)
		}
		c.override[key], _ = json.Marshal(onNode) // a string
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
	confDir, clusterNetwork := path{"confDir", &conf.ConfDir}, path{"the directory of clusterNetwork", &conf.ClusterNetwork}
	conf.ConfDir = cmp.Or(conf.ConfDir, multinet.DefaultConfDir)
	if conf.ClusterNetwork = filepath.Dir(conf.ClusterNetwork); !filepath.IsAbs(conf.ClusterNetwork) {
		conf.ClusterNetwork = "" // the name of a file in confDir
	}
	for _, p := range []path{confDir, clusterNetwork} {
		if *p.at, err = c.root().Resolve(*p.at); err != nil {
			return fmt.Errorf("%s: %w", p.key, err)
		}
	}
	for _, other := range []path{
		confDir, clusterNetwork, {"cniConfigDir", &c.publish.Dir}, {"multusAutoconfigDir", &c.publish.From}, {"cniDir", &c.stateDir}, {"queueDir", &c.QueueDir},
	} {
		below, err := filepath.Rel(followed(c.cluster.NADDir), followed(*other.at))
		if err == nil && filepath.IsLocal(below) {
			return fmt.Errorf("nadDir is, or contains, %s (%s): give the copies of definitions a directory of their own", other.key, *other.at)
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
