package main

import (
	"context"
	"errors"
	"io/fs"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/adopt"
	"github.com/metacni/metacni/delegate/plugin"
	"github.com/metacni/metacni/netconf"
)

// found is what flannel's own plugin has recorded in the same directory.
func found(c *plugin.Call) adopt.Flannel {
	return adopt.Flannel{Root: string(c.Root), Dir: c.Manager.Dir, Network: c.Name}
}

// takeOver adopts the container if flannel's own plugin has attached it. The
// runtime brings the result with each call.
func takeOver(ctx context.Context, c *plugin.Call) error {
	at := delegate.Attached{Attachment: c.Attachment(netconf.Network{})}
	if err := c.Value("prevResult", &at.Result); err != nil {
		return err
	}
	a, err := found(c).Attachment(at)
	if errors.Is(err, delegate.ErrResult) {
		at.Result = nil // a DEL does without
		a, err = found(c).Attachment(at)
	}
	if errors.As(err, new(*adopt.Error)) && !errors.Is(err, fs.ErrNotExist) {
		current := found(c)
		current.Current, _ = network(c) // without one, the file is all there is
		a, err = current.Attachment(at)
	}
	if err == nil {
		_, err = c.Manager.Adopt(ctx, a)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// takeOverStale adopts what flannel's own plugin has left of containers that are
// not valid, for GC to remove.
func takeOverStale(ctx context.Context, c *plugin.Call) error {
	valid, err := c.Valid()
	if valid == nil || err != nil {
		return nil // GC says so
	}
	stale := found(c)
	stale.Current, _ = network(c) // as above
	var errs []error
	for _, o := range adopt.Take(ctx, c.Manager, stale.Stale(valid), false) {
		errs = append(errs, o.Err)
	}
	return errors.Join(errs...)
}
