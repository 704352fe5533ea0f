package webhook_test

import (
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// A webhook reads what it is sent, and asks nobody.
func TestWebhookNeedsNoClient(t *testing.T) {
	t.Parallel()
	out, err := exec.CommandContext(t.Context(), "go", "list", "-deps", ".").Output()
	if err != nil {
		t.Fatal(err)
	}
	for _, banned := range []string{"k8s.io/client-go", "google.golang.org/grpc", "sigs.k8s.io/controller-runtime"} {
		if slices.ContainsFunc(strings.Fields(string(out)), func(dep string) bool { return dep == banned || strings.HasPrefix(dep, banned+"/") }) {
			t.Errorf("package webhook depends on %s", banned)
		}
	}
}
