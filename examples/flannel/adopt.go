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

// recorded returns what flannel's own plugin has recorded in the same directory.
func recorded(c *plugin.Call) adopt.Flannel {
	var current netconf.Network // without it, the files are all there is
	if _, err := netconf.Decode[config](c.Config); err == nil {
		current, _ = network(c) // not one that lacks a key which does not fit
	}
	return adopt.Flannel{Root: string(c.System.Root), Dir: c.Manager.Dir, Network: c.Name, Current: current}
}

// takeOver adopts the container of c if flannel's own plugin has attached it.
func takeOver(ctx context.Context, c *plugin.Call) error {
	at := delegate.Attached{Attachment: c.Attachment(netconf.Network{})}
	if err := c.Value("prevResult", &at.Result); err != nil {
		return err
	}
	found, err := recorded(c).Attachment(at)
	if err == nil {
		_, err = c.Manager.Adopt(ctx, found)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// takeOverStale adopts what flannel's own plugin has left of containers that are
// no longer valid, so that GC removes it.
func takeOverStale(ctx context.Context, c *plugin.Call) error {
	valid, _ := c.Valid() // GC says what is wrong with it
	if valid == nil {
		return nil
	}
	var errs []error
	for found, err := range recorded(c).Stale(valid) {
		if err == nil {
			_, err = c.Manager.Adopt(ctx, found)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}
