package kube

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/metacni/metacni/internal/e2e/kube/server"
)

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
		if err != nil {
			t.Fatal(err)
		}
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
