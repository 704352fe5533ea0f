package cluster

import "context"

// Ready says that the daemon serves ADDs and that its network is published. The node's
// startup taint, if one is configured, is removed from then on. It is called once.
func (c *Cluster) Ready() {
	if c != nil {
		close(c.ready)
	}
}

// untaint removes the startup taint of the node when the daemon is ready. It returns when
// that is done, or ctx ends. The taint is never added again: it is for nodes that are new.
func (c *Cluster) untaint(ctx context.Context) {
	select {
	case <-ctx.Done():
	case <-c.ready:
		_ = c.view.RemoveTaint(ctx, c.conf.StartupTaint) // logs what fails
	}
}
