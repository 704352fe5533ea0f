package kube

import (
	"encoding/json"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/metacni/metacni/delegate/kube"
	"github.com/metacni/metacni/internal/e2e/kube/server"
	nodetest "github.com/metacni/metacni/internal/test/node"
	"github.com/metacni/metacni/netconf/nad"
)

const nads = "/apis/k8s.cni.cncf.io/v1/"

// rights returns what the API server says that a token may do.
func rights(t *testing.T, s *server.Server, token string) (rules []string) {
	t.Helper()
	got := request(t, s.As(token), http.MethodPost, "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews",
		`{"apiVersion":"authorization.k8s.io/v1","kind":"SelfSubjectRulesReview","spec":{"namespace":"default"}}`)
	var review authorizationv1.SelfSubjectRulesReview
	if err := json.Unmarshal([]byte(got.Body), &review); err != nil {
		t.Fatal(got, err)
	}
	for _, r := range review.Status.ResourceRules {
		rules = append(rules, strings.Join(slices.Concat(r.Verbs, r.APIGroups, r.Resources, r.ResourceNames), " "))
	}
	for _, r := range review.Status.NonResourceRules {
		rules = append(rules, strings.Join(slices.Concat(r.Verbs, r.NonResourceURLs), " "))
	}
	slices.Sort(rules)
	return rules
}

// wantRights fails the test unless a token gives these rights and no others, apart from what
// every client may do.
func wantRights(t *testing.T, s *server.Server, namespace, token string, want ...string) {
	t.Helper()
	s.Kubectl(t, "", "create", "serviceaccount", "-n", namespace, "anybody")
	want = append(want, rights(t, s, s.Token(t, namespace, "anybody", nil))...)
	slices.Sort(want)
	if diff := cmp.Diff(want, rights(t, s, token)); diff != "" {
		t.Errorf("rights (-want +got):\n%s", diff)
	}
}

// The API server says that the daemon's token gives these rights and no others.
func TestDaemonHasNoMoreRightsThanItNeeds(t *testing.T) {
	t.Parallel()
	w := world(t)
	wantRights(t, w.Server, w.Namespace(t), w.DaemonToken,
		"create patch events.k8s.io events",
		"list watch k8s.cni.cncf.io network-attachment-definitions",
		"patch  pods/status",
	)
}

