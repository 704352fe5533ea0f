package kube

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
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

// A pod that is created again under its name, as by a StatefulSet, gets a status of its own.
// The DEL of the old one comes late and does not change it.
func TestRecreatedPodHasItsOwnStatus(t *testing.T) {
	t.Parallel()
	n := readyNode(t, nil)
	first := n.pod("web-0", "blue")
	n.ok("ADD", first)
	n.wantRight(first, "multi", n.namespace+"/blue")
	n.DeletePod(t, first.pod)
	second := n.pod("web-0", "")
	if second.pod.UID == first.pod.UID {
		t.Fatal("the same pod")
	}
	n.ok("ADD", second)
	n.wantRight(second, "multi")
	n.ok("DEL", first)
	n.wantRight(second, "multi")
	n.ok("DEL", second)
	n.wantNothing(first, second)
	same(t, "requests", 2, len(n.gate.made("PATCH")))
}

// The status of a pod that is written late never goes to the next pod of its name.
func TestLateStatusOfADeletedPodIsDropped(t *testing.T) {
	t.Parallel()
	n := readyNode(t, object{"statusPolicy": "async", "events": "off"})
	n.gate.breakIt(fault{method: http.MethodPatch, swallow: true})
	first := n.pod("web-0", "blue")
	n.ok("ADD", first)
	eventually(t, func() bool { return len(n.gate.made("PATCH")) == 1 })
	n.DeletePod(t, first.pod)
	second := n.pod("web-0", "") // without a sandbox yet
	n.gate.heal()
	eventually(t, func() bool { return n.metric(`multinetd_status_writes_total{outcome="gone"}`) == "1" })
	if names, _ := n.status(second.pod); names != nil {
		t.Errorf("status of the next pod: %q", names)
	}
	n.ok("ADD", second)
	n.wantRight(second, "multi")
	n.ok("DEL", first)
	n.ok("DEL", second)
	n.wantNothing(first, second)
}

// The status of a pod with two sandboxes is that of the newer one.
func TestStatusIsThatOfTheNewerSandbox(t *testing.T) {
	t.Parallel()
	n := readyNode(t, nil)
	old := n.pod("one", "blue")
	n.ok("ADD", old)
	n.wantRight(old, "multi", n.namespace+"/blue")
	next := n.sandbox(old.pod)
	n.ok("ADD", next)
	n.wantRight(next, "multi", n.namespace+"/blue")
	n.ok("DEL", old)
	n.wantRight(next, "multi", n.namespace+"/blue")
	same(t, "requests", 2, len(n.gate.made("PATCH")))
	n.ok("DEL", next)
	n.wantNothing(old, next)
}

// One more network of a running pod is in its status, and no longer when it is detached.
func TestStatusFollowsWhatIsAttachedLater(t *testing.T) {
	t.Parallel()
	n := newNode(t, world(t).Server, nil)
	n.ready()
	s := n.pod("one", "")
	n.ok("ADD", s)
	n.wantRight(s, "multi")
	network := n.bridge(1)
	network["name"] = "green"
	config, err := json.Marshal(network)
	if err != nil {
		t.Fatal(err)
	}
	more := func(command string) {
		t.Helper()
		body, err := json.Marshal(object{"config": config, "env": object{
			"CNI_COMMAND": command, "CNI_CONTAINERID": s.id, "CNI_NETNS": s.netns, "CNI_IFNAME": "hot0",
		}})
		if err != nil {
			t.Fatal(err)
		}
		n.ask(http.MethodPost, "/delegate", body).is(t, http.StatusOK, "")
	}
	more("ADD")
	n.wantRight(s, "multi", "green")
	more("DEL")
	n.wantRight(s, "multi")
	n.ok("DEL", s)
	n.wantNothing(s)
}

// A definition may be created just after the pod that selects it: its ADD waits for the
// watch.
func TestDefinitionCreatedAfterItsPod(t *testing.T) {
	t.Parallel()
	n := newNode(t, world(t).Server, object{"nadWait": "20s"})
	n.ready()
	s := n.pod("one", "blue")
	var adding sync.WaitGroup
	adding.Go(func() { n.ok("ADD", s) })
	eventually(t, func() bool { return n.metric(`multinetd_operations_in_flight{lane="add"}`) == "1" })
	n.define(n.namespace, "blue", 1)
	adding.Wait()
	n.wantRight(s, "multi", n.namespace+"/blue")
	eventually(t, func() bool { return len(n.events(s.pod)) > 0 })
	same(t, "requests", 2, len(n.gate.made(n.namespace))) // status and Event
	n.ok("DEL", s)
	n.wantNothing(s)
}

