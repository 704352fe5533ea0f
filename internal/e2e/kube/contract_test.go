package kube

import (
	"os"
	"os/exec"
	"testing"

	"github.com/metacni/metacni/internal/e2e/kube/server"
)

// kube-apiserver passes the tests that package kubetest, the server of delegate/kube's tests,
// passes.
func TestServerKeepsTheContractOfKubetest(t *testing.T) {
	t.Parallel()
	w := world(t)
	cmd := exec.CommandContext(t.Context(), "go", "test", "-C", "../../../delegate/kube", "-count=1", "-run", "^TestContract", "./kubetest")
	cmd.Env = append(os.Environ(), "GOWORK=off", "METACNI_CONTRACT="+w.Kubeconfig(t, server.AdminToken))
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}