// What the daemon does is allowed, and what it must not be able to do is refused.
func TestRequestsOfTheDaemon(t *testing.T) {
	t.Parallel()
	w := world(t)
	namespace := w.Namespace(t)
	pod := w.Pod(t, server.PodOn(daemonNode, namespace, "a"))
	w.Kubectl(t, definition(namespace, "green", `{"type":"macvlan"}`), "create", "-f", "-")
	core, events := "/api/v1/namespaces/"+namespace, "/apis/events.k8s.io/v1/namespaces/"+namespace+"/events"
	event := `{"apiVersion":"events.k8s.io/v1","kind":"Event","metadata":{"name":"e"},"eventTime":"2026-01-02T03:04:05.678901Z",
		"reportingController":"multinetd","reportingInstance":"multinetd-x","action":"Add","reason":"AddedInterface",
		"note":"net1","type":"Normal","regarding":{"kind":"Pod","namespace":"` + namespace + `","name":"a"}}`
	const annotation = `{"metadata":{"annotations":{"` + statusAnnotation + `":"[]"}}}`
	for _, tt := range []struct {
		verb, path, body string
		code             int
	}{
		{http.MethodGet, nads + "network-attachment-definitions", "", 200},
		{http.MethodGet, nads + "network-attachment-definitions?watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true&timeoutSeconds=1", "", 200},
		{http.MethodPatch, statusPath(pod), annotation, 200},
		{http.MethodPost, events, event, 201},
		{http.MethodPatch, events + "/e", `{"series":{"count":2,"lastObservedTime":"2026-01-02T03:04:06.678901Z"}}`, 200},

		{http.MethodGet, nads + "namespaces/" + namespace + "/network-attachment-definitions/green", "", 403},
		{http.MethodPatch, nads + "namespaces/" + namespace + "/network-attachment-definitions/green", annotation, 403},
		{http.MethodDelete, nads + "namespaces/" + namespace + "/network-attachment-definitions/green", "", 403},
		{http.MethodGet, core + "/pods/a", "", 403},
		{http.MethodGet, core + "/pods", "", 403},
		{http.MethodGet, "/api/v1/pods?fieldSelector=spec.nodeName=" + daemonNode, "", 403},
		{http.MethodGet, "/api/v1/pods?watch=1&fieldSelector=spec.nodeName=" + daemonNode, "", 403},
		{http.MethodPatch, core + "/pods/a", annotation, 403},
		{http.MethodPatch, core + "/pods/a/ephemeralcontainers", annotation, 403},
		{http.MethodPatch, core + "/pods/a/resize", annotation, 403},
		{http.MethodDelete, core + "/pods/a", "", 403},
		{http.MethodGet, statusPath(pod), "", 403},
		{http.MethodPut, statusPath(pod), `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a"}}`, 403},
		{http.MethodGet, events + "/e", "", 403},
		{http.MethodDelete, events + "/e", "", 403},
		{http.MethodPost, core + "/events", `{"apiVersion":"v1","kind":"Event"}`, 403},
		{http.MethodGet, core + "/secrets", "", 403},
		{http.MethodGet, core + "/configmaps", "", 403},
		{http.MethodGet, "/api/v1/nodes/" + daemonNode, "", 403},
		{http.MethodPatch, "/api/v1/nodes/" + daemonNode, annotation, 403},
		{http.MethodPost, "/api/v1/namespaces/kube-system/serviceaccounts/multinetd/token", `{"apiVersion":"authentication.k8s.io/v1","kind":"TokenRequest"}`, 403},
		{http.MethodGet, "/apis/resource.k8s.io/v1/resourceslices", "", 403},
	} {
		if got := request(t, w.As(w.DaemonToken), tt.verb, tt.path, tt.body); got.Code != tt.code {
			t.Errorf("%s %s: got %d, want %d\n%.300s", tt.verb, tt.path, got.Code, tt.code, got.Body)
		}
	}
}

// A token ends with the pod that it is bound to.
func TestTokenEndsWithItsPod(t *testing.T) {
	t.Parallel()
	w := world(t)
	namespace := w.Namespace(t)
	w.Kubectl(t, "", "create", "serviceaccount", "-n", namespace, "short")
	pod := server.PodOn(daemonNode, namespace, "a")
	pod.Spec.ServiceAccountName = "short"
	pod = w.Pod(t, pod)
	c := w.As(w.Token(t, namespace, "short", pod))
	request(t, c, http.MethodGet, "/api", "").is(t, 200, "")
	w.DeletePod(t, pod)
	eventually(t, func() bool { return request(t, c, http.MethodGet, "/api", "").Code == 401 })
}

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
	nodetest.OK(t, err)
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
	nodetest.OK(t, err)
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

const startupTaint = "multinetd.metacni.io/not-ready"

// taints are those of a node, without the one that the server gives to new nodes.
func taints(t *testing.T, s *server.Server, node string) (all []string) {
	t.Helper()
	got, err := s.Core(t, s.Admin()).Nodes().Get(t.Context(), node, metav1.GetOptions{})
	nodetest.OK(t, err)
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
	nodetest.OK(t, err)
	defer view.Close()
	nodetest.OK(t, view.RemoveTaint(t.Context(), startupTaint))
	if got := taints(t, s, daemonNode); !slices.Equal(got, []string{"a:NoSchedule", "b=c:NoSchedule"}) {
		t.Errorf("taints %q", got)
	}
	if got := taints(t, s, otherNode); len(got) != 3 {
		t.Errorf("taints of the other node %q", got)
	}
}

