package e2e

import (
	"fmt"
	"testing"

	"github.com/vishvananda/netlink"
)

// TestEveryFailedADDIsUndone fails the ADD of each plugin of three networks of
// two plugins in each possible way. Nothing is left, the plugins that ran are
// undone in reverse order, including the one that failed, and the error keeps
// its code. With "parallel", the plugins that ran at the same time are undone
// as well.
func TestEveryFailedADDIsUndone(t *testing.T) {
	const networks, plugins = 3, 2
	for fault, code := range map[string]uint{
		"fail":    111, // the plugin's own code
		"noise":   6,   // text before the result
		"garbage": 6,   // not a result
		"silence": 6,   // no result
		"hang":    11,  // until multinet gets SIGTERM
	} {
		for fi := range networks {
			for fj := range plugins {
				for _, parallel := range []bool{false, true} {
					t.Run(fmt.Sprintf("%s/%d,%d/parallel %v", fault, fi, fj, parallel), func(t *testing.T) {
						w := newWorld(t)
						var delegates, fakes []object
						var want, undo []string
						for i := range networks {
							var chain []object
							for j := range plugins {
								id, ifname := fmt.Sprintf("n%dp%d", i, j), "eth0"
								if i > 0 {
									ifname = fmt.Sprintf("net%d", i)
								}
								if i == fi && j == fj {
									chain = append(chain, w.fake(id, "ADD", fault))
								} else {
									chain = append(chain, w.fake(id))
								}
								if i < fi || i == fi && j <= fj {
									want = append(want, "ADD "+id+" "+ifname)
									undo = append([]string{"DEL " + id + " " + ifname}, undo...)
								}
							}
							delegates = append(delegates, object{"name": fmt.Sprintf("n%d", i), "cniVersion": "1.0.0", "plugins": chain})
							fakes = append(fakes, chain...)
						}
						p := w.pod(w.multinet("1.0.0", delegates...))
						if parallel {
							w.parallel(p.conf, fakes...)
						}
						r := w.start("ADD", p)
						if fault == "hang" {
							w.ready()
							if parallel && fi == 2 { // otherwise the error would name an earlier network
								w.until("n1 has ended", func() bool { return w.called("n1p1") && len(w.running()) == 1 })
							}
							w.terminate(r)
						}
						a := w.wait(r)
						w.failed(a, code, fmt.Sprintf("n%d", fi), "fake")
						if parallel {
							w.undone(len(want))
						} else {
							w.trace(append(want, undo...)...)
						}
						w.nothingLeft()
						// The runtime's own DEL after a failed ADD finds nothing to do.
						w.forget()
						w.ok("DEL", p)
						w.trace()
					})
				}
			}
		}
	}
}

// TestFailedADDOfRealPluginsIsUndone does the same with plugins that create
// interfaces: the parent interface of the last network does not exist.
func TestFailedADDOfRealPluginsIsUndone(t *testing.T) {
	w := newWorld(t)
	card, index := w.uplink()
	w.needs(&netlink.Macvlan{LinkAttrs: netlink.LinkAttrs{ParentIndex: index}})
	broken := w.name("broken")
	w.network(broken, object{
		"cniVersion": "1.0.0", "type": "macvlan", "master": w.name("gone"),
		"ipam": object{"type": "host-local", "subnet": w.net(3) + ".0/24"},
	})
	p := w.pod(w.multinet("1.0.0", w.bridge(1), object{
		"type": "macvlan", "master": card,
		"ipam": object{"type": "host-local", "subnet": w.net(2) + ".0/24"},
	}))
	p.annotations = map[string]string{annotation: broken}
	if a := w.call("ADD", p); a.err == nil {
		t.Fatalf("attached to %s: %s", broken, a.stdout)
	}
	same(t, "interfaces", nil, w.interfaces(p))
	w.nothingLeft()
	w.ok("DEL", p)
}

// TestFailedUndoKeepsTheRecord: if the undo of an ADD fails, the record is kept. It does
// not hold up the DEL, because no interface is there, and a later one removes the rest.
func TestFailedUndoKeepsTheRecord(t *testing.T) {
	w := newWorld(t)
	first := w.fake("a", "DEL", "fail")
	p := w.pod(w.multinet("1.0.0", first, w.fake("b", "ADD", "fail")))
	second := p.conf["delegates"].([]object)[1]
	second["code"] = 112
	w.fails(112, "ADD", p, nil)
	w.trace("ADD a eth0", "ADD b net1", "DEL b net1", "DEL a eth0")
	if len(w.list(w.file("state"))) == 0 {
		t.Error("a is attached and there is no record")
	}
	same(t, "attached", 1, len(w.live()))
	w.ok("DEL", p, withoutNetNS)
	same(t, "attached", 1, len(w.live()))
	w.cure()
	w.ok("DEL", p)
	w.nothingLeft()
}

// TestADDIsUndoneWhenItsResultCannotBePrinted: an ADD whose result cannot be
// printed fails and is undone.
func TestADDIsUndoneWhenItsResultCannotBePrinted(t *testing.T) {
	w := newWorld(t)
	p := w.pod(w.multinet("1.0.0", w.fake("a", "ADD", "gate")))
	if code := w.unread("ADD", p); code == 0 {
		t.Error("succeeded without printing a result")
	}
	w.trace("ADD a eth0", "DEL a eth0")
	w.nothingLeft()
}

// TestManyCyclesLeaveNothing: after a thousand ADDs and DELs the state
// directory is as it was before.
func TestManyCyclesLeaveNothing(t *testing.T) {
	cycles := 1000
	if !*long {
		cycles = 100
	}
	w := newWorld(t)
	stays := w.pod(w.multinet("1.0.0", w.fake("stays")))
	w.ok("ADD", stays)
	before := w.list(w.file("state"))
	p := w.pod(w.multinet("1.0.0", w.fake("a")))
	for range cycles {
		w.ok("ADD", p)
		w.ok("DEL", p)
	}
	same(t, "state", before, w.list(w.file("state")))
	same(t, "attached", 1, len(w.live()))
	w.ok("DEL", stays)
	w.nothingLeft()
}
