// Multinet is a CNI meta-plugin in the manner of Multus: it attaches a
// container to several networks, all of them or none.
//
// This file is all that touches the process. The plugin itself is in plugin.go,
// what is attached in networks.go, the operator's commands in tool.go.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/version"

	"github.com/metacni/metacni/delegate"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	// A result that nobody reads is an error to undo the ADD for, not our end.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)

	if os.Getenv("CNI_COMMAND") == "" && len(os.Args) > 1 {
		if err := operate(os.Args[1:], os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, "multinet:", err)
			os.Exit(1)
		}
		return
	}
	p := &plugin{
		exec:        &delegate.Process{Stderr: os.Stderr},
		env:         os.Environ(),
		stdout:      os.Stdout,
		undoTimeout: undoTimeout,
	}
	if err := skel.PluginMainFuncsWithError(p.funcs(ctx), version.All, "CNI meta-plugin multinet"); err != nil {
		report(p.version, err)
		os.Exit(1)
	}
}

// report prints the error object of the specification (section "Error").
func report(cniVersion string, err *types.Error) {
	if cniVersion == "" {
		cniVersion = version.Current()
	}
	_ = json.NewEncoder(os.Stdout).Encode(struct {
		CNIVersion string `json:"cniVersion"`
		*types.Error
	}{cniVersion, err}) // nobody is left to tell of a failure
}