// With isolation a pod cannot have a network of another namespace, neither in addition nor in
// place of its primary one, unless that namespace is global. An Event tells why.
func TestIsolationHoldsForAllNetworksOfAPod(t *testing.T) {
	t.Parallel()
	const primary = "v1.multus-cni.io/default-network"
	s := world(t).Server
	shared := s.Namespace(t)
	admins := s.Namespace(t)
	n := newNode(t, s, object{"namespaceIsolation": true, "multusNamespace": admins, "globalNamespaces": shared})
	n.define(shared, "shared", 1)
	n.define(admins, "admins", 3)
	theirs := n.Namespace(t)
	n.define(theirs, "theirs", 2)
	n.ready()
	for _, tt := range []struct{ key, asks, of string }{
		{networksAnnotation, theirs + "/theirs", theirs},
		{primary, theirs + "/theirs", theirs},
		{primary, admins + "/admins", admins},
		{primary, "admins", admins},
	} {
		pod := server.PodOn(n.name, n.namespace, "")
		pod.GenerateName, pod.Annotations = "pod-", map[string]string{tt.key: tt.asks}
		p := n.sandbox(n.Pod(t, pod))
		n.fails("ADD", p, 7, tt.of)
		eventually(t, func() bool { return len(n.events(p.pod)) > 0 })
		same(t, "Events", []string{"NetworkForbidden"}, n.events(p.pod))
		n.wantNothing(p)
	}
	pod := server.PodOn(n.name, n.namespace, "allowed")
	pod.Annotations = map[string]string{primary: shared + "/shared"}
	p := n.sandbox(n.Pod(t, pod))
	n.ok("ADD", p)
	n.wantRight(p, shared+"/shared")
	n.ok("DEL", p)
	n.wantNothing(p)
}

// The daemon watches pods once the runtime passes no annotations, if it may. If it may not,
// all other pods are served nevertheless.
func TestAnnotationsOfTheAPIForARuntimeThatPassesNone(t *testing.T) {
	t.Parallel()
	for _, granted := range []bool{false, true} {
		t.Run(fmt.Sprint("granted ", granted), func(t *testing.T) {
			t.Parallel()
			n := newNode(t, world(t).Server, nil)
			if granted {
				n.grantPods()
			}
			n.define(n.namespace, "blue", 1)
			n.ready()
			told, untold := n.pod("told", "blue"), n.pod("untold", "blue")
			untold.untold = true
			n.ok("ADD", told)
			same(t, "requests for pods", nil, n.gate.made("GET /api/v1/"))
			if granted {
				n.ok("ADD", untold)
				n.wantRight(untold, "multi", n.namespace+"/blue")
				n.ok("DEL", untold)
			} else {
				n.again("ADD", untold, "pod "+n.namespace+"/untold")
			}
			n.ok("STATUS", told)
			n.ok("DEL", told)
			n.ok("ADD", told)
			n.wantRight(told, "multi", n.namespace+"/blue")
			n.ok("DEL", told)
			n.wantNothing(told, untold)
		})
	}
}

// The kubelet's UID of a static pod is not that of its mirror in the API, and there may be no
// mirror yet when the pod is attached. A daemon that watches pods finds the mirror.
func TestStatusOfAStaticPod(t *testing.T) {
	t.Parallel()
	for _, watching := range []bool{false, true} {
		t.Run(fmt.Sprint("watching pods ", watching), func(t *testing.T) {
			t.Parallel()
			n := newNode(t, world(t).Server, nil)
			if watching {
				n.grantPods()
				n.keys["annotations"] = "api"
			}
			n.define(n.namespace, "blue", 1)
			n.ready()
			pod := server.PodOn(n.name, n.namespace, "static")
			pod.Annotations = map[string]string{
				networksAnnotation: "blue", "kubernetes.io/config.source": "file", "kubernetes.io/config.mirror": "0123abcd",
			}
			s := n.sandbox(pod)
			s.uid, s.untold = "0123abcd", watching
			if watching {
				n.again("ADD", s, "pod "+n.namespace+"/static")
				n.Pod(t, pod)
				n.ok("ADD", s)
			} else {
				n.ok("ADD", s)
				n.Pod(t, pod)
			}
			n.wantRight(s, "multi", n.namespace+"/blue")
			n.tool(0, []string{"eth0", "net1"}, "status", "--diff", "--socket-dir", n.file("d"), s.id)
			n.ok("DEL", s)
			n.wantNothing(s)
		})
	}
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

// The operator's tool shows which pod and definition an attachment is for, and how the
// status in the API differs from the records.
func TestOperatorComparesRecordsWithTheAPI(t *testing.T) {
	t.Parallel()
	n := readyNode(t, nil)
	s := n.pod("one", "blue")
	n.ok("ADD", s)
	pod, network := n.namespace+"/one", n.namespace+"/blue"
	n.tool(0, []string{pod, network, "selected", "added"}, "list", "-o", "wide")
	n.tool(0, []string{`"uid": "` + string(s.pod.UID), `"` + network + `"`, `"net1"`}, "show", s.id)
	n.tool(0, []string{`"name": "` + network + `"`}, "status", s.id)
	diff := []string{"status", "--diff", "--socket-dir", n.file("d"), s.id}
	n.tool(0, []string{"eth0", "net1"}, diff...)

	annotate := func(text string) {
		t.Helper()
		patch := fmt.Sprintf(`{"metadata":{"annotations":{%q:%q}}}`, statusAnnotation, text)
		request(t, n.Admin(), http.MethodPatch, strings.TrimSuffix(statusPath(s.pod), "/status"), patch).is(t, 200, "")
	}
	annotate(`[{"name":"other","interface":"net1"}]`)
	n.tool(1, []string{"missing", "changed"}, diff...)
	annotate("")
	n.tool(1, []string{"missing"}, diff...)
	n.gate.close()
	n.tool(2, []string{"the API cannot be asked at the moment"}, diff...)
	n.gate.open(t)
	n.DeletePod(t, s.pod)
	n.tool(2, []string{"it is gone"}, diff...)
	n.ok("DEL", s)
	n.tool(0, nil, "list")
	n.wantNothing(s)
}
