// Multinet is a CNI meta-plugin in the manner of Multus: it attaches a
// container to several networks, all of them or none.
//
// The plugin is in examples/internal/multinet, the operator's commands are in
// tool.go, forget.go, sweep.go, adopt.go, install.go and uninstall.go.
package main

import (
	"context"
	"fmt"
	"os"

	"github.com/containernetworking/cni/pkg/skel"

	"github.com/metacni/metacni/examples/internal/multinet"
	"github.com/metacni/metacni/examples/internal/program"
)

func main() {
	if os.Getenv("CNI_COMMAND") == "" && len(os.Args) > 1 {
		if err := operate(context.Background(), os.Args[1:], terminal()); err != nil {
			fmt.Fprintln(os.Stderr, "multinet:", err)
			os.Exit(1)
		}
		return
	}
	program.Main("CNI meta-plugin multinet", func(ctx context.Context, p program.Process) skel.CNIFuncs {
		return (&multinet.Plugin{Process: p}).Commands(ctx)
	})
}

// terminal is the console of this process.
func terminal() console {
	in, err := os.Stdin.Stat()
	return console{
		in: os.Stdin, out: os.Stdout, ask: os.Stderr, terminal: err == nil && in.Mode()&os.ModeCharDevice != 0,
		self: os.Executable, process: program.OfProcess,
	}
}
