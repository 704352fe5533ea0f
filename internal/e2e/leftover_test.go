package e2e

import (
	"maps"
	"strings"
	"testing"
)

// A network whose IPAM plugin does not exist fails in ADD and in every DEL. Its container
// can be deleted all the same, and attached again once the network is mended. What is left
// stays recorded until gc finds the mended definition.
func TestImpossibleNetworkHoldsUpNoDEL(t *testing.T) {
	w := newWorld(t)
	impossible := w.bridge(1)
	impossible["ipam"] = object{"type": "absent"}
	w.network("storage", impossible)
	p := w.pod(w.multinet("1.1.0", w.bridge(0)))
	p.annotations = map[string]string{annotation: "storage"}
	w.fails(999, "ADD", p, []string{`"storage"`, "absent"})
	w.ok("DEL", p)
	w.ok("DEL", p)
	if r := w.operate("list"); !strings.Contains(r.stdout, "leftover") {
		t.Errorf("list: %s", r.stdout)
	}
	w.network("storage", w.bridge(2)) // the plugin cannot use a bridge that never had an address
	w.ok("ADD", p)
	same(t, "interfaces", []string{"eth0", "net1"}, w.interfaces(p))
	w.ok("CHECK", p)
	w.ok("DEL", p)
	if r := w.operate("gc", "--bin-dir", w.bin, "--conf-dir", w.file("net.d")); r.code != 0 {
		t.Errorf("gc: %s%s", r.stdout, r.stderr)
	}
	w.nothingLeft()
}

// A DEL after the configuration was renamed removes everything, and an ADD after somebody
// has removed the interface attaches anew.
func TestRecordsAreFoundAfterARename(t *testing.T) {
	w := newWorld(t)
	p := w.pod(w.multinet("1.1.0", w.chain(0, w.bridge(0), w.firewall()), w.bridge(1)))
	w.ok("ADD", p)
	w.fails(7, "ADD", p, []string{"already added"})
	w.deleteLink(p, "eth0")
	w.ok("ADD", p)
	same(t, "interfaces", []string{"eth0", "net1"}, w.interfaces(p))
	p.conf = maps.Clone(p.conf)
	p.conf["name"] = w.name("renamed")
	w.ok("DEL", p)
	same(t, "interfaces", nil, w.interfaces(p))
	w.nothingLeft()
	w.gone(p)
}
