// Fallback is a CNI meta-plugin that attaches a container to the first network
// that works, of those in its configuration.
package main

import (
	"context"

	"github.com/containernetworking/cni/pkg/skel"

	"github.com/metacni/metacni/examples/internal/program"
)

func main() {
	program.Main("CNI meta-plugin fallback", func(ctx context.Context, p program.Process) skel.CNIFuncs {
		return (&plugin{p}).commands(ctx)
	})
}
