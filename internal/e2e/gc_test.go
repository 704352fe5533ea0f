package e2e

import (
	"encoding/json"
	"fmt"
	"testing"

	nodetest "github.com/metacni/metacni/internal/test/node"
)

// TestGCRemovesOnlyStaleContainers: GC removes everything of a container that
// the runtime no longer lists, including additional networks, and nothing of
// the others. While a valid container has no record, the plugins of further networks
// are not told.
func TestGCRemovesOnlyStaleContainers(t *testing.T) {
	n := newNode(t)
	second := n.name("second")
	n.network(second, n.with(n.bridge(2), object{"cniVersion": "1.1.0"}))
	conf := n.multinet("1.1.0", n.bridge(1), n.with(n.fake("f"), object{"name": "fakes"}))
	stays, stale, stranger := n.pod(conf).selects(second), n.pod(conf).selects(second), n.pod(conf)
	n.ok("ADD", stays)
	n.ok("ADD", stale)
	nodetest.Equal(t, "leases", len(n.leases()), 4)
	n.vanish(stale)
	n.forget()

	n.fails(7, "GC", stays, nil) // without a list
	n.fails(11, "GC", stays, []string{"fakes", second, stranger.id + " (eth0)"}, valid(stays, stranger))
	for _, c := range n.calls() {
		if c.Command == "GC" {
			t.Errorf("told %s", c.Stdin)
		}
	}
	n.ok("GC", stays, valid(stays))
	nodetest.Equal(t, "leases", len(n.leases()), 2)
	nodetest.Equal(t, "attached", n.live(), []string{"f@" + stays.id + "@net1"})
	nodetest.Equal(t, "interfaces", n.interfaces(stays), []string{"eth0", "net2"})
	n.ok("CHECK", stays)

	// The delegates get the list of what remains, with their interface names.
	var told []string
	for _, c := range n.calls() {
		if c.Command == "GC" {
			var conf map[string]json.RawMessage
			nodetest.OK(t, json.Unmarshal(c.Stdin, &conf))
			told = append(told, string(conf["cni.dev/valid-attachments"]))
		}
	}
	nodetest.Equal(t, "told", told, []string{fmt.Sprintf(`[{"containerID":%q,"ifname":"net1"}]`, stays.id)})
	n.ok("DEL", stays)
	n.ok("GC", stays, valid())
	n.nothingLeft()
}
