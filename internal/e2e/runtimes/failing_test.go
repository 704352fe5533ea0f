package runtimes

import (
	"strings"
	"testing"
)

// A pod whose network has a mistake does not run. The error names the network and says what
// is wrong. When the mistake has been corrected the pod runs, and soon nothing is left of its
// earlier attempts.
func TestPodWithAFailingNetwork(t *testing.T) {
	t.Parallel()
	m := newMember(t)
	broken := m.bridge(1)
	broken["ipam"] = object{"type": "host-loca", "subnet": "10.0.0.0/24"}
	m.define("blue", broken)
	m.writeJSON("net.d/10-primary.conflist", m.primary())
	m.startDaemon(m.daemonKeys(nil))
	m.boot()
	m.waitForNetwork("multinet")
	p := m.create("blue")
	for range 3 {
		err := p.try()
		if err == nil {
			t.Fatal("the pod runs")
		}
		for _, word := range []string{m.namespace + "/blue", "net1", "bridge", "host-loca"} {
			if !strings.Contains(err.Error(), word) {
				t.Errorf("the error lacks %q: %v", word, err)
			}
		}
	}
	same(t, "leases", nil, m.leases())
	same(t, "ports of bridges", nil, m.ports())
	same(t, "rules", nil, m.rules())
	same(t, "namespaces", nil, m.namespaces())
	same(t, "sandboxes", nil, m.sandboxes())

	m.define("blue", m.bridge(1))
	eventually(t, func() bool { return len(m.records()) == 0 })
	p.settle(true)
	same(t, "interfaces", []string{"eth0", "net1"}, p.names())
	m.wantRunning(p)
	p.stop()
	m.wantNothing()
}
