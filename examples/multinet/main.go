// Multinet is a CNI meta-plugin in the manner of Multus: it attaches a
// container to several networks, all of them or none.
//
// The plugin is in plugin.go, its configuration in config.go, what is attached
// in networks.go, the operator's commands in tool.go.
package main

import (
	"context"
	"fmt"
	"os"

	"github.com/containernetworking/cni/pkg/skel"

	"github.com/metacni/metacni/examples/internal/program"
)

func main() {
	if os.Getenv("CNI_COMMAND") == "" && len(os.Args) > 1 {
		if err := operate(os.Args[1:], os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, "multinet:", err)
			os.Exit(1)
		}
		return
	}
	program.Main("CNI meta-plugin multinet", func(ctx context.Context, p program.Process) skel.CNIFuncs {
		return (&plugin{p}).commands(ctx)
	})
}
