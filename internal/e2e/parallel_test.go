package e2e

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/metacni/metacni/delegate/lifecycle"
)

// parallel has multinet attach and detach these fakes at once.
func (w *world) parallel(conf object, fakes ...object) {
	conf["parallel"] = true
	for _, f := range fakes {
		f["parallel"] = true
	}
}

// called reports whether a fake has been called.
func (w *world) called(id string) bool {
	w.t.Helper()
	return slices.ContainsFunc(w.calls(), func(c call) bool { return c.ID == id })
}

// undone fails the test unless at least so many fakes were called for ADD, and
// each of them for a DEL afterwards. One that was ended before it could say that
// it was called has a DEL alone.
func (w *world) undone(least int) {
	w.t.Helper()
	added, deleted := map[string]int{}, map[string]int{}
	for _, c := range w.calls() {
		id := c.ID + " " + c.IfName
		if c.Command == "DEL" {
			deleted[id]++
			continue
		}
		if added[id]++; len(deleted) > 0 {
			w.t.Errorf("%s %s after a DEL", c.Command, id)
		}
	}
	if len(added) < least {
		w.t.Errorf("called for ADD: %v, at least %d expected", added, least)
	}
	for id := range deleted {
		if added[id] > 1 || deleted[id] != 1 {
			w.t.Errorf("%s: %d ADDs, %d DELs", id, added[id], deleted[id])
		}
		delete(added, id)
	}
	same(w.t, "not undone", nil, added)
}

// bridges returns a configuration of multinet with n networks of bridge and
// host-local, each with a bridge and a range of its own, or n times the same.
func (w *world) bridges(n int, shared bool) object {
	var delegates []object
	for i := range n {
		which := i
		if shared {
			which = 0
		}
		b := w.with(w.bridge(which), object{"name": w.name(fmt.Sprintf("net%d-", which))})
		if i > 0 { // one default route is enough
			delete(b["ipam"].(object), "routes")
		}
		delegates = append(delegates, b)
	}
	return w.multinet("1.0.0", delegates...)
}

// TestParallel attaches a container to eight bridges at once, or eight times to
// one, and then others together to the same. What is recorded is in the order of
// the configuration, everything is there, and gone after the DEL, be that
// parallel or not.
func TestParallel(t *testing.T) {
	for name, shared := range map[string]bool{"eight bridges": false, "one bridge": true} {
		t.Run(name, func(t *testing.T) {
			const networks, pods = 8, 3
			w := newWorld(t)
			want := []string{"eth0"}
			for i := 1; i < networks; i++ {
				want = append(want, fmt.Sprintf("net%d", i))
			}
			for _, parallel := range []bool{true, false} { // of the DEL
				ps := w.newPods(pods, func() object { return w.with(w.bridges(networks, shared), object{"parallel": true}) })
				// bridge has trouble with containers that come to a new bridge at
				// once: they may not agree on its address, and CHECK fails.
				w.ok("ADD", ps[0])
				w.allOK("ADD", ps[1:])
				same(t, "addresses", networks*pods, len(w.leases()))
				records := map[string][]string{}
				for r, err := range (&lifecycle.Manager{Dir: w.file("state")}).Records(t.Context()) {
					if err != nil {
						t.Fatal(err)
					}
					for i, a := range r.Attached {
						same(t, "network", ps[0].conf["delegates"].([]object)[i]["name"], any(a.Network.Name()))
						records[r.Key.ContainerID] = append(records[r.Key.ContainerID], a.IfName)
					}
				}
				for _, p := range ps {
					same(t, "interfaces", want, w.interfaces(p))
					same(t, "recorded", want, records[p.id])
					w.answersPing(p, w.net(0)+".1")
					if i := decode(t, p, "1.0.0").Interfaces; i[len(i)-1].Name != "eth0" {
						t.Errorf("the result is not the first network's: %s", p.result)
					}
				}
				w.allOK("CHECK", ps)
				for _, p := range ps {
					p.conf = maps.Clone(p.conf)
					p.conf["parallel"] = parallel
				}
				w.allOK("DEL", ps)
				w.nothingLeft()
			}
		})
	}
}

