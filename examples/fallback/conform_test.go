package main

import (
	"context"
	"fmt"
	"io"
	"path/filepath"
	"testing"

	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/skel"

	"github.com/metacni/metacni/delegate/delegatetest"
	"github.com/metacni/metacni/examples/internal/program"
	"github.com/metacni/metacni/status"
)

// Fallback does what the specification wants of a plugin that delegates.
func TestConform(t *testing.T) {
	t.Parallel()
	delegatetest.Conform(t, delegatetest.Program{New: func(ctx context.Context, exec invoke.Exec, environ []string, stdout io.Writer) skel.CNIFuncs {
		do := (&plugin{program.Process{
			Exec: exec, Env: environ, Stdout: stdout,
			InterfaceNames: func(string) ([]string, error) { return nil, nil },
		}}).commands(ctx)
		for _, command := range []*func(*skel.CmdArgs) error{&do.Add, &do.Check, &do.Del, &do.GC, &do.Status} {
			callback := *command
			*command = func(args *skel.CmdArgs) error { return status.Error(callback(args)) } // as program.Main does
		}
		return do
	}}, delegatetest.Config{
		Stdin: func(dir string) string {
			return fmt.Sprintf(`{"type":"fallback","cniDir":%q,"choices":[{"type":"sriov"},{"name":"spare","plugins":[{"type":"macvlan"},{"type":"tuning"}]},{"type":"bridge"}]}`,
				filepath.Join(dir, "state"))
		},
		Delegates: []string{"sriov"},
		Idle:      []string{"macvlan", "tuning", "bridge"},
	})
}
