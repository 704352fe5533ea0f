package kube

import (
	"context"
	"os"
	"slices"
	"testing"

	"github.com/metacni/metacni/internal/e2e/kube/server"
	"github.com/metacni/metacni/internal/hosttest"
	"github.com/metacni/metacni/internal/test/process"
)

// programsEnv is the directory of the server's programs. It is not set if there are none.
const programsEnv = "METACNI_E2E_PROGRAMS"

func TestMain(m *testing.M) {
	if os.Getenv(clusterEnv) != "" {
		os.Exit(m.Run())
	}
	code := hosttest.Host{
		Needs: func(ctx context.Context) error {
			dir, err := server.Programs(ctx)
			if err != nil {
				return err
			}
			return os.Setenv(programsEnv, dir)
		},
		Build: func(ctx context.Context, bin string) error {
			return process.Node(ctx, bin, slices.Clone(confinedPlugins)...)
		},
	}.Main(m)
	if shared.Server != nil {
		shared.Close()
	}
	os.Exit(code)
}
