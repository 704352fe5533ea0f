package dra

import (
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/metacni/metacni/internal/nodetest"
)

// A daemon without ResourceClaims does not pay for them: the module of package kube knows
// nothing of the one here.
func TestKubeDoesNotNeedThisModule(t *testing.T) {
	t.Parallel()
	cmd := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Path}}", "all")
	cmd.Dir = ".."
	out, err := cmd.Output()
	nodetest.OK(t, err)
	modules := strings.Fields(string(out))
	if !slices.Contains(modules, "k8s.io/client-go") {
		t.Fatalf("modules: %v", modules)
	}
	for _, banned := range []string{"k8s.io/dynamic-resource-allocation", "k8s.io/apiserver", "github.com/metacni/metacni/delegate/kube/dra"} {
		if slices.Contains(modules, banned) {
			t.Errorf("delegate/kube requires %s", banned)
		}
	}
}
