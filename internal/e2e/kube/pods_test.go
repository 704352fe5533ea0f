package kube

import (
	"encoding/json"
	"net/http"
	"testing"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"

	"github.com/metacni/metacni/internal/e2e/kube/server"
)

// A pod gets the network of its annotation, and its status and one Event tell so. All
// that the API server is asked for is to write these two. DEL asks for nothing.
func TestPodCostsOnePatchAndOneEvent(t *testing.T) {
	t.Parallel()
	n := readyNode(t, nil)
	s := n.pod("one", "blue")
	n.ok("ADD", s)
	if !n.right(s, "multi", n.namespace+"/blue") { // the ADD has waited for it
		names, interfaces := n.status(s.pod)
		t.Errorf("status %q %q, but the pod has %q", names, interfaces, n.attached(s))
	}
	eventually(t, func() bool { return len(n.events(s.pod)) > 0 })
	for _, command := range []string{"CHECK", "STATUS", "DEL", "DEL"} {
		n.ok(command, s)
	}
	n.ok("GC", s)
	n.wantNothing(s)
	n.stop()
	same(t, "requests", []string{
		"PATCH " + statusPath(s.pod),
		"POST /apis/events.k8s.io/v1/namespaces/" + n.namespace + "/events",
	}, n.gate.made(""))
	same(t, "Events", []string{"AddedInterface"}, n.events(s.pod))
}

// events lists the reasons of the Events on a pod.
func (n *node) events(pod *corev1.Pod) (reasons []string) {
	n.t.Helper()
	got := request(n.t, n.Admin(), http.MethodGet, "/apis/events.k8s.io/v1/namespaces/"+pod.Namespace+"/events", "")
	var list eventsv1.EventList
	if err := json.Unmarshal([]byte(got.Body), &list); err != nil {
		n.t.Fatal(got, err)
	}
	for _, e := range list.Items {
		if e.Regarding.Name == pod.Name && e.Regarding.UID == pod.UID {
			reasons = append(reasons, e.Reason)
		}
	}
	return reasons
}

// The daemon cannot write the status of a pod on another node: the policy refuses it. The
// pod is attached nevertheless, and an Event on the daemon's pod tells what is wrong.
func TestStatusOfAPodOnAnotherNodeIsNeverWritten(t *testing.T) {
	t.Parallel()
	n := newNode(t, world(t).Server, nil)
	n.ready()
	s := n.sandbox(n.Pod(t, server.PodOn(otherNode, n.namespace, "elsewhere")))
	n.ok("ADD", s)
	eventually(t, func() bool { return len(n.events(n.daemonPod)) > 0 })
	same(t, "Events on the daemon's pod", []string{"StatusNotWritten"}, n.events(n.daemonPod))
	if names, _ := n.status(s.pod); names != nil {
		t.Errorf("status: %q", names)
	}
	n.ok("DEL", s)
	n.wantNothing(s)
}
