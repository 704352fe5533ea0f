package kube

import (
	"encoding/json"
	"os"
	"os/exec"
	"testing"

	"github.com/metacni/metacni/internal/e2e/kube/server"
)

// kube-apiserver passes the tests that package kubetest, the server of all other tests, passes.
func TestServerKeepsTheContractOfKubetest(t *testing.T) {
	t.Parallel()
	w := world(t)
	ca, err := os.ReadFile(w.CA)
	if err != nil {
		t.Fatal(err)
	}
	endpoint, err := json.Marshal(map[string]any{"URL": w.URL, "Token": server.AdminToken, "CA": ca})
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "go", "test", "-C", "../../..", "-count=1", "-run", "^TestContract", "./internal/test/kube")
	cmd.Env = append(os.Environ(), "GOWORK=off", "METACNI_CONTRACT="+string(endpoint))
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}
