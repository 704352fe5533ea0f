package e2e

import (
	"net/http"
	"testing"

	"github.com/metacni/metacni/delegate/thick/wire"
	nodetest "github.com/metacni/metacni/internal/test/node"
)

// A pod keeps the address of its claim when it moves between a node of multinet and one of
// multinetd, whether the old container ends before the new one starts or later, as in a live
// migration. The addresses of others come and go meanwhile. The network is in the pod's
// annotation, or attached to the running pod.
func TestClaimKeepsItsAddressInEveryMove(t *testing.T) {
	thin := newNode(t)
	thick := nodeIn(t, "/run")
	thick.daemon(daemonConf{})
	thin.mkdir("addresses")
	network := func(n *node) object {
		return object{
			"cniVersion": "1.1.0", "name": "vm", "type": "ptp", "capabilities": object{"ipam-claim-reference": true},
			"ipam": object{"type": "claims", "dir": thin.file("addresses")},
		}
	}
	for _, n := range []*node{thin, thick} {
		n.network("vm", network(n))
	}

	// start starts a pod on a node with one more interface, and returns its address there.
	start := func(n *node, claim string, later bool) (*pod, string) {
		t.Helper()
		conf := n.multinet
		if n == thick {
			conf = n.thick
		}
		p := n.pod(conf("1.1.0", n.fake("a")))
		p.annotations = map[string]string{}
		attributes := object{}
		selection := `[{"name":"vm"}]`
		if claim != "" {
			attributes["ipam-claim-reference"] = claim
			selection = `[{"name":"vm","ipam-claim-reference":"` + claim + `"}]`
		}
		if !later {
			p.selects(selection)
		}
		n.ok("ADD", p)
		if later {
			more := *p
			more.ifname, more.conf = "net1", network(n)
			if r := n.post(wire.PathAttach, n.request("ADD", &more, object{"interfaceAttributes": attributes})); r.status != http.StatusOK {
				t.Fatalf("attach: %d %s", r.status, r.body)
			}
		}
		n.ok("CHECK", p)
		addresses := n.find(p, "net1").Addresses
		if len(addresses) != 1 {
			t.Fatalf("net1 has the addresses %v", addresses)
		}
		return p, addresses[0].String()
	}

	_, other := start(thin, "", false) // has the first address
	old, want := start(thin, "web", false)
	if other == want {
		t.Fatal("two pods have the address", want)
	}
	from := thin
	for i := range 100 {
		to := thick
		if from == thick {
			to = thin
		}
		stop := func() {
			from.ok("DEL", old)
			nodetest.Equal(t, "interfaces of the old container", from.interfaces(old), []string(nil))
		}
		migrates := i%2 == 0 // the new container starts while the old one runs
		if !migrates {
			stop()
		}
		if i%10 == 0 {
			start(to, "", false) // takes the address that is free
		}
		p, got := start(to, "web", to == thick && i%3 == 0)
		if got != want {
			t.Fatalf("move %d: address %s, want %s", i, got, want)
		}
		if migrates {
			stop()
		}
		to.ok("CHECK", p)
		old, from = p, to
	}
}
