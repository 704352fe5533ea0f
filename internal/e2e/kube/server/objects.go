package server

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/metacni/metacni/internal/test/process"
)

// Manifests returns a file of multinetd's manifests, or their directory.
func Manifests(name ...string) string {
	root, err := process.Root()
	if err != nil {
		panic(err) // the working directory of the tests of a package is that of the package
	}
	return filepath.Join(append([]string{root, "examples/multinet/deploy"}, name...)...)
}

// Deploy applies the manifests of multinetd and waits until NADs are served.
func (s *Server) Deploy(t testing.TB) {
	t.Helper()
	s.Kubectl(t, "", "apply", "-f", Manifests("crd.yaml"))
	s.Kubectl(t, "", "wait", "--for=condition=Established", "--timeout=60s", "-f", Manifests("crd.yaml"))
	s.Kubectl(t, "", "apply", "-k", Manifests())
}

// DeployWith applies the manifests of multinetd with a component. Applying them again
// changes nothing.
func (s *Server) DeployWith(t testing.TB, component string) {
	t.Helper()
	dir := t.TempDir()
	if err := Kustomize(dir, component); err != nil {
		t.Fatal(err)
	}
	s.Kubectl(t, "", "apply", "-k", dir)
	again := s.Kubectl(t, "", "apply", "-k", dir)
	again = strings.Replace(again, "poddisruptionbudget.policy/multinetd-webhook configured", "(kubectl always sends its selector) unchanged", 1)
	if strings.Count(again, " unchanged\n") != strings.Count(again, "\n") {
		t.Errorf("applied again: %s", again)
	}
}

// Kustomize writes a kustomization.yaml of multinetd's manifests with a component.
func Kustomize(dir, component string) error {
	deploy, err := filepath.Rel(dir, Manifests()) // Kustomize refuses absolute paths
	if err != nil {
		return err
	}
	return os.WriteFile(dir+"/kustomization.yaml", fmt.Appendf(nil, "resources: [%s]\ncomponents: [%s/%s]\n", deploy, deploy, component), 0o600)
}

// Node creates a node.
func (s *Server) Node(t testing.TB, name string) {
	t.Helper()
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if _, err := s.Core(t, s.Admin()).Nodes().Create(t.Context(), node, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// DaemonPod creates the pod that the DaemonSet's controller would create for a node.
func (s *Server) DaemonPod(t testing.TB, node string) *corev1.Pod {
	t.Helper()
	var set appsv1.DaemonSet
	err := s.Core(t, s.Admin()).RESTClient().Get().AbsPath("/apis/apps/v1/namespaces/kube-system/daemonsets/multinetd").
		Do(t.Context()).Into(&set)
	if err != nil {
		t.Fatal(err)
	}
	return s.PodOf(t, &set, node)
}

// PodOf creates the pod that a DaemonSet's controller would create for a node.
func (s *Server) PodOf(t testing.TB, set *appsv1.DaemonSet, node string) *corev1.Pod {
	t.Helper()
	pod := &corev1.Pod{ObjectMeta: set.Spec.Template.ObjectMeta, Spec: set.Spec.Template.Spec}
	pod.Namespace, pod.Name, pod.Spec.NodeName = set.Namespace, set.Name+"-"+node, node
	return s.Pod(t, pod)
}

// Namespace creates a namespace for the test.
func (s *Server) Namespace(t testing.TB) string {
	t.Helper()
	got, err := s.Core(t, s.Admin()).Namespaces().Create(t.Context(),
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "test-"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return got.Name
}

// PodOn returns a pod that is bound to a node, or to none if node is empty.
func PodOn(node, namespace, name string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec:       corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: "main", Image: "none"}}},
	}
}

// Pod creates a pod.
func (s *Server) Pod(t testing.TB, pod *corev1.Pod) *corev1.Pod {
	t.Helper()
	got, err := s.Core(t, s.Admin()).Pods(pod.Namespace).Create(t.Context(), pod, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return got
}

// DeletePod deletes a pod at once, as the kubelet does when its containers have ended.
func (s *Server) DeletePod(t testing.TB, pod *corev1.Pod) {
	t.Helper()
	now := int64(0)
	err := s.Core(t, s.Admin()).Pods(pod.Namespace).Delete(t.Context(), pod.Name, metav1.DeleteOptions{GracePeriodSeconds: &now})
	if err != nil {
		t.Fatal(err)
	}
}
