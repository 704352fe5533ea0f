package shim

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/metacni/metacni/internal/nodetest"
)

// The shim stays small.
func TestNoHeavyDependencies(t *testing.T) {
	t.Parallel()
	cmd := exec.CommandContext(t.Context(), "go", "list", "-deps", ".")
	cmd.Env = append(os.Environ(), "GOOS=linux", "CGO_ENABLED=0", "GOFLAGS=")
	out, err := cmd.Output()
	nodetest.OK(t, err)
	for dep := range strings.Lines(string(out)) {
		switch dep = strings.TrimSpace(dep); dep {
		case "net/http", "net/textproto", "encoding/xml", "log/slog", "os/exec", "crypto/tls", "testing",
			"github.com/vishvananda/netlink", "github.com/containernetworking/cni/libcni", "github.com/containernetworking/cni/pkg/invoke":
			t.Errorf("depends on %s", dep)
		}
	}
}
