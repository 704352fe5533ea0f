package main

import (
	"context"
	"fmt"
	"io"
	"path/filepath"
	"testing"

	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/skel"

	"github.com/metacni/metacni/delegate/delegatetest"
	"github.com/metacni/metacni/delegate/thick/shim"
)

// Shim and daemon together do what the specification wants of a plugin that
// delegates.
func TestConform(t *testing.T) {
	t.Parallel()
	delegatetest.Conform(t, delegatetest.Program{New: func(ctx context.Context, exec invoke.Exec, environ []string, stdout io.Writer) skel.CNIFuncs {
		w := newWorld(t, "")
		w.exec = exec
		// The records outlive the daemon, as they do in life.
		w.server.Override = nil
		w.server.HotPlug = nil
		w.start(t)
		c := &shim.Client{Socket: w.client.Socket, Env: environ, Stdout: stdout}
		return c.Funcs(ctx)
	}}, delegatetest.Config{
		Stdin: func(dir string) string {
			return fmt.Sprintf(`{"type":"multinet-shim","cniDir":%q,"confDir":%[1]q,"binDir":%q,"delegates":[
				{"type":"bridge"}, {"name":"storage","plugins":[{"type":"macvlan"},{"type":"tuning"}]}
			]}`, filepath.Join(dir, "state"), filepath.Join(dir, "no", "bin"))
		},
		Delegates: []string{"bridge", "macvlan", "tuning"},
		Skip:      map[string]string{"environment": "a daemon hands on PATH and the trace alone (S28)"},
	})
}