// TestDELKillsParallelOrphans: multinet is killed while two plugins hang, deaf, beside
// each other. The next DEL kills both, and only then runs a plugin.
func TestDELKillsParallelOrphans(t *testing.T) {
	for _, command := range []string{"ADD", "DEL"} {
		t.Run(command, func(t *testing.T) {
			w := newWorld(t)
			fakes := []object{w.fake("a"), w.fake("b", command, "deaf"), w.fake("c", command, "deaf")}
			p := w.pod(w.multinet("1.1.0", fakes...))
			w.parallel(p.conf, fakes...)
			if command == "DEL" {
				w.ok("ADD", p)
			}
			r := w.start(command, p)
			w.ready()
			w.ready()
			w.kill(r)
			same(t, "orphans", 2, len(w.running()))
			w.cure()
			w.ok("DEL", p)
			w.nothingLeft()
			w.noPlugins()
			w.figures(fmt.Sprintf("multinet parallel: SIGKILL in %s, two orphans hang", command), 1)
		})
	}
}

// TestParallelADDEndsTheOthersWhenOneFails: one network fails while those beside it hang. The one
// after it is ended at once, deaf or not; the one before it, when multinet is told
// to stop, and then it is the one that the error is about.
func TestParallelADDEndsTheOthersWhenOneFails(t *testing.T) {
	for _, fault := range []string{"hang", "deaf"} {
		t.Run(fault, func(t *testing.T) {
			w := newWorld(t)
			fakes := []object{w.fake("a"), w.fake("b", "ADD", "fail"), w.fake("c", "ADD", fault)}
			p := w.pod(w.multinet("1.1.0", fakes...))
			w.parallel(p.conf, fakes...)
			w.fails(111, "ADD", p, []string{"net1"})
			w.undone(2)
			w.nothingLeft()
			w.noPlugins()
			w.forget()

			fakes = []object{w.fake("a"), w.fake("b", "ADD", fault), w.fake("c", "ADD", "fail")}
			p.conf = w.multinet("1.1.0", fakes...)
			w.parallel(p.conf, fakes...)
			r := w.start("ADD", p)
			w.ready()
			w.until("c has come", func() bool { return w.called("c") })
			w.terminate(r)
			w.failed(w.wait(r), 11, "net1")
			w.undone(3)
			w.nothingLeft()
			w.noPlugins()
			w.figures("multinet parallel: a plugin fails beside one that does: "+fault, 2)
		})
	}
}

// TestDaemonAttachesNetworksInParallel: the daemon attaches and detaches the networks of several
// containers at once, and undoes those of which one fails.
func TestDaemonAttachesNetworksInParallel(t *testing.T) {
	w := newWorld(t)
	w.daemon(daemonConf{})
	whole := w.newPods(4, func() object {
		fakes := []object{w.fake("a"), w.fake("b"), w.fake("c"), w.fake("d")}
		conf := w.thick("1.1.0", fakes...)
		w.parallel(conf, fakes...)
		return conf
	})
	broken := w.newPods(4, func() object {
		fakes := []object{w.fake("a"), w.fake("b"), w.fake("c", "ADD", "fail"), w.fake("d")}
		conf := w.thick("1.1.0", fakes...)
		w.parallel(conf, fakes...)
		return conf
	})
	rs := w.all("ADD", broken)
	w.allOK("ADD", whole)
	for _, r := range rs {
		w.failed(w.wait(r), 111, "net2")
	}
	same(t, "attached", 16, len(w.live()))
	w.allOK("CHECK", whole)
	w.allOK("DEL", whole)
	w.noTrace()
	w.figures("multinetd parallel: ADDs at once, of which half fail", 8)
}
