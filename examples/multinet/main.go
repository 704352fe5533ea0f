// Multinet is a CNI meta-plugin in the manner of Multus: it attaches a
// container to several networks, all of them or none.
//
// The plugin is in the package multinet beside this file. The operator's tool,
// which is the same executable run by hand, is in the package tool.
package main

import (
	"context"
	"fmt"
	"os"

	"github.com/metacni/metacni/delegate/plugin"
	"github.com/metacni/metacni/examples/multinet/multinet"
	"github.com/metacni/metacni/examples/multinet/tool"
)

func main() {
	if os.Getenv("CNI_COMMAND") == "" && len(os.Args) > 1 {
		if err := tool.Run(context.Background(), os.Args[1:]); err != nil {
			fmt.Fprintln(os.Stderr, "multinet:", err)
			os.Exit(1)
		}
		return
	}
	plugin.Main(multinet.New())
}
