package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"
)

// grace is how long the daemon waits for the API server before it is ready without it.
const grace = 30 * time.Second

// Probe reports whether the daemon is ready. The error names the resources that it has not read
// from the API server yet, or says why ResourceClaims are not served. Without the resources it is
// ready if there is a mirror, or after 30 seconds: pods that do not need the API server must start.
func (c *Cluster) Probe(context.Context) (ok bool, err error) {
	if c == nil {
		return true, nil
	}
	if !c.open.Load() {
		return false, errors.New("the view of the cluster is not open yet")
	}
	var missing []string
	for _, r := range c.view.Resources() {
		if !r.Synced {
			missing = append(missing, r.Name)
		}
	}
	if missing == nil {
		return true, c.claims.probe()
	}
	return c.mirrored || time.Since(c.started) > grace, fmt.Errorf("not synced with the Kubernetes API: %s", strings.Join(missing, ", "))
}

// hasMirror reports whether a previous daemon has left a mirror.
func (c *Cluster) hasMirror() bool {
	if c.conf.NADDir == "" {
		return false
	}
	entries, err := os.ReadDir(c.conf.NADDir)
	return err == nil && len(entries) > 0
}
