package kube

import (
	"net/http"
	"os"
	"sync"
	"testing"
	"time"
)

// An outage keeps the daemon of a node from using the API server, in one of many ways.
type outage struct{ begin, end func(*node) }

func outages(t *testing.T) map[string]outage {
	t.Helper()
	broken := func(f fault) outage {
		return outage{
			begin: func(n *node) { n.gate.breakIt(f); n.gate.cut(n.t) },
			end:   func(n *node) { n.gate.heal() },
		}
	}
	return map[string]outage{
		"connections are refused": {
			begin: func(n *node) { n.gate.close() },
			end:   func(n *node) { n.gate.open(n.t) },
		},
		"no byte is answered": {
			begin: func(n *node) { n.gate.silence() },
			end:   func(n *node) { n.gate.speak() },
		},
		"no request is answered":         broken(fault{swallow: true}),
		"each answer takes 3 s":          broken(fault{delay: 3 * time.Second}),
		"the API server has no database": broken(fault{status: http.StatusInternalServerError}),
		"the token has ended with the daemon's pod": {
			begin: func(n *node) {
				n.DeletePod(n.t, n.daemonPod)
				eventually(n.t, func() bool { return request(n.t, n.As(n.token), http.MethodGet, "/api", "").Code == 401 })
				n.gate.cut(n.t)
			},
			end: func(n *node) { n.newToken() },
		},
		"the role has been taken away": {
			begin: func(n *node) {
				request(n.t, n.Admin(), http.MethodDelete, bindings+"/"+n.namespace+"-multinetd", "").is(n.t, 200, "")
				eventually(n.t, func() bool {
					return request(n.t, n.As(n.token), http.MethodGet, nads+"network-attachment-definitions", "").Code == 403
				})
				n.gate.cut(n.t)
			},
			end: func(n *node) { n.grant("multinetd") },
		},
		"the kubeconfig has gone": {
			begin: func(n *node) {
				if err := os.Remove(n.file("kubeconfig")); err != nil {
					n.t.Fatal(err)
				}
				n.gate.cut(n.t)
			},
			end: func(n *node) { n.credentials(n.gate.Server, n.token) },
		},
		"the kubeconfig is one of another cluster": {
			begin: func(n *node) {
				other := *n.gate.Server
				other.CA = n.CA // not that of the gate
				n.credentials(&other, "unknown")
				n.gate.cut(n.t)
			},
			end: func(n *node) { n.credentials(n.gate.Server, n.token) },
		},
	}
}

// impatient has tests wait for a short time only where there is no answer.
func impatient() object {
	return object{"statusTimeout": "100ms", "nadWait": "100ms", "podWait": "100ms"}
}

