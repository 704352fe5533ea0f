package kube

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
)

const (
	manifests = "../../../examples/multinetd/deploy"

	// daemonNode has the daemon's pod, and otherNode has none.
	daemonNode = "node-a"
	otherNode  = "node-b"

	statusAnnotation = "k8s.v1.cni.cncf.io/network-status"
)

// A World is the shared server with multinetd's manifests applied, two nodes, and the
// daemon's pod on the first of them.
type World struct {
	*Server
	Daemon      *corev1.Pod
	DaemonToken string
}

var sharedWorld struct {
	sync.Once
	ok    bool
	World World
}

// world returns the world that all tests share.
func world(t *testing.T) World {
	t.Helper()
	s := cluster(t)
	sharedWorld.Do(func() {
		s.Deploy(t)
		s.Node(t, daemonNode)
		s.Node(t, otherNode)
		pod := s.DaemonPod(t, daemonNode)
		token := s.Token(t, pod.Namespace, pod.Spec.ServiceAccountName, pod)
		s.waitForPolicy(t, pod, token)
		sharedWorld.World, sharedWorld.ok = World{s, pod, token}, true
	})
	if !sharedWorld.ok {
		t.Fatal("another test could not make the world")
	}
	return sharedWorld.World
}

// Deploy applies the manifests of multinetd and waits until NADs are served.
func (s *Server) Deploy(t testing.TB) {
	t.Helper()
	s.Kubectl(t, "", "apply", "-f", manifests+"/crd.yaml")
	s.Kubectl(t, "", "wait", "--for=condition=Established", "--timeout=60s", "-f", manifests+"/crd.yaml")
	s.Apply(t, manifests)
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
	pod := &corev1.Pod{ObjectMeta: set.Spec.Template.ObjectMeta, Spec: set.Spec.Template.Spec}
	pod.Namespace, pod.Name, pod.Spec.NodeName = set.Namespace, "multinetd-"+node, node
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

// podOn returns a pod that is bound to a node, or to none if node is empty.
func podOn(node, namespace, name string) *corev1.Pod {
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

// An answer is what the API server says to a request.
type answer struct {
	Code int
	Body string
}

// is fails the test unless the answer has the code and its body the text.
func (a answer) is(t testing.TB, code int, text string) {
	t.Helper()
	if a.Code != code || !strings.Contains(a.Body, text) {
		t.Errorf("got %d %.500s\nwant %d %s", a.Code, a.Body, code, text)
	}
}

// request sends one request to the API server. The body of a PATCH is a merge patch.
func request(t testing.TB, c *rest.Config, verb, path, body string) answer {
	t.Helper()
	contentType := "application/json"
	if verb == http.MethodPatch {
		contentType = string(types.MergePatchType)
	}
	return requestAs(t, c, verb, path, contentType, body)
}

// requestAs is request with the type of the body.
func requestAs(t testing.TB, c *rest.Config, verb, path, contentType, body string) answer {
	t.Helper()
	client, err := rest.HTTPClientFor(c)
	if err != nil {
		t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(t.Context(), verb, c.Host+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", contentType)
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	got, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer{resp.StatusCode, string(got)}
}

// statusPath returns the path of a pod's status.
func statusPath(pod *corev1.Pod) string {
	return "/api/v1/namespaces/" + pod.Namespace + "/pods/" + pod.Name + "/status"
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

// waitForPolicy waits until the API server enforces multinetd's policy.
func (s *Server) waitForPolicy(t testing.TB, pod *corev1.Pod, token string) {
	t.Helper()
	n := 0
	eventually(t, func() bool {
		n++ // until there is a policy, each of them changes the pod
		patch := fmt.Sprintf(`{"metadata":{"annotations":{"unwanted":"%d"}}}`, n)
		got := request(t, s.As(token), http.MethodPatch, statusPath(pod), patch)
		return got.Code == http.StatusUnprocessableEntity
	})
}

// eventually asks until the answer is yes. It fails the test after a minute: the daemon
// pauses for up to 30 seconds between two attempts.
func eventually(t testing.TB, ask func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	pause := time.NewTicker(50 * time.Millisecond)
	defer pause.Stop()
	for !ask() {
		select {
		case <-pause.C:
		case <-ctx.Done():
			t.Fatal("not after a minute")
		}
	}
}
