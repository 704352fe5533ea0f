package multinet

import (
	"context"
	"path/filepath"
	"strings"

	"github.com/metacni/metacni/delegate/adopt"
	"github.com/metacni/metacni/delegate/lifecycle"
	"github.com/metacni/metacni/delegate/plugin"
)

// del removes the attachment of c. If it has no record, the runtime may have begun to
// attach the container before multinet was published: then del removes what libcni's
// cache has of the primary network. Mistakes in the configuration are no obstacle.
func del(ctx context.Context, c *plugin.Call) error {
	return c.Manager.Del(ctx, lifecycle.Removal{Key: c.Key(), NetNS: c.Netns, Adopt: func() (lifecycle.Adoption, error) {
		dir := DefaultCacheDir
		if err := c.Value("cniCacheDir", &dir); err != nil || !filepath.IsAbs(dir) {
			dir = ""
		}
		node := adopt.Node{Root: string(c.Root), Network: c.Name, Own: append(OwnTypes(), c.Type), CacheDir: c.Root.OnNode(dir)}
		if name := primaryName(c); name != "" {
			node.Primary = []string{name}
		}
		return node.Attachment(c.ContainerID, c.IfName)
	}})
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
