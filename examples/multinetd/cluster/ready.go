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

// A viewState says how much the daemon knows of the cluster.
type viewState string

const (
	closed  viewState = "closed"  // nothing: Start has not opened the view yet
	reading viewState = "reading" // not all: it reads the resources for the first time
	outage  viewState = "outage"  // not all, and it goes on without: there is a mirror, or grace is over
	synced  viewState = "synced"  // all that it watches
)

// state returns the state of the view, and the resources that have not been read yet.
func (c *Cluster) state() (state viewState, missing []string) {
	if !c.open.Load() {
		return closed, nil
	}
	for _, r := range c.view.Resources() {
		if !r.Synced {
			missing = append(missing, r.Name)
		}
	}
	switch {
	case missing == nil:
		return synced, nil
	case c.mirrored || time.Since(c.started) > grace:
		return outage, missing
	}
	return reading, missing
}

// Probe reports whether the daemon is ready. The error names the resources that it has not read
// from the API server yet, or says why ResourceClaims are not served. Without the resources it is
// ready if there is a mirror, or after 30 seconds: pods that do not need the API server must start.
func (c *Cluster) Probe(context.Context) (ok bool, err error) {
	if !c.conf.On() {
		return true, nil
	}
	switch state, missing := c.state(); state {
	case closed:
		return false, errors.New("the view of the cluster is not open yet")
	case synced:
		return true, c.claimsServed()
	default:
		return state == outage, fmt.Errorf("not synced with the Kubernetes API: %s", strings.Join(missing, ", "))
	}
}

// hasMirror reports whether a previous daemon has left a mirror.
func (c *Cluster) hasMirror() bool {
	if c.conf.NADDir == "" {
		return false
	}
	entries, err := os.ReadDir(c.conf.NADDir)
	return err == nil && len(entries) > 0
}

// Ready says that the daemon serves ADDs and that its network is published. The node's
// startup taint, if one is configured, is removed from then on. It is called once.
func (c *Cluster) Ready() { close(c.ready) }

// untaint removes the startup taint of the node when the daemon is ready. It returns when
// that is done, or ctx ends. The taint is never added again: it is for nodes that are new.
func (c *Cluster) untaint(ctx context.Context) {
	select {
	case <-ctx.Done():
	case <-c.ready:
		_ = c.view.RemoveTaint(ctx, c.conf.StartupTaint) // logs what fails
	}
}
