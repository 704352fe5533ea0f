// Multinet is a CNI meta-plugin of Multus's kind: it attaches a container to several
// networks, to all of them or to none.
//
// The plugin is in the sub-package multinet. The same executable, run by hand, is the
// operator's tool, in the sub-package tool. The sub-package publish is shared with
// examples/multinetd.
//
//go:debug updatemaxprocs=0
package main

import (
	"context"
	"os"

	"github.com/metacni/metacni/delegate/plugin"
	"github.com/metacni/metacni/examples/multinet/multinet"
	"github.com/metacni/metacni/examples/multinet/tool"
)

func main() {
	if os.Getenv("CNI_COMMAND") == "" && len(os.Args) > 1 {
		os.Exit(tool.Run(context.Background(), os.Args[1:], plugin.OfProcess()))
	}
	plugin.Main(multinet.New(multinet.Cluster{}))
}
