package main

import (
	"context"
	"errors"
	"io/fs"

	"github.com/metacni/metacni/delegate/lifecycle"
	"github.com/metacni/metacni/delegate/plugin"
	"github.com/metacni/metacni/netconf"
	"github.com/metacni/metacni/status"
)

const (
	defaultSubnetFile = "/run/flannel/subnet.env"
	defaultDataDir    = "/var/lib/cni/flannel"
)

func flannel() plugin.Plugin {
	return plugin.Plugin{
		About:    "CNI meta-plugin flannel",
		StateDir: defaultDataDir, StateKey: "dataDir",
		Forget: "multinet forget",
		Add:    add, Check: check, Del: del, GC: gc, Status: ready,
	}
}

func add(ctx context.Context, c *plugin.Call) error {
	n, err := network(c)
	if err != nil {
		return err
	}
	return c.Add(ctx, lifecycle.Transaction{Plan: lifecycle.Plan(c.Attachment(n))})
}

func check(ctx context.Context, c *plugin.Call) error {
	if err := takeOver(ctx, c); err != nil {
		return err
	}
	return c.Check(ctx)
}

func del(ctx context.Context, c *plugin.Call) error {
	if err := takeOver(ctx, c); err != nil {
		return err
	}
	return c.Del(ctx)
}

// gc collects what is recorded, also while flanneld has not come up.
func gc(ctx context.Context, c *plugin.Call) error {
	var nets []netconf.Network
	n, err := network(c)
	switch {
	case err == nil:
		nets = append(nets, n)
	case errors.Is(err, fs.ErrNotExist):
		err = nil
	}
	adopted := takeOverStale(ctx, c)
	return errors.Join(c.GC(ctx, nets...), err, adopted)
}

// ready is not ready without a subnet.env that can be read. A mistake in the
// configuration itself is an error: waiting does not mend it.
func ready(ctx context.Context, c *plugin.Call) error {
	n, err := network(c)
	var file *subnetError
	switch {
	case errors.As(err, &file):
		return status.NotReady(err)
	case err != nil:
		return err
	}
	return c.Status(ctx, n)
}
