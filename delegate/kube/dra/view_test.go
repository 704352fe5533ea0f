package dra

import (
	"testing"

	"k8s.io/client-go/kubernetes"

	"github.com/metacni/metacni/delegate/kube"
	"github.com/metacni/metacni/internal/nodetest"
)

// A daemon has one way to the API server: that of its View, which reads the credentials again
// when they change.
func TestTheDriverSharesTheCredentialsOfAView(t *testing.T) {
	t.Parallel()
	n := newNode(t, nil)
	dir := t.TempDir()
	n.server.SetToken("first")
	file, err := n.server.Kubeconfig(dir)
	nodetest.OK(t, err)
	view, err := kube.Open(t.Context(), kube.Config{Kubeconfig: file, UserAgent: "daemon"})
	nodetest.OK(t, err)
	t.Cleanup(view.Close)
	set, err := kubernetes.NewForConfigAndClient(view.REST())
	nodetest.OK(t, err)
	n.config.Client = set
	n.restart(t)
	k := n.kubelet(t)
	mustPrepare(t, k, n.server.SetClaim(newClaim("a", nil)))
	n.server.SetToken("second")
	if _, err := n.server.Kubeconfig(dir); err != nil {
		t.Fatal(err)
	}
	mustPrepare(t, k, n.server.SetClaim(newClaim("b", nil)))
	n.attach(t, "pod-web")
	n.await(t, "written", n.ready("b", "True"))
	for _, r := range n.server.Requests() {
		if r.Verb == "update" && r.UserAgent != "daemon" {
			t.Errorf("the UserAgent is %q", r.UserAgent)
		}
	}
}
