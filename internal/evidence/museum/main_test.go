package museum

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/metacni/metacni/internal/hosttest"
	"github.com/metacni/metacni/internal/test/process"
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
		root:                         {"./examples/multinet", "./examples/flannel", "./examples/multinet-shim", "./internal/test/process/fake"},
		root + "/examples/multinetd": {"."},
		e2e:                          strings.Fields(string(tools)),
	} {
		if err := (process.Build{Env: []string{"CGO_ENABLED=0"}, Args: packages}).Run(ctx, module, dir); err != nil {
			return err
		}
	}
	return nil
}

// built returns the path of a program.
func built(name string) string { return filepath.Join(hosttest.Programs(), name) }
