package kube

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/metacni/metacni/delegate/kube"
	"github.com/metacni/metacni/internal/e2e/kube/server"
)

const startupTaint = "multinetd.metacni.io/not-ready"

// taints are those of a node, without the one that the server gives to new nodes.
func taints(t *testing.T, s *server.Server, node string) (all []string) {
	t.Helper()
	got, err := s.Core(t, s.Admin()).Nodes().Get(t.Context(), node, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, taint := range got.Spec.Taints {
		if taint.Key != corev1.TaintNodeNotReady {
			all = append(all, taint.ToString())
		}
	}
	return all
}

// The component gives the daemon the right to remove one taint from its own node, and
// nothing else of any node.
func TestDaemonRemovesTheStartupTaintOfItsNode(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	s.Deploy(t)
	s.DeployWith(t, "taint")
	for _, name := range []string{daemonNode, otherNode} {
		node := &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"kept": "x"}, Annotations: map[string]string{"kept": "x"}},
			Spec: corev1.NodeSpec{Taints: []corev1.Taint{
				{Key: "a", Effect: corev1.TaintEffectNoSchedule}, {Key: startupTaint, Effect: corev1.TaintEffectNoSchedule}, {Key: "b", Value: "c", Effect: corev1.TaintEffectNoSchedule},
			}},
		}
		if _, err := s.Core(t, s.Admin()).Nodes().Create(t.Context(), node, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	pod := s.DaemonPod(t, daemonNode)
	if command := pod.Spec.Containers[0].Command; !slices.Contains(command, "--startup-taint="+startupTaint) {
		t.Errorf("the daemon is started as %q", command)
	}
	token := s.Token(t, pod.Namespace, pod.Spec.ServiceAccountName, pod)
	path := "/api/v1/nodes/" + daemonNode
	n := 0
	eventually(t, func() bool { // until the policy is enforced
		n++
		patch := fmt.Sprintf(`{"metadata":{"annotations":{"unwanted":"%d"}}}`, n)
		return request(t, s.As(token), http.MethodPatch, path, patch).Code == http.StatusUnprocessableEntity
	})
	const (
		own  = "only change its own node"
		only = "only remove the taint"
		rest = "anything else of its node"
	)
	for name, tt := range map[string]struct{ node, patch, text string }{
		"of another node":           {otherNode, `{"metadata":{"labels":{"new":"x"}}}`, own},
		"the taint of another node": {otherNode, `[{"op":"remove","path":"/spec/taints/1"}]`, own},
		"all taints":                {daemonNode, `{"spec":{"taints":null}}`, only},
		"another taint":             {daemonNode, `[{"op":"remove","path":"/spec/taints/0"}]`, only},
		"the value of a taint":      {daemonNode, `[{"op":"replace","path":"/spec/taints/2/value","value":"x"}]`, only},
		"a taint in place of it":    {daemonNode, `[{"op":"replace","path":"/spec/taints/1/key","value":"new"}]`, only},
		"a new taint":               {daemonNode, `[{"op":"add","path":"/spec/taints/-","value":{"key":"new","effect":"NoExecute"}}]`, only},
		"it and another taint":      {daemonNode, `[{"op":"remove","path":"/spec/taints/1"},{"op":"remove","path":"/spec/taints/0"}]`, only},
		"an annotation":             {daemonNode, `{"metadata":{"annotations":{"kept":"y"}}}`, rest},
		"a label":                   {daemonNode, `{"metadata":{"labels":{"kept":null}}}`, rest},
		"a finalizer":               {daemonNode, `{"metadata":{"finalizers":["x.io/y"]}}`, rest},
		"an owner":                  {daemonNode, `{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"Pod","name":"x","uid":"x"}]}}`, rest},
		"whether it is cordoned":    {daemonNode, `{"spec":{"unschedulable":true}}`, rest},
		"where its provider has it": {daemonNode, `{"spec":{"providerID":"x://y"}}`, rest},
		"its addresses for pods":    {daemonNode, `{"spec":{"podCIDR":"10.1.0.0/24","podCIDRs":["10.1.0.0/24"]}}`, rest},
	} {
		kind := types.MergePatchType
		if tt.patch[0] == '[' {
			kind = types.JSONPatchType
		}
		if got := requestAs(t, s.As(token), http.MethodPatch, "/api/v1/nodes/"+tt.node, string(kind), tt.patch); got.Code != http.StatusUnprocessableEntity || !strings.Contains(got.Body, tt.text) {
			t.Errorf("%s: got %d %.400s\nwant %s", name, got.Code, got.Body, tt.text)
		}
	}
	request(t, s.As(token), http.MethodPatch, path+"/status", `{"status":{"phase":"x"}}`).is(t, http.StatusForbidden, "")
	request(t, s.As(token), http.MethodGet, "/api/v1/nodes", "").is(t, http.StatusForbidden, "")
	request(t, s.As(token), http.MethodPut, path, `{}`).is(t, http.StatusForbidden, "")

	view, err := kube.Open(t.Context(), kube.Config{Kubeconfig: s.Kubeconfig(t, token), Node: daemonNode})
	if err != nil {
		t.Fatal(err)
	}
	defer view.Close()
	if err := view.RemoveTaint(t.Context(), startupTaint); err != nil {
		t.Fatal(err)
	}
	if got := taints(t, s, daemonNode); !slices.Equal(got, []string{"a:NoSchedule", "b=c:NoSchedule"}) {
		t.Errorf("taints %q", got)
	}
	if got := taints(t, s, otherNode); len(got) != 3 {
		t.Errorf("taints of the other node %q", got)
	}
}

// While the daemon removes its taint, others add and remove theirs: none of these changes
// is lost.
func TestTaintsOfOthersAreNeverLost(t *testing.T) {
	t.Parallel()
	s := cluster(t)
	const node, rounds = "node-of-many", 8
	s.Node(t, node)
	view, err := kube.Open(t.Context(), kube.Config{Kubeconfig: s.Kubeconfig(t, server.AdminToken), Node: node})
	if err != nil {
		t.Fatal(err)
	}
	defer view.Close()
	for i := range rounds {
		s.Kubectl(t, "", "taint", "node", node, startupTaint+":NoSchedule")
		removed := make(chan error, 1)
		go func() { removed <- view.RemoveTaint(t.Context(), startupTaint) }()
		s.Kubectl(t, "", "taint", "node", node, fmt.Sprintf("t%d:NoSchedule", i))
		if err := <-removed; err != nil {
			t.Fatal(err)
		}
	}
	if got := taints(t, s, node); len(got) != rounds || slices.ContainsFunc(got, func(taint string) bool { return strings.HasPrefix(taint, startupTaint) }) {
		t.Errorf("taints %q", got)
	}
}
