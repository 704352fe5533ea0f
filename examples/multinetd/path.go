package main

import (
	"cmp"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/metacni/metacni/examples/multinet/publish"
)

// A path is one that is configured: under which key, and where it is kept.
type path struct {
	key string
	at  *string
}

// tidy refuses the first of paths that is relative, and cleans the others. Those
// that are empty are left so.
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

// findInRoot replaces the node's paths by those of this process, which have none
// of the node's links. The plugin does that for what a request names.
func (c *config) findInRoot() error {
	c.queueOnNode = c.QueueDir
	paths := []path{{"socketDir", &c.SocketDir}, {"queueDir", &c.QueueDir}}
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