// With its right to patch pods/status, the daemon can change one annotation of the pods
// on its node.
func TestDaemonChangesOneAnnotationOfPodsOnItsNode(t *testing.T) {
	t.Parallel()
	w := world(t)
	namespace := w.Namespace(t)
	const (
		own     = "only change pods on its own node"
		one     = "only change the annotation " + statusAnnotation
		nothing = "may not change a pod's status, labels, finalizers or generateName"
	)
	tests := map[string]struct {
		node  string
		patch string // NAME and UID are replaced
		code  int
		text  string
	}{
		"the status of networks":                {daemonNode, `{"metadata":{"annotations":{"STATUS":"[]"}}}`, 200, `"STATUS":"[]"`},
		"with the UID":                          {daemonNode, `{"metadata":{"uid":"UID","annotations":{"STATUS":"[]"}}}`, 200, `"STATUS":"[]"`},
		"with the UID of another pod":           {daemonNode, `{"metadata":{"uid":"other","annotations":{"STATUS":"[]"}}}`, 422, `"field":"metadata.uid"`},
		"nothing, to learn what there is":       {daemonNode, `{"metadata":{"uid":"UID"}}`, 200, `"kept":"as before"`},
		"removed":                               {daemonNode, `{"metadata":{"annotations":{"STATUS":null}}}`, 200, ""},
		"of a pod on another node":              {otherNode, `{"metadata":{"annotations":{"STATUS":"[]"}}}`, 422, own},
		"of a pod on no node":                   {"", `{"metadata":{"annotations":{"STATUS":"[]"}}}`, 422, own},
		"another annotation, added":             {daemonNode, `{"metadata":{"annotations":{"STATUS":"[]","other":"x"}}}`, 422, one},
		"another annotation, changed":           {daemonNode, `{"metadata":{"annotations":{"kept":"changed"}}}`, 422, one},
		"another annotation, removed":           {daemonNode, `{"metadata":{"annotations":{"kept":null}}}`, 422, one},
		"all annotations, removed":              {daemonNode, `{"metadata":{"annotations":null}}`, 422, one},
		"another annotation in place of one":    {daemonNode, `{"metadata":{"annotations":{"kept":null,"other":"as before"}}}`, 422, one},
		"a label, added":                        {daemonNode, `{"metadata":{"labels":{"other":"x"}}}`, 422, nothing},
		"a label, changed":                      {daemonNode, `{"metadata":{"labels":{"app":"other"}}}`, 422, nothing},
		"labels, removed":                       {daemonNode, `{"metadata":{"labels":null}}`, 422, nothing},
		"a finalizer, added":                    {daemonNode, `{"metadata":{"finalizers":["test.io/kept","test.io/other"]}}`, 422, nothing},
		"finalizers, removed":                   {daemonNode, `{"metadata":{"finalizers":null}}`, 422, nothing},
		"generateName":                          {daemonNode, `{"metadata":{"generateName":"other-"}}`, 422, nothing},
		"status.message":                        {daemonNode, `{"status":{"message":"x"}}`, 422, nothing},
		"status.phase":                          {daemonNode, `{"status":{"phase":"Failed"}}`, 422, nothing},
		"status.conditions":                     {daemonNode, `{"status":{"conditions":[{"type":"Ready","status":"True"}]}}`, 422, nothing},
		"status.podIPs":                         {daemonNode, `{"status":{"podIP":"10.0.0.1","podIPs":[{"ip":"10.0.0.1"}]}}`, 422, nothing},
		"status.resourceClaimStatuses":          {daemonNode, `{"status":{"resourceClaimStatuses":[{"name":"c","resourceClaimName":"other"}]}}`, 422, nothing},
		"the status of networks, and a phase":   {daemonNode, `{"metadata":{"annotations":{"STATUS":"[]"}},"status":{"phase":"Failed"}}`, 422, nothing},
		"spec, which the server leaves":         {daemonNode, `{"spec":{"terminationGracePeriodSeconds":7}}`, 200, `"terminationGracePeriodSeconds":30`},
		"owner, which the server leaves":        {daemonNode, `{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"Pod","name":"x","uid":"x"}]}}`, 200, `"name":"NAME"`},
		"a node's name, which the server keeps": {otherNode, `{"spec":{"nodeName":"node-a"},"metadata":{"annotations":{"STATUS":"[]"}}}`, 422, own},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pod := server.PodOn(tt.node, namespace, "")
			pod.GenerateName = "pod-"
			pod.Labels = map[string]string{"app": "test"}
			pod.Annotations = map[string]string{"kept": "as before"}
			pod.Finalizers = []string{"test.io/kept"}
			pod.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "c", ResourceClaimName: new("claim")}}
			pod = w.Pod(t, pod)
			fill := strings.NewReplacer("STATUS", statusAnnotation, "UID", string(pod.UID), "NAME", pod.Name)
			got := request(t, w.As(w.DaemonToken), http.MethodPatch, statusPath(pod), fill.Replace(tt.patch))
			got.is(t, tt.code, fill.Replace(tt.text))
			if strings.Contains(got.Body, `"ownerReferences"`) {
				t.Errorf("owner changed: %s", got.Body)
			}
		})
	}
}

