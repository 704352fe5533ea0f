package main

import (
	"context"
	"fmt"
	"path/filepath"
	"testing"

	"github.com/metacni/metacni/delegate/delegatetest"
	"github.com/metacni/metacni/delegate/plugin"
	"github.com/metacni/metacni/delegate/thick/shim"
)

// Shim and daemon together conform to the specification of a plugin that delegates.
func TestShimAndDaemonConformInMemory(t *testing.T) {
	t.Parallel()
	execute := func(ctx context.Context, c *plugin.Call) error {
		w := newWorld(t, "")
		w.exec = c.Exec
		// The records outlive the daemon.
		w.server.Override = nil
		w.server.Attach = nil
		w.start(t)
		client := &shim.Client{Socket: w.client.Socket, Env: c.Env, Stdout: c.Stdout}
		return client.Execute(ctx, string(c.Command), &c.CmdArgs)
	}
	both := plugin.Plugin{Add: execute, Check: execute, Del: execute, GC: execute, Status: execute}
	delegatetest.Conform(t, delegatetest.Program(both.Execute), delegatetest.Config{
		Stdin: func(dir string) string {
			return fmt.Sprintf(`{"type":"multinet-shim","cniDir":%q,"confDir":%[1]q,"binDir":%q,"delegates":[
				{"type":"bridge"}, {"name":"storage","plugins":[{"type":"macvlan"},{"type":"tuning"}]}
			]}`, filepath.Join(dir, "state"), filepath.Join(dir, "no", "bin"))
		},
		Delegates: []string{"bridge", "macvlan", "tuning"},
		Skip:      map[string]string{"environment": "a daemon hands on PATH and the trace alone"},
	})
}