// While the API server is away, whatever the reason, the daemon serves every command of a
// pod that selects nothing or what is known, also after a restart. Only pods that select
// anything else have to be tried again. When the API server is back all statuses are
// written.
func TestOutageConcernsNothingThatIsKnown(t *testing.T) {
	t.Parallel()
	for name, o := range outages(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t, world(t).Server, impatient())
			blue := n.namespace + "/blue"
			n.define(n.namespace, "blue", 1)
			n.ready()
			eventually(t, func() bool { return len(glob(t, n.file("nads", n.namespace, "blue.conf*"))) == 1 })
			before := n.pod("before", "blue")
			alone, known, unknown := n.pod("alone", ""), n.pod("known", "blue"), n.pod("unknown", "green")
			next, mirrored := n.pod("next", ""), n.pod("mirrored", "blue")
			last, lost := n.pod("last", ""), n.pod("lost", "blue")
			n.ok("ADD", before)
			n.wantRight(before, "multi", blue)

			o.begin(n)
			n.ok("STATUS", before)
			n.ok("ADD", alone)
			n.ok("ADD", known)
			n.again("ADD", unknown, "NAD "+n.namespace+"/green")
			for _, s := range []*sandbox{before, alone, known} {
				n.ok("CHECK", s)
			}
			n.ok("DEL", before)
			n.ok("DEL", before)

			n.kill()
			n.start()
			n.until("/readyz") // the mirror has the definitions
			n.ok("STATUS", before)
			n.ok("CHECK", known)
			n.ok("ADD", next)
			n.ok("ADD", mirrored)
			n.again("ADD", unknown, "NAD "+n.namespace+"/green")
			n.ok("GC", before, known, next, mirrored)
			if got := n.attached(alone); got != nil {
				t.Errorf("after GC: %q", got)
			}

			n.stop()
			delete(n.keys, "nadDir")
			n.start()
			n.ok("STATUS", before)
			n.ok("ADD", last)
			if name != "each answer takes 3 s" { // which may have come
				n.again("ADD", lost, "NAD "+blue)
			}
			n.ok("CHECK", mirrored)
			n.ok("DEL", next)

			o.end(n)
			n.wantRight(known, "multi", blue)
			n.wantRight(mirrored, "multi", blue)
			n.wantRight(last, "multi")
			eventually(t, func() bool { return n.cni("ADD", lost) == nil })
			n.wantRight(lost, "multi", blue)
			for _, s := range []*sandbox{known, mirrored, last, lost, unknown} {
				n.ok("DEL", s)
			}
			n.wantNothing(before, alone, known, next, mirrored, last, lost, unknown)
		})
	}
}

// Where the runtime passes no annotations only pods that the daemon knows from the API can
// be attached while that is away. All other commands need nobody.
func TestOutageWithARuntimeThatPassesNoAnnotations(t *testing.T) {
	t.Parallel()
	for name, o := range outages(t) {
		if name != "connections are refused" && name != "no byte is answered" && name != "the role has been taken away" {
			continue // these are the ways in which nothing, no answer and a refusal come
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t, world(t).Server, impatient())
			n.grantPods()
			n.define(n.namespace, "blue", 1)
			known, before := n.pod("known", "blue"), n.pod("before", "")
			known.untold, before.untold = true, true
			n.ready()
			n.ok("ADD", before)
			n.wantRight(before, "multi")

			o.begin(n)
			n.ok("ADD", known)
			n.ok("CHECK", before)
			n.ok("STATUS", before)
			n.ok("GC", before, before, known)
			n.ok("CHECK", known)
			n.ok("DEL", before)
			if name != "the role has been taken away" { // it may still list pods
				late := n.pod("late", "")
				late.untold = true
				n.again("ADD", late, "pod "+n.namespace+"/late")
				n.kill()
				n.start()
				n.again("ADD", before, "pod "+n.namespace+"/before") // not in the view of this daemon
				n.ok("CHECK", known)
				n.ok("STATUS", before)
			}
			o.end(n)
			n.wantRight(known, "multi", n.namespace+"/blue")
			n.ok("DEL", known)
			n.wantNothing(known, before)
		})
	}
}

// A daemon that is killed after it has attached a pod, and before it has written the
// status, has its successor write it.
func TestKilledBetweenRecordAndStatus(t *testing.T) {
	t.Parallel()
	n := readyNode(t, object{"statusTimeout": "1m"})
	n.gate.breakIt(fault{method: http.MethodPatch, swallow: true})
	s := n.pod("one", "blue")
	var add error // which still waits for the status
	var adding sync.WaitGroup
	adding.Go(func() { add = n.cni("ADD", s) })
	eventually(t, func() bool { return len(n.gate.made("PATCH")) == 1 })
	if names, _ := n.status(s.pod); names != nil {
		t.Errorf("status: %q", names)
	}
	n.kill()
	if adding.Wait(); add == nil {
		t.Error("the ADD succeeds")
	}
	n.gate.heal()
	n.start()
	n.wantRight(s, "multi", n.namespace+"/blue")
	n.ok("DEL", s)
	n.wantNothing(s)
}
