package kube

import (
	"net/http"
	"strings"
	"sync"
	"testing"

	resourcev1 "k8s.io/api/resource/v1"
)

type resourceClaims = []*resourcev1.ResourceClaim

// A claim goes its whole way with the rights of the manifests: ResourceSlice, prepare, ADD,
// status, DEL, unprepare. The ADD makes no request, and the status costs one GET and one
// update.
func TestAClaimGoesItsWholeWay(t *testing.T) {
	t.Parallel()
	n := newDriver(t, nil)
	s, c := n.one("one", own("blue"))
	if got := n.prepared(c); len(got) == 0 {
		t.Error("a prepared claim leaves no file")
	}
	n.register() // by another kubelet
	n.prepare(c) // again, as the kubelet may
	n.ok("ADD", s)
	n.wantAttached(c, s, "eth0", "net1")
	n.wantRight(s, "multi", n.namespace+"/blue")
	n.ok("CHECK", s)
	path := "/apis/resource.k8s.io/v1/namespaces/" + n.namespace + "/resourceclaims/one"
	same(t, "requests", []string{"GET " + path, "GET " + path, "GET " + path, "PUT " + path + "/status"}, n.gate.made("resourceclaims"))
	n.ok("DEL", s)
	n.wantDetached(c, "")
	n.unprepare(c)
	n.unprepare(c)
	n.wantReleased(resourceClaims{c}, s)
	n.fails("ADD", s, 11, "claim")
	n.ok("DEL", s)
	n.wantReleased(resourceClaims{c}, s)
	if log := n.log(); strings.Contains(log, "forbidden") {
		t.Errorf("a right is missing:\n%s", log)
	}
}

// Without the right that API servers require since 1.36, everything works but the status. The
// log says which right is missing, and the status is written as soon as the right is there.
func TestOnlyTheStatusNeedsTheRightOfTheDriver(t *testing.T) {
	t.Parallel()
	n := newIdleDriver(t, nil)
	n.grantClaims(oldClaimRights)
	n.ready()
	n.published("shared", "shared2", "single")
	n.register()
	s, c := n.one("one", own("blue"))
	n.ok("ADD", s)
	eventually(t, func() bool { return strings.Contains(n.log(), "changing status.devices requires") })
	if got := n.devices(c); len(got) > 0 {
		t.Errorf("status: %+v", got)
	}
	n.grantClaims(allClaimRights)
	n.wantAttached(c, s, "eth0", "net1")
	n.released(s, c)
	if len(n.gate.made(http.MethodPatch+" /apis/resource.k8s.io")) > 0 {
		t.Error("a claim is patched: the API server refuses that for some forms of parameters")
	}
}

// A daemon that is killed in any window has its successor go on: the pod is attached, its
// status is written, and nothing is left in the end.
func TestKilledInEveryWindowOfAClaim(t *testing.T) {
	t.Parallel()
	for name, window := range map[string]func(n *driverNode, s *sandbox, c resourceClaims) *sandbox{
		"between prepare and ADD": func(n *driverNode, s *sandbox, c resourceClaims) *sandbox {
			n.restart()
			n.ok("ADD", s)
			n.wantAttached(c[0], s, "eth0", "net1")
			n.ok("DEL", s)
			return nil
		},
		"during ADD": func(n *driverNode, s *sandbox, c resourceClaims) *sandbox {
			let := n.set("hold-ADD")
			var add error
			var adding sync.WaitGroup
			adding.Go(func() { add = n.cni("ADD", s) })
			ended := n.held("ADD")
			n.kill()
			if adding.Wait(); add == nil {
				n.t.Error("the ADD succeeds")
			}
			let()
			ended() // a bridge that is killed may leave one that its next ADD cannot use
			n.ready()
			n.register()
			n.ok("DEL", s)
			n.wantNothing(s)
			next := n.sandbox(s.pod) // as the kubelet does
			n.ok("ADD", next)
			n.wantAttached(c[0], next, "eth0", "net1")
			n.ok("DEL", next)
			return next
		},
		"between ADD and status": func(n *driverNode, s *sandbox, c resourceClaims) *sandbox {
			n.gate.keep(http.MethodPut)
			n.ok("ADD", s)
			eventually(n.t, func() bool { return n.statusRequests() > 0 })
			n.kill()
			n.gate.heal()
			n.ready()
			n.register()
			n.wantAttached(c[0], s, "eth0", "net1")
			n.ok("DEL", s)
			return nil
		},
		"between ADD and DEL": func(n *driverNode, s *sandbox, c resourceClaims) *sandbox {
			n.ok("ADD", s)
			n.wantAttached(c[0], s, "eth0", "net1")
			n.restart()
			n.wantAttached(c[0], s, "eth0", "net1")
			n.ok("CHECK", s)
			n.ok("DEL", s)
			return nil
		},
		"between ADD and unprepare, without DEL": func(n *driverNode, s *sandbox, c resourceClaims) *sandbox {
			n.ok("ADD", s)
			n.restart()
			n.unprepare(c...)
			same(n.t, "interfaces", []string{"eth0"}, n.interfaces(s))
			n.ok("DEL", s)
			return nil
		},
		"during unprepare": func(n *driverNode, s *sandbox, c resourceClaims) *sandbox {
			n.ok("ADD", s)
			let := n.set("hold-DEL")
			var release error
			var releasing sync.WaitGroup
			releasing.Go(func() { release = n.kubelet.Unprepare(n.t.Context(), c...) })
			n.held("DEL")
			n.kill()
			if releasing.Wait(); release == nil {
				n.t.Error("unprepare succeeds")
			}
			let()
			n.ready()
			n.register()
			n.unprepare(c...)
			same(n.t, "interfaces", []string{"eth0"}, n.interfaces(s))
			n.ok("DEL", s)
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newDriver(t, nil)
			s, c := n.one("one", n.inline(n.watched(4)))
			all := []*sandbox{s}
			if next := window(n, s, resourceClaims{c}); next != nil {
				all = append(all, next)
			}
			n.unprepare(c)
			n.wantReleased(resourceClaims{c}, all...)
		})
	}
}
