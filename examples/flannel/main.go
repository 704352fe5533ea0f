// Flannel is a CNI meta-plugin in the manner of flannel's: it completes the
// configuration of one delegated plugin with what flanneld wrote down about
// this host's subnet, and remembers what it made of it until DEL.
//
// The plugin is in plugin.go, what it reads from flanneld in subnet.go, the
// configuration it makes of both in network.go.
package main

import (
	"context"

	"github.com/containernetworking/cni/pkg/skel"

	"github.com/metacni/metacni/examples/internal/program"
)

func main() {
	program.Main("CNI meta-plugin flannel", func(ctx context.Context, p program.Process) skel.CNIFuncs {
		return (&plugin{p}).commands(ctx)
	})
}
