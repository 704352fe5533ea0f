// Multinet-shim is the executable that a runtime runs if multinet is a daemon. It sends
// each command to multinetd over a unix socket and prints the answer. While the
// daemon is away it executes DELs itself (daemonless.go). Its own
// keys of the configuration are in plugin.go; see examples/multinet/daemon/README.md.
//
//go:debug updatemaxprocs=0
package main

import (
	"fmt"
	"os"

	"github.com/metacni/metacni/delegate/plugin"
)

const usage = `usage: multinet-shim [--help]
A container runtime executes multinet-shim as a CNI plugin: with CNI_COMMAND in
the environment, and a configuration of "type": "multinet-shim" on stdin. It
sends the command to multinetd, which publishes that configuration. Without
arguments it prints its version. To see the attachments of a node, use multinet
list; if something does not work, multinetd doctor.`

func main() {
	if os.Getenv("CNI_COMMAND") == "" && len(os.Args) > 1 {
		fmt.Println(usage)
		return
	}
	plugin.Main(multinetShim())
}