// The policy holds for patches of every type.
func TestPolicyHoldsForEveryTypeOfPatch(t *testing.T) {
	t.Parallel()
	w := world(t)
	namespace := w.Namespace(t)
	for contentType, patch := range map[types.PatchType]string{
		types.MergePatchType:          `{"metadata":{"annotations":{"KEY":"x"}}}`,
		types.StrategicMergePatchType: `{"metadata":{"annotations":{"KEY":"x"}}}`,
		types.JSONPatchType:           `[{"op":"add","path":"/metadata/annotations","value":{"KEY":"x"}}]`,
		types.ApplyYAMLPatchType:      `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"NAME","annotations":{"KEY":"x"}}}`,
	} {
		t.Run(string(contentType), func(t *testing.T) {
			t.Parallel()
			name := strings.NewReplacer("/", "-", "+", "-").Replace(string(contentType))
			pod := w.Pod(t, server.PodOn(daemonNode, namespace, name))
			for key, code := range map[string]int{"other": 422, statusAnnotation: 200} {
				body := strings.NewReplacer("KEY", key, "NAME", name).Replace(patch)
				requestAs(t, w.As(w.DaemonToken), http.MethodPatch, statusPath(pod)+"?fieldManager=test", string(contentType), body).is(t, code, "")
			}
		})
	}
}

// The policy knows the daemon's node from a token that is bound to a pod or to a node.
// With another token the daemon can change no pod. Other clients are not concerned.
func TestPolicyNeedsATokenThatNamesTheNode(t *testing.T) {
	t.Parallel()
	w := world(t)
	pod := w.Pod(t, server.PodOn(daemonNode, w.Namespace(t), "a"))
	nodes := w.Core(t, w.Admin()).Nodes()
	token := func(name string) string {
		node, err := nodes.Get(t.Context(), name, metav1.GetOptions{})
		nodetest.OK(t, err)
		return w.Token(t, "kube-system", "multinetd", node)
	}
	const patch = `{"metadata":{"annotations":{"` + statusAnnotation + `":"[]"}}}`
	for name, tt := range map[string]struct {
		token, patch string
		code         int
	}{
		"of the node":     {token(daemonNode), patch, 200},
		"of another":      {token(otherNode), patch, 422},
		"of none":         {w.Token(t, "kube-system", "multinetd", nil), patch, 422},
		"not multinetd's": {server.AdminToken, `{"metadata":{"annotations":{"other":"x"}},"status":{"message":"x"}}`, 200},
	} {
		t.Run(name, func(t *testing.T) {
			request(t, w.As(tt.token), http.MethodPatch, statusPath(pod), tt.patch).is(t, tt.code, "")
		})
	}
}

// A pod with as many annotations as the API server allows does not exceed the cost that
// an expression of a policy may have.
func TestPolicyAcceptsPodsWithManyAnnotations(t *testing.T) {
	t.Parallel()
	w := world(t)
	for _, n := range []int{1, 1000, 10000} {
		annotations := make(map[string]string, n)
		for i := range n {
			key := fmt.Sprintf("k%d", i)
			annotations[key] = strings.Repeat("v", 200<<10/n-len(key))
		}
		pod := server.PodOn(daemonNode, w.Namespace(t), "a")
		pod.Annotations = annotations
		pod = w.Pod(t, pod)
		for key, code := range map[string]int{"other": 422, statusAnnotation: 200} {
			request(t, w.As(w.DaemonToken), http.MethodPatch, statusPath(pod), `{"metadata":{"annotations":{"`+key+`":"x"}}}`).is(t, code, "")
		}
	}
}
