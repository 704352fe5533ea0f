package runtimes

import (
	"encoding/json"
	"os"
	"slices"
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

// Multinet without the daemon attaches pods from the copy of the definitions that a daemon
// keeps, also while the daemon and the API are away.
func TestMultinetUsesTheCopyOfTheDefinitions(t *testing.T) {
	t.Parallel()
	m := newMember(t)
	m.writeJSON("net.d/10-primary.conflist", m.primary())
	m.writeJSON("more.json", object{"nadDir": m.file("nads"), "confDir": m.file("networks"), "binDir": os.Getenv(binEnv)})
	m.tool(0, "install", "--conf-dir", m.file("net.d"), "--bin-dir", os.Getenv(binEnv), "--cni-dir", m.file("state"), "--config", m.file("more.json"))
	m.boot()
	m.waitForNetwork("multinet")
	keys := m.daemonKeys(nil)
	delete(keys, "multusConfigFile")
	m.startDaemon(keys)
	m.define("blue", m.bridge(1))
	copied := func() bool { return len(m.glob("nads/"+m.namespace+"/blue.conf*")) == 1 }
	eventually(t, copied)
	m.killDaemon()

	p := m.create("blue").run()
	p.answers()
	same(t, "interfaces", []string{"eth0", "net1"}, p.names())
	networks, interfaces := parseStatus(t, m.tool(0, "status", "--dir", m.file("state"), p.id))
	same(t, "networks in the status", []string{m.primaryName(), m.namespace + "/blue"}, networks)
	same(t, "interfaces in the status", p.interfaces(), interfaces)

	m.startDaemon(keys)
	m.define("blue", m.bridge(2))
	eventually(t, func() bool {
		text, err := os.ReadFile(m.glob("nads/" + m.namespace + "/blue.conf*")[0])
		var conf struct{ Bridge string }
		return err == nil && json.Unmarshal(text, &conf) == nil && conf.Bridge == m.bridge(2)["bridge"]
	})
	q := m.create("blue").run()
	same(t, "addresses", true, slices.Contains(q.interfaces(), "net1 "+m.address(2, 2)))
	m.api.Kubectl(t, "", "delete", "-n", m.namespace, "net-attach-def", "blue")
	eventually(t, func() bool { return !copied() })
	if err := m.create("blue").try(); err == nil {
		t.Error("a pod runs without its network")
	}
	p.stop()
	q.stop()
	m.wantNothing()
}
