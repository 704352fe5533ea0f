package kube

import (
	"fmt"
	"net/http"
	"testing"

	"github.com/metacni/metacni/internal/e2e/kube/server"
)

// A definition that is edited concerns new containers alone: the others are checked and
// detached as they were attached.
func TestEditedDefinitionConcernsNewContainersAlone(t *testing.T) {
	t.Parallel()
	n := newNode(t, world(t).Server, nil)
	n.define(n.namespace, "blue", 1)
	n.ready()
	blue := n.namespace + "/blue"
	old, next := n.pod("old", "blue"), n.pod("next", "blue")
	n.ok("ADD", old)
	n.wantRight(old, "multi", blue)
	n.define(n.namespace, "blue", 2)
	eventually(t, func() bool { // the daemon has seen it
		n.ok("ADD", next)
		if len(glob(t, n.file("leases", "blue", fmt.Sprintf("10.%d.2.*", n.number)))) == 1 {
			return true
		}
		n.ok("DEL", next)
		return false
	})
	n.wantRight(next, "multi", blue)
	n.ok("CHECK", old)
	n.ok("DEL", old)
	n.ok("DEL", next)
	n.wantNothing(old, next)
}

// Namespace, definition and pod may be deleted in any order before DEL.
func TestDELNeedsNothingOfTheCluster(t *testing.T) {
	t.Parallel()
	n := newNode(t, world(t).Server, nil)
	n.ready()
	const namespace, nad, pod = "namespace", "definition", "pod"
	var all []*sandbox
	for _, order := range [][]string{
		{namespace, nad, pod},
		{namespace, pod, nad},
		{nad, namespace, pod},
		{nad, pod, namespace},
		{pod, namespace, nad},
		{pod, nad, namespace},
	} {
		in := n.Namespace(t)
		n.define(in, "blue", 1)
		p := server.PodOn(n.name, in, "one")
		p.Annotations = map[string]string{networksAnnotation: "blue"}
		s := n.sandbox(n.Pod(t, p))
		n.ok("ADD", s)
		n.wantRight(s, "multi", in+"/blue")
		for _, what := range order {
			switch what {
			case namespace:
				request(t, n.Admin(), http.MethodDelete, "/api/v1/namespaces/"+in, "").is(t, http.StatusOK, "")
			case nad:
				n.undefine(in, "blue")
			case pod:
				n.DeletePod(t, s.pod)
			}
			n.ok("CHECK", s)
		}
		n.ok("DEL", s)
		all = append(all, s)
	}
	n.wantNothing(all...)
	same(t, "requests", len(all), len(n.gate.made("PATCH")))
}

// A definition that is deleted while there is no daemon is not served from the mirror
// afterwards.
func TestDefinitionDeletedWithoutADaemon(t *testing.T) {
	t.Parallel()
	n := newNode(t, world(t).Server, nil)
	n.define(n.namespace, "blue", 1)
	mirrored := func() bool { return len(glob(t, n.file("nads", n.namespace, "blue.conf*"))) > 0 }
	n.ready()
	eventually(t, mirrored)
	n.kill()
	n.undefine(n.namespace, "blue")
	n.ready()
	eventually(t, func() bool { return !mirrored() })
	s := n.pod("one", "blue")
	n.fails("ADD", s, 7, "NAD "+n.namespace+"/blue: does not exist")
	n.wantNothing(s)
	eventually(t, func() bool { return len(n.events(s.pod)) > 0 })
	same(t, "Events", []string{"NoNetworkFound"}, n.events(s.pod))
}
