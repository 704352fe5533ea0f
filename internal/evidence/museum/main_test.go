package museum

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/metacni/metacni/internal/hosttest"
)

func TestMain(m *testing.M) {
	os.Exit(hosttest.Host{Needs: iptables, Build: build}.Main(m))
}

// systemPath is the PATH of the plugins, which run iptables.
const systemPath = "/usr/sbin:/usr/bin:/sbin:/bin"

// iptables fails where the plugins cannot make rules.
func iptables(context.Context) error {
	for _, dir := range filepath.SplitList(systemPath) {
		if _, err := exec.LookPath(filepath.Join(dir, "iptables-save")); err == nil {
			return nil
		}
	}
	return errors.New("needs iptables and iptables-save")
}

// build builds our programs, cnitool and the reference plugins.
func build(ctx context.Context, dir string) error {
	const root, e2e = "../../..", "../../e2e"
	list := exec.CommandContext(ctx, "go", "list", "tool")
	list.Dir, list.Stderr = e2e, os.Stderr
	tools, err := list.Output()
	if err != nil {
		return fmt.Errorf("list the reference plugins: %w", err)
	}
	for module, packages := range map[string][]string{
		root:                         {"./examples/multinet", "./examples/flannel", "./examples/multinet-shim"},
		root + "/examples/multinetd": {"."},
		e2e:                          append(strings.Fields(string(tools)), "./fake"),
	} {
		cmd := exec.CommandContext(ctx, "go", slices.Concat([]string{"build", "-trimpath", "-buildvcs=false", "-o", dir + "/"}, packages)...)
		cmd.Dir, cmd.Env = module, append(os.Environ(), "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("build %v: %w\n%s", packages, err, out)
		}
	}
	return nil
}

// built returns the path of a program.
func built(name string) string { return filepath.Join(hosttest.Programs(), name) }
