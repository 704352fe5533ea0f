package e2e

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/metacni/metacni/delegate/lifecycle"
)

// parallel makes multinet attach and detach these fakes at the same time.
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

// undone fails the test unless at least that many fakes were called for ADD,
// and each of them for DEL afterwards. A fake that is killed before it logs its
// ADD has only a DEL.
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
			w.t.Errorf("%s %s after its DEL", c.Command, id)
		}
	}
	if len(added) < least {
		w.t.Errorf("called for ADD: %v, want at least %d", added, least)
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
// host-local. Each has a bridge and a range of its own, or all share the first.
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

// TestParallelAttachesAndDetachesEverything attaches containers to eight
// bridges at the same time, or eight times to one. The record has the order of
// the configuration, all interfaces are there, and DEL removes them, in
// parallel or not.
func TestParallelAttachesAndDetachesEverything(t *testing.T) {
	for name, shared := range map[string]bool{"eight bridges": false, "one bridge": true} {
		t.Run(name, func(t *testing.T) {
			const networks, pods = 8, 3
			w := newWorld(t)
			want := []string{"eth0"}
			for i := 1; i < networks; i++ {
				want = append(want, fmt.Sprintf("net%d", i))
			}
			for _, parallel := range []bool{true, false} { // whether DEL is
				ps := w.newPods(pods, func() object { return w.with(w.bridges(networks, shared), object{"parallel": true}) })
				// Containers that make a new bridge at the same time may give it
				// different addresses: a limitation of bridge, and CHECK fails.
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

// TestDELKillsParallelOrphans: multinet is killed while two plugins hang and
// ignore SIGTERM. The next DEL kills both, and only then runs a plugin.
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

// TestParallelADDEndsTheOthersWhenOneFails: one network fails while the
// networks before and after it hang. The one after it is killed at once, even
// if it ignores SIGTERM. The one before it is ended when multinet gets SIGTERM,
// and then the error is about that one.
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

// TestDaemonAttachesNetworksInParallel: the daemon attaches and detaches the
// networks of several containers at the same time, and undoes a container whose
// networks do not all work.
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
