package main

import (
	"context"
	"errors"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/metacni/metacni/delegate/lifecycle"
	"github.com/metacni/metacni/delegate/plugin"
	"github.com/metacni/metacni/netconf"
	"github.com/metacni/metacni/status"
)

const (
	defaultSubnetFile = "/run/flannel/subnet.env"
	defaultDataDir    = "/var/lib/cni/flannel"
)

// flannel returns the plugin. STATUS is the standard one, which calls Networks.
// CHECK, DEL and GC also handle containers of flannel's own plugin.
func flannel() plugin.Plugin {
	return plugin.Plugin{
		About:    "CNI meta-plugin flannel",
		StateDir: defaultDataDir, StateKey: "dataDir",
		Forget: "multinet forget",
		Networks: func(_ context.Context, c *plugin.Call) ([]netconf.Network, error) {
			n, err := network(c)
			return []netconf.Network{n}, err
		},
		Add: add, Check: takenOver((*plugin.Call).Check), Del: takenOver((*plugin.Call).Del), GC: gc,
	}
}

// add gives the delegate no capability arguments: network has put runtimeConfig
// into its configuration, as flannel's own plugin does.
func add(ctx context.Context, c *plugin.Call) error {
	n, err := network(c)
	if err != nil {
		return err
	}
	return c.Add(ctx, lifecycle.Transaction{Plan: lifecycle.Plan(c.Attachment(n))})
}

// takenOver returns a command that first takes over the container if flannel's own plugin
// has attached it.
func takenOver(do func(*plugin.Call, context.Context) error) func(context.Context, *plugin.Call) error {
	return func(ctx context.Context, c *plugin.Call) error {
		if err := takeOver(ctx, c); err != nil {
			return err
		}
		return do(c, ctx)
	}
}

// gc removes stale attachments even if flanneld has not written subnet.env yet.
func gc(ctx context.Context, c *plugin.Call) error {
	var current []netconf.Network
	n, err := network(c)
	switch {
	case err == nil:
		current = append(current, n)
	case status.Code(err) == types.ErrTryAgainLater:
		err = nil
	}
	adopted := takeOverStale(ctx, c)
	return errors.Join(c.GC(ctx, current...), err, adopted)
}
