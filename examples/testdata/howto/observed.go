package main

import (
	"context"
	"testing"

	"github.com/containernetworking/cni/pkg/skel"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/delegatetest"
	"github.com/metacni/metacni/delegate/plugin"
	"github.com/metacni/metacni/netconf"
)

// The Observer of the process goes on.
func TestObserverOfTheProcessStays(t *testing.T) {
	p := plugin.Plugin{StateDir: t.TempDir(), Prepare: observed, Networks: func(context.Context, *plugin.Call) ([]netconf.Network, error) {
		n, err := netconf.Parse([]byte(`{"cniVersion":"1.1.0","name":"n","type":"bridge"}`))
		return []netconf.Network{n}, err
	}}
	told := 0
	process := plugin.System{
		Exec: &delegatetest.Exec{Plugins: map[string]delegatetest.Fake{"bridge": delegatetest.Result(nil)}},
		Observer: func(ctx context.Context, _ delegate.Event) (context.Context, func(error)) {
			return ctx, func(error) { told++ }
		},
	}
	err := p.Do(t.Context(), process, "STATUS", skel.CmdArgs{Path: "/opt/cni/bin", StdinData: []byte(`{"cniVersion":"1.1.0","name":"n","type":"mine"}`)})
	if err != nil || told != 1 {
		t.Errorf("told %d times: %v", told, err)
	}
}
