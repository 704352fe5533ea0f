package kube

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/metacni/metacni/delegate/kube"
	"github.com/metacni/metacni/internal/e2e/kube/server"
	"github.com/metacni/metacni/netconf/nad"
	"github.com/metacni/metacni/status"
)

// A client is what multinetd has of package delegate/kube.
type client struct {
	*kube.View
	status *kube.StatusWriter
	events *kube.Events

	mu       sync.Mutex
	requests map[kube.Request]int
}

// connect opens a View with a token, whose status of each pod is "[]".
func connect(t *testing.T, s *server.Server, token string) *client {
	t.Helper()
	c := &client{requests: make(map[kube.Request]int)}
	view, err := kube.Open(t.Context(), kube.Config{
		Kubeconfig: s.Kubeconfig(t, token), Node: daemonNode, UserAgent: "multinetd",
		Observer: func(r kube.Request) {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.requests[r]++
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	c.View = view
	c.events = view.NewEvents(nad.Pod{})
	c.status = view.NewStatusWriter(kube.StatusConfig{
		Desired: func(context.Context, nad.Pod) (kube.Status, error) {
			return kube.Status{Annotation: "[]", Created: time.Unix(1, 0)}, nil
		},
		Policy: kube.StatusRequire, Timeout: 10 * time.Second, Events: c.events,
	})
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { c.status.Run(ctx) })
	running.Go(func() { c.events.Run(ctx) })
	t.Cleanup(func() {
		cancel()
		running.Wait()
		view.Close()
	})
	return c
}

// refused returns the requests that were answered with an error, other than one that a
// server gives while it prepares a new resource.
func (c *client) refused() (found []kube.Request) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for r := range c.requests {
		if r.Code >= 400 && r.Code != http.StatusTooManyRequests {
			found = append(found, r)
		}
	}
	return found
}

// sandboxOf returns the pod of a container of pod.
func sandboxOf(pod *corev1.Pod) nad.Pod {
	return nad.Pod{Namespace: pod.Namespace, Name: pod.Name, UID: string(pod.UID), Container: "container-" + pod.Name}
}

// written returns the annotation network-status that the API server has.
func written(t *testing.T, s *server.Server, pod *corev1.Pod) string {
	t.Helper()
	got, err := s.Core(t, s.Admin()).Pods(pod.Namespace).Get(t.Context(), pod.Name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return got.Annotations[statusAnnotation]
}

// With the rights of its role and under its policy the daemon sees definitions, writes
// the status of the pods on its node, and creates Events. No request of it is refused.
func TestDaemonsRightsSuffice(t *testing.T) {
	t.Parallel()
	w := world(t)
	c := connect(t, w.Server, w.DaemonToken)
	namespace := w.Namespace(t)
	w.Kubectl(t, definition(namespace, "green", `{"cniVersion":"1.0.0","type":"macvlan"}`), "create", "-f", "-")
	green, err := c.Definition(t.Context(), nad.Ref{Namespace: namespace, Name: "green"})
	if err != nil || !strings.Contains(green.Config, "macvlan") {
		t.Errorf("%+v, %v", green, err)
	}
	pod := w.Pod(t, server.PodOn(daemonNode, namespace, "a"))
	if err := c.status.Wait(t.Context(), sandboxOf(pod)); err != nil || written(t, w.Server, pod) != "[]" {
		t.Errorf("%v, status %q", err, written(t, w.Server, pod))
	}
	c.events.Added(sandboxOf(pod), []status.Network{{Name: namespace + "/green", Interface: "net1"}})
	eventually(t, func() bool {
		return strings.Contains(request(t, w.Admin(), http.MethodGet, "/apis/events.k8s.io/v1/namespaces/"+namespace+"/events", "").Body, `"reason":"AddedInterface"`)
	})
	if got := c.refused(); len(got) > 0 {
		t.Errorf("refused: %v", got)
	}
	// The right to get definitions is optional. Without it, what the watch does not bring
	// does not exist.
	if _, err := c.Definition(t.Context(), nad.Ref{Namespace: namespace, Name: "absent"}); !errors.Is(err, kube.ErrNotFound) {
		t.Errorf("absent: %v", err)
	}
}

// The status of a pod on another node is refused, which does not end the writer.
func TestStatusOfAPodOnAnotherNodeIsRefused(t *testing.T) {
	t.Parallel()
	w := world(t)
	c := connect(t, w.Server, w.DaemonToken)
	namespace := w.Namespace(t)
	foreign, own := w.Pod(t, server.PodOn(otherNode, namespace, "foreign")), w.Pod(t, server.PodOn(daemonNode, namespace, "own"))
	if err := c.status.Wait(t.Context(), sandboxOf(foreign)); status.Code(err) != 11 {
		t.Errorf("foreign: %v", err)
	}
	if err := c.status.Wait(t.Context(), sandboxOf(own)); err != nil {
		t.Errorf("own: %v", err)
	}
	if got := c.status.Stats(); got.Refused == 0 || got.Written != 1 || written(t, w.Server, foreign) != "" {
		t.Errorf("%+v, %q", got, written(t, w.Server, foreign))
	}
}

// Definitions are served while the API server is away, and statuses are written when it
// is back.
func TestDaemonSurvivesAnOutage(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	s.Deploy(t)
	s.Node(t, daemonNode)
	daemon := s.DaemonPod(t, daemonNode)
	c := connect(t, s, s.Token(t, daemon.Namespace, daemon.Spec.ServiceAccountName, daemon))
	green, blue := nad.Ref{Namespace: "default", Name: "green"}, nad.Ref{Namespace: "default", Name: "blue"}
	s.Kubectl(t, definition(green.Namespace, green.Name, `{"cniVersion":"1.0.0","type":"macvlan"}`), "create", "-f", "-")
	pod := s.Pod(t, server.PodOn(daemonNode, "default", "a"))
	if _, err := c.Definition(t.Context(), green); err != nil {
		t.Fatal(err)
	}
	s.Stop()
	if _, err := c.Definition(t.Context(), green); err != nil {
		t.Errorf("during the outage: %v", err)
	}
	c.status.Changed(sandboxOf(pod))
	s.Start(t)
	s.Kubectl(t, definition(blue.Namespace, blue.Name, `{"cniVersion":"1.0.0","type":"ipvlan"}`), "create", "-f", "-")
	eventually(t, func() bool { return written(t, s, pod) == "[]" })
	eventually(t, func() bool {
		_, err := c.Definition(t.Context(), blue)
		return err == nil
	})
}
