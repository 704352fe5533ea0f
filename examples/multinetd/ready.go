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

// ready returns why no ADD can be served, as far as the daemon knows. It returns
// errNotPublished only when nothing else is missing.
func (d *daemon) ready(context.Context) error {
	if err := errors.Join(writable(d.conf.stateDir), d.conf.queueUsable()); err != nil {
		return err
	}
	return d.published()
}

// waitReady waits until an ADD would be served if the network was published, and
// reports whether that was before ctx ended.
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

// published fails unless the network is, or need not be.
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

// queueUsable fails when the daemon would not see what shims of the node queue,
// because the node's links do not lead to QueueDir any more, or could not remove
// it.
func (c *config) queueUsable() error {
	if c.QueueDir == "" {
		return nil
	}
	now, err := c.root().Resolve(c.queueOnNode)
	if err == nil && now != c.QueueDir {
		err = fmt.Errorf("%q leads to %q now, and the daemon has %q: start it anew", c.queueOnNode, now, c.QueueDir)
	}
	if err == nil {
		err = writable(now)
	}
	if err != nil {
		return fmt.Errorf("queueDir: %w", err)
	}
	return nil
}

// writable fails when nothing can be written to dir, or to where it would be
// made.
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
