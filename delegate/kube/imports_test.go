package kube_test

import (
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// The requirements of podresources are in the same module, but programs that only need
// the API of the cluster must not link them.
func TestKubeItselfNeedsNoGRPC(t *testing.T) {
	t.Parallel()
	out, err := exec.CommandContext(t.Context(), "go", "list", "-deps", ".").Output()
	if err != nil {
		t.Fatal(err)
	}
	for _, banned := range []string{"google.golang.org/grpc", "k8s.io/kubelet", "sigs.k8s.io/controller-runtime", "github.com/k8snetworkplumbingwg"} {
		if slices.ContainsFunc(strings.Fields(string(out)), func(dep string) bool { return dep == banned || strings.HasPrefix(dep, banned+"/") }) {
			t.Errorf("package kube depends on %s", banned)
		}
	}
}
