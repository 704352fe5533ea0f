// Multinet-shim is what the runtime runs where multinet is a daemon: it hands
// each command to examples/multinetd over a unix socket and prints what that
// answers. Its own part of the configuration is in plugin.go, and told of in
// examples/multinetd/README.md.
package main

import (
	"context"
	"os"

	"github.com/containernetworking/cni/pkg/skel"

	"github.com/metacni/metacni/examples/internal/multinet"
	"github.com/metacni/metacni/examples/internal/program"
)

func main() {
	program.Run("CNI meta-plugin multinet-shim", func(ctx context.Context) skel.CNIFuncs {
		p := &plugin{env: os.Environ(), stdout: os.Stdout, del: func(ctx context.Context, a *skel.CmdArgs) error {
			return (&multinet.Plugin{Process: program.OfProcess()}).Del(ctx, a)
		}}
		return p.commands(ctx)
	})
}
