package e2e

import (
	"fmt"
	"maps"
	"testing"

	"github.com/metacni/metacni/delegate/lifecycle"
	nodetest "github.com/metacni/metacni/internal/test/node"
)

// TestManyContainersAtOnce attaches, checks and detaches 64 containers at the
// same time, each by a process of its own, or by a shim of its own.
func TestManyContainersAtOnce(t *testing.T) {
	all := append(subjects(), subject{name: "multinetd", fakes: []string{"a", "b"}})
	for _, s := range all {
		t.Run(s.name, func(t *testing.T) {
			const count = 64
			n := newNode(t)
			conf := func() object { return s.conf(n) }
			if s.name == "multinetd" {
				n.daemon(daemonConf{})
				conf = func() object { return n.thick("1.1.0", n.fake("a"), n.fake("b")) }
			}
			pods := n.newPods(count, conf)
			for i, command := range []string{"ADD", "CHECK", "DEL", "DEL"} {
				n.allOK(command, pods)
				nodetest.Equal(t, "attached after "+command, len(n.live()), []int{count, count, 0, 0}[i]*len(s.fakes))
			}
			n.noTrace()
		})
	}
}

// TestDELWaitsForTheADDOfItsContainer: a DEL waits for the ADD of the same
// container that runs in another process. A DEL of another container does not.
func TestDELWaitsForTheADDOfItsContainer(t *testing.T) {
	n := newNode(t)
	p := n.pod(n.multinet("1.0.0", n.fake("a", "ADD", "gate")))
	other := n.pod(n.multinet("1.0.0", n.fake("other")))
	add := n.start("ADD", p)
	n.ready()
	del := n.start("DEL", p, withoutNetNS)
	n.waitsForLock(del)
	n.ok("ADD", other)
	n.ok("DEL", other)
	n.trace("ADD a eth0", "ADD other eth0", "DEL other eth0")
	n.open()
	n.done(add)
	n.done(del)
	n.trace("ADD a eth0", "ADD other eth0", "DEL other eth0", "DEL a eth0")
	n.nothingLeft()
}

// TestParallelAttachesAndDetachesEverything attaches containers to eight
// bridges at the same time, or eight times to one. The record has the order of
// the configuration, all interfaces are there, and DEL removes them, in
// parallel or not.
func TestParallelAttachesAndDetachesEverything(t *testing.T) {
	const networks, pods = 8, 3
	for name, bridge := range map[string]func(n *node, i int) object{
		"eight bridges": func(n *node, i int) object { return n.routeless(i) },
		"one bridge":    func(n *node, _ int) object { return n.routeless(0) },
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			want := []string{"eth0"}
			delegates := []object{n.bridge(0)}
			for i := 1; i < networks; i++ {
				want = append(want, fmt.Sprintf("net%d", i))
				delegates = append(delegates, n.with(bridge(n, i), object{"name": n.name(fmt.Sprintf("net%d-", i))}))
			}
			for _, parallel := range []bool{true, false} { // whether DEL is
				ps := n.newPods(pods, func() object { return n.with(n.multinet("1.0.0", delegates...), object{"parallel": true}) })
				// Containers that make a new bridge at the same time may give it
				// different addresses: a limitation of bridge, and CHECK fails.
				n.ok("ADD", ps[0])
				n.allOK("ADD", ps[1:])
				nodetest.Equal(t, "addresses", len(n.leases()), networks*pods)
				records := map[string][]string{}
				for r, err := range (&lifecycle.Manager{Dir: n.file("state")}).Records(t.Context()) {
					nodetest.OK(t, err)
					for _, a := range r.Attached {
						records[r.Key.ContainerID] = append(records[r.Key.ContainerID], a.IfName)
					}
				}
				for _, p := range ps {
					nodetest.Equal(t, "interfaces", n.interfaces(p), want)
					nodetest.Equal(t, "recorded", records[p.id], want)
					n.answersFrom(p, n.net(0)+".1")
					if i := decode(t, p, "1.0.0").Interfaces; i[len(i)-1].Name != "eth0" {
						t.Errorf("the result is not the first network's: %s", p.result)
					}
				}
				n.allOK("CHECK", ps)
				for _, p := range ps {
					p.conf = n.with(maps.Clone(p.conf), object{"parallel": parallel})
				}
				n.allOK("DEL", ps)
				n.gone(ps[0])
			}
		})
	}
}

// TestParallelADDEndsTheOthersWhenOneFails: one network fails while those beside it work
// or hang. The one that hangs is killed, even if it ignores SIGTERM, and the error is about
// the one that failed.
func TestParallelADDEndsTheOthersWhenOneFails(t *testing.T) {
	for _, fault := range []string{"hang", "deaf"} {
		t.Run(fault, func(t *testing.T) {
			n := newNode(t)
			fakes := []object{n.fake("a"), n.fake("b", "ADD", "fail"), n.fake("c", "ADD", fault)}
			p := n.pod(n.multinet("1.1.0", fakes...))
			n.parallel(p.conf, fakes...)
			n.fails(111, "ADD", p, []string{"net1"})
			n.nothingLeft()
			n.orphansEnd()
		})
	}
}

// TestDaemonAttachesNetworksInParallel: the daemon attaches and detaches the networks of
// several containers at the same time, and undoes those whose networks do not all work.
func TestDaemonAttachesNetworksInParallel(t *testing.T) {
	n := newNode(t)
	n.daemon(daemonConf{})
	pods := func(on ...string) []*pod {
		return n.newPods(4, func() object {
			fakes := []object{n.fake("a"), n.fake("b"), n.fake("c", on...), n.fake("d")}
			conf := n.thick("1.1.0", fakes...)
			n.parallel(conf, fakes...)
			return conf
		})
	}
	whole, broken := pods(), pods("ADD", "fail")
	begun := n.all("ADD", broken)
	n.allOK("ADD", whole)
	for _, r := range begun {
		n.failed(n.wait(r), 111, "net2")
	}
	nodetest.Equal(t, "attached", len(n.live()), 16)
	n.allOK("CHECK", whole)
	n.allOK("DEL", whole)
	n.noTrace()
}
