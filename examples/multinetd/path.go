package main

import (
	"cmp"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/metacni/metacni/examples/multinet/publish"
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
		if !filepath.IsAbs(*p.at) {
			return fmt.Errorf("%s %q is not an absolute path", p.key, *p.at)
		}
		*p.at = filepath.Clean(*p.at)
	}
	return nil
}

// plainName reports whether name can be the name of a file in a directory.
func plainName(name string) bool {
	return name != "" && name != "." && name != ".." && !strings.ContainsAny(name, "/\x00")
}

// findInRoot replaces paths of the node by the paths of this process, in which the
// node's symbolic links have been followed. The plugin does this for the paths in
// requests.
func (c *config) findInRoot() error {
	c.queueOnNode = c.QueueDir
	paths := []path{{"socketDir", &c.SocketDir}, {"queueDir", &c.QueueDir}, {"nadDir", &c.cluster.NADDir}}
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
