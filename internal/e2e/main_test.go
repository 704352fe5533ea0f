package e2e

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/metacni/metacni/delegate/conform/host"
	"github.com/metacni/metacni/internal/test/process"
)

// stepping is the directory of the plugins that log their steps and can be
// killed at each of them.
const stepping = "stepping"

// long is for the numbers of trials in the fault matrix. Otherwise there are about a tenth.
var long = flag.Bool("long", false, "many more random kills, damages and steps")

func TestMain(m *testing.M) {
	os.Exit(host.Tests{Build: build}.Main(m))
}

// build builds everything that the tests run.
func build(ctx context.Context, dir string) error {
	list := exec.CommandContext(ctx, "go", "list", "tool")
	list.Stderr = os.Stderr
	tools, err := list.Output()
	if err != nil {
		return fmt.Errorf("list the reference plugins: %w", err)
	}
	// There is no network on the private host.
	if out, err := exec.CommandContext(ctx, "go", "mod", "graph").CombinedOutput(); err != nil {
		return fmt.Errorf("read the module graph: %w\n%s", err, out)
	}
	if err := publish(ctx, filepath.Join(dir, "proxy")); err != nil {
		return err
	}
	static := []string{"CGO_ENABLED=0"} // as released; a C library opens more files, depending on the number of threads
	for _, b := range []struct {
		module string
		dir    string // below dir
		args   []string
	}{
		{"../..", "", []string{
			"./examples/flannel", "./examples/fallback", "./examples/policy", "./examples/lab", "./examples/resident",
			"./internal/test/process/fake",
		}},
		{"../..", stepping, []string{"-tags=metacni_steps", "./examples/flannel", "./examples/fallback"}},
		{"../../examples/multinet", "", []string{"./cmd/..."}},
		{"../../examples/multinet", stepping, []string{"-tags=metacni_steps", "./cmd/..."}},
		{".", "", append(strings.Fields(string(tools)), "./testdata/noop", "./testdata/simple", "./testdata/claims")},
	} {
		if err := (process.Build{Env: static, Args: b.args}).Run(ctx, b.module, filepath.Join(dir, b.dir)); err != nil {
			return err
		}
	}
	if err := buildPrevious(ctx, filepath.Join(dir, previous)); err != nil { // not every clone has the history
		if err := os.WriteFile(filepath.Join(dir, previous+".missing"), []byte(err.Error()), 0o600); err != nil {
			return err
		}
	}
	return errors.Join(requireCNI(ctx, dir, "multinet"), requireCNI(ctx, dir, "flannel"))
}

// laterCNI is a version of the cni library above the one in go.mod. Its pkg/invoke has
// OpenTelemetry. It is what a program gets that requires it.
const laterCNI = "v1.3.1"

// requireCNI writes the go.mod file of the module of a measured program, with laterCNI, to
// dir/PROGRAM.mod.
func requireCNI(ctx context.Context, dir, program string) error {
	module := measured[program].module
	for _, kind := range []string{".mod", ".sum"} {
		text, err := os.ReadFile(filepath.Join(module, "go"+kind))
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, program+kind), text, 0o600)
		}
		if err != nil {
			return err
		}
	}
	cmd := exec.CommandContext(ctx, "go", "get", "-modfile="+filepath.Join(dir, program+".mod"), "github.com/containernetworking/cni@"+laterCNI)
	cmd.Dir = module
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("require cni %s: %w\n%s", laterCNI, err, out)
	}
	return nil
}

// built returns the path of an executable.
func built(name string) string { return filepath.Join(host.Programs(), name) }
