package runtimes

import (
	"testing"
)

// A pod that runs gets the networks of its annotation, which containerd passes on, and has
// them in its status. It answers at its port on the node, and leaves nothing.
func TestPodHasTheNetworksOfItsAnnotation(t *testing.T) {
	t.Parallel()
	m := newMember(t)
	m.define("blue", m.bridge(1))
	m.writeJSON("net.d/10-primary.conflist", m.primary())
	// With "runtime" an ADD fails if the runtime passes no annotations.
	m.startDaemon(m.daemonKeys(object{"annotations": "runtime"}))
	m.boot()
	m.waitForNetwork("multinet")
	plain, selecting := m.create("").run(), m.create("blue, blue@more").run()
	plain.answers()
	selecting.answers()
	same(t, "interfaces", []string{"eth0"}, plain.names())
	same(t, "interfaces", []string{"eth0", "net1", "more"}, selecting.names())
	blue := m.namespace + "/blue"
	m.wantStatus(plain, m.primaryName())
	m.wantStatus(selecting, m.primaryName(), blue, blue)
	same(t, "records", 2, len(m.records()))
	plain.stop()
	selecting.answers()
	selecting.stop()
	m.wantNothing()
}

// wantStatus fails the test unless the status of a pod has these networks, and says of each
// what the pod has.
func (m *member) wantStatus(p *pod, networks ...string) {
	m.t.Helper()
	names, interfaces := m.status(p)
	same(m.t, "networks in the status of "+p.name(), networks, names)
	same(m.t, "interfaces in the status of "+p.name(), p.interfaces(), interfaces)
}
