package runtimes

import (
	"os"
	"slices"
	"sync"
	"testing"

	"github.com/metacni/metacni/examples/lab/host"
)

// Pods come and go while containerd and multinetd are killed and started again. In the end
// exactly the pods that run are attached, and nothing is left of the others.
func TestNothingIsLostWhileContainerdAndMultinetdAreKilled(t *testing.T) {
	t.Parallel()
	m := newMember(t)
	m.define("blue", m.bridge(1))
	m.writeJSON("net.d/10-primary.conflist", m.primary())
	keys := m.daemonKeys(nil)
	m.startDaemon(keys)
	m.boot()
	m.waitForNetwork("multinet")

	const workers, rounds = 4, 5
	kept := make([]*pod, workers)
	var working sync.WaitGroup
	for w := range workers {
		working.Go(func() {
			for range rounds {
				p := m.create("blue")
				p.settle(true)
				p.answers()
				p.settle(false)
			}
			kept[w] = m.create("blue")
			kept[w].settle(true)
		})
	}
	done := make(chan struct{})
	go func() { working.Wait(); close(done) }()
	kills := 0
	for worked := false; !worked; kills++ {
		if kills%2 == 0 {
			m.killContainerd()
			m.startContainerd()
		} else {
			m.killDaemon()
			m.startDaemon(keys)
		}
		started := m.pods.Load()
		select {
		case <-done:
			worked = true
		default:
			eventually(t, func() bool { // some progress
				select {
				case <-done:
					return true
				default:
					return m.pods.Load() > started
				}
			})
		}
	}
	if t.Failed() {
		t.FailNow() // a worker has ended early
	}
	t.Logf("figures: %d pods, %d kills", workers*(rounds+1), kills)

	records := make([]string, 0, workers)
	for _, p := range kept {
		same(t, "interfaces", []string{"eth0", "net1"}, p.names())
		m.wantStatus(p, m.primaryName(), m.namespace+"/blue")
		records = append(records, p.id+" eth0 added")
	}
	slices.Sort(records)
	eventually(t, func() bool { return slices.Equal(records, m.records()) }) // after a sweep
	m.wantRunning(kept...)
	for _, p := range kept {
		p.settle(false)
	}
	// Containerd forgets a namespace that it was making or removing when it was killed, and the
	// file for it.
	for _, path := range m.namespaces() {
		if os.Remove(path) == nil { // nothing is mounted there
			continue
		}
		lost := &pod{n: m.node, netns: path}
		same(t, "interfaces of a namespace that containerd has forgotten", nil, lost.interfaces())
		if err := host.RemoveNS(path); err != nil {
			t.Fatal(err)
		}
	}
	m.wantNothing()
}
