package kube

import (
	"fmt"
	"net/http"
	"regexp"
	"strconv"
	"testing"

	"github.com/metacni/metacni/delegate/kube"
	"github.com/metacni/metacni/internal/e2e/kube/server"
	"github.com/metacni/metacni/netconf/nad"
)

// dispatched returns how many requests of a flow schema the API server has served in a
// priority level.
func dispatched(t *testing.T, s *server.Server, schema, level string) int {
	t.Helper()
	text := request(t, s.Admin(), http.MethodGet, "/metrics", "").Body
	labels := fmt.Sprintf(`flow_schema=%q,priority_level=%q`, schema, level)
	found := regexp.MustCompile(`(?m)^apiserver_flowcontrol_dispatched_requests_total\{` + labels + `\} (\d+)$`).FindStringSubmatch(text)
	if found == nil {
		return 0
	}
	n, err := strconv.Atoi(found[1])
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// With the component, the requests of the daemon are in a priority level of their own, and
// those of other accounts of kube-system stay in theirs.
func TestRequestsOfTheDaemonHaveAPriorityLevel(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	s.Deploy(t)
	s.DeployWith(t, "priority")
	s.Node(t, daemonNode)
	pod := s.DaemonPod(t, daemonNode)
	token := s.Token(t, pod.Namespace, pod.Spec.ServiceAccountName, pod)
	own := func() int { return dispatched(t, s, "multinetd", "multinetd") }
	shared := func() int { return dispatched(t, s, "kube-system-service-accounts", "workload-high") }
	const path = "/apis/k8s.cni.cncf.io/v1/network-attachment-definitions"
	eventually(t, func() bool { // until the API server has read the level and the CRD
		return request(t, s.As(token), http.MethodGet, path, "").Code == http.StatusOK && own() > 0
	})

	before, others := own(), shared()
	view, err := kube.Open(t.Context(), kube.Config{Kubeconfig: s.Kubeconfig(t, token), Node: daemonNode})
	if err != nil {
		t.Fatal(err)
	}
	defer view.Close()
	if _, err := view.Definition(t.Context(), nad.Ref{Namespace: "default", Name: "none"}); err == nil {
		t.Error("a definition that does not exist")
	}
	text, err := view.NetworkStatus(t.Context(), nad.Pod{Namespace: pod.Namespace, Name: pod.Name, UID: string(pod.UID)})
	if text != "" || err != nil {
		t.Errorf("network-status %q, %v", text, err)
	}
	if n := own() - before; n < 3 { // a watch, a GET and a PATCH
		t.Errorf("%d requests of the daemon in its level", n)
	}
	if n := shared() - others; n != 0 {
		t.Errorf("%d requests of the daemon in the level of kube-system", n)
	}

	before = own()
	s.Kubectl(t, "", "create", "serviceaccount", "-n", "kube-system", "other")
	request(t, s.As(s.Token(t, "kube-system", "other", nil)), http.MethodGet, path, "").is(t, http.StatusForbidden, "")
	if own() != before || shared() == others {
		t.Errorf("the request of another account is one of %d in the level of multinetd, and of %d in that of kube-system", own()-before, shared()-others)
	}
}
