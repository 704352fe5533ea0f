package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"
)

// grace is how long the daemon is not ready for want of the API server.
const grace = 30 * time.Second

// Probe returns what is not known of the cluster yet. It is fine if a mirror knows it, or
// if the API server has not answered for half a minute: pods that need nothing of it must
// come up.
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
		return true, nil
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
