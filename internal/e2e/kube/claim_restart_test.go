package kube

import (
	"net/http"
	"strings"
	"sync"
	"testing"
)

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
			n.gate.breakIt(fault{method: http.MethodPut, swallow: true})
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

// While the API server is away, in any way, only prepare fails: the kubelet reads the claim
// with it. A pod whose claims are prepared is attached and removed, also by another daemon, and
// its status is written afterwards.
func TestAnOutageDelaysOnlyPrepareAndTheStatus(t *testing.T) {
	t.Parallel()
	for name, o := range outages(t) {
		switch name {
		case "connections are refused", "no request is answered", "the API server has no database":
		default:
			continue
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newDriver(t, impatient())
			eventually(t, func() bool { return len(glob(t, n.file("nads", n.namespace, "blue.conf*"))) == 1 })
			gone, goneClaim := n.one("gone", own("blue"))
			n.ok("ADD", gone)
			n.wantAttached(goneClaim, gone, "eth0", "net1")
			kept, keptClaim := n.one("kept", own("blue"))
			late := n.claiming("late", "", "late")
			lateClaim := n.claim("late", own("blue"), "shared", late.pod)

			o.begin(n.node)
			if err := n.tryPrepareFor(impatience, lateClaim); err == nil {
				t.Error("prepare succeeds without the API server")
			}
			n.ok("DEL", gone)
			n.unprepare(goneClaim)
			n.ok("ADD", kept)
			n.ok("CHECK", kept)
			n.kill()
			n.start()
			n.until("/readyz")
			n.register()
			n.ok("CHECK", kept)
			second := n.sandbox(kept.pod)
			n.ok("ADD", second)
			o.end(n.node)
			n.wantAttached(keptClaim, second, "eth0", "net1")
			eventually(t, func() bool { return n.tryPrepare(lateClaim) == nil })
			n.ok("ADD", late)
			n.wantAttached(lateClaim, late, "eth0", "net1")
			for _, s := range []*sandbox{kept, second, late} {
				n.ok("DEL", s)
			}
			n.unprepare(keptClaim, lateClaim)
			n.wantReleased(resourceClaims{goneClaim, keptClaim, lateClaim}, gone, kept, second, late)
		})
	}
}

// A claim that is deleted and created again under its name, between prepare and ADD, is not the
// one that was prepared. The pod gets what was prepared for it, and the new claim no status.
func TestAClaimThatIsReplacedAfterPrepare(t *testing.T) {
	t.Parallel()
	n := newDriver(t, nil)
	s, c := n.one("one", own("blue"))
	n.delete(c)
	other := n.claiming("other", "", "one")
	replaced := n.claim("one", own("green"), "shared", other.pod)
	if err := n.tryPrepare(c); err == nil || !strings.Contains(err.Error(), "got replaced") {
		t.Errorf("prepare of the old claim: %v", err)
	}
	n.ok("ADD", s)
	same(t, "interfaces", []string{"eth0", "net1"}, n.interfaces(s))
	n.prepare(replaced)
	n.ok("ADD", other)
	n.wantAttached(replaced, other, "eth0", "net1")
	n.ok("DEL", s)
	n.unprepare(c)
	n.ok("CHECK", other)
	if !n.attachedBy(replaced, other) {
		t.Errorf("the status of the new claim has changed: %+v", n.devices(replaced))
	}
	n.delete(replaced) // before the pod's end
	n.ok("DEL", other)
	n.unprepare(replaced)
	n.wantReleased(resourceClaims{c, replaced}, s, other)
}

// The daemon serves a kubelet that starts again, and claims that an earlier one has had prepared.
func TestAKubeletMayRegisterTheDriverAgain(t *testing.T) {
	t.Parallel()
	n := newDriver(t, nil)
	s, c := n.one("one", own("blue"))
	n.register()
	n.prepare(c)
	n.ok("ADD", s)
	n.wantAttached(c, s, "eth0", "net1")
	n.register()
	n.unprepare(c)
	same(t, "interfaces", []string{"eth0"}, n.interfaces(s))
	n.ok("DEL", s)
	n.wantReleased(resourceClaims{c}, s)
}
