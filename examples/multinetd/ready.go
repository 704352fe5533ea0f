package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

var errNotPublished = errors.New("the network is not published")

// ready returns why no ADD can be served. It returns errNotPublished only when
// everything else is ready.
func (d *daemon) ready(context.Context) error {
	if err := errors.Join(writable(d.conf.stateDir), d.conf.queueUsable()); err != nil {
		return err
	}
	return d.published()
}

// waitReady waits until the daemon is ready, except that its network need not be
// published yet. It reports false if ctx has ended before.
func (d *daemon) waitReady(ctx context.Context) bool {
	poll := time.NewTicker(50 * time.Millisecond)
	defer poll.Stop()
	for ctx.Err() == nil {
		if err := d.server.CheckReady(ctx); err == nil || errors.Is(err, errNotPublished) {
			return true
		}
		select {
		case <-ctx.Done():
		case <-poll.C:
		}
	}
	return false
}

// published fails while there is a network to publish and it is not published.
func (d *daemon) published() error {
	if d.manager == nil {
		return nil
	}
	s := d.manager.State()
	switch {
	case s.Published != "":
		return nil
	case s.Degraded != nil:
		return fmt.Errorf("%w: %w", errNotPublished, s.Degraded)
	}
	return errNotPublished
}

// queueUsable fails when the daemon cannot do the DELs that shims queue: the node's
// symbolic links have changed and the shims use another directory, or QueueDir
// cannot be written to.
func (c *config) queueUsable() error {
	if c.QueueDir == "" {
		return nil
	}
	now, err := c.root().Resolve(c.queueOnNode)
	if err == nil && now != c.QueueDir {
		err = fmt.Errorf("on the node %q is now %q, but the daemon uses %q: restart the daemon", c.queueOnNode, now, c.QueueDir)
	}
	if err == nil {
		err = writable(now)
	}
	if err != nil {
		return fmt.Errorf("queueDir: %w", err)
	}
	return nil
}

// writable fails when this process cannot write to dir or, if dir is missing, to the
// directory in which it would be made.
func writable(dir string) error {
	err := unix.Access(dir, unix.W_OK|unix.X_OK)
	for errors.Is(err, fs.ErrNotExist) && dir != "/" {
		dir = filepath.Dir(dir)
		err = unix.Access(dir, unix.W_OK|unix.X_OK)
	}
	if err != nil {
		return &fs.PathError{Op: "write to", Path: dir, Err: err}
	}
	return nil
}
