// Multinet is a CNI meta-plugin of Multus's kind: it attaches a container to several
// networks, to all of them or to none.
//
// The plugin is in package plugin. The same executable, run by hand, is the operator's
// tool, in package tool. Package publish is shared with the daemon.
//
//go:debug updatemaxprocs=0
package main

import (
	"context"
	"os"

	"github.com/metacni/metacni/delegate/plugin"
	multinet "github.com/metacni/metacni/examples/multinet/plugin"
	"github.com/metacni/metacni/examples/multinet/tool"
)

func main() {
	if os.Getenv("CNI_COMMAND") == "" && len(os.Args) > 1 {
		os.Exit(tool.Run(context.Background(), os.Args[1:], plugin.OfProcess()))
	}
	plugin.Main(multinet.New(multinet.Cluster{}))
}
