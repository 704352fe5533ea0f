package multinet

import (
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/lifecycle"
	"github.com/metacni/metacni/delegate/plugin"
	nodetest "github.com/metacni/metacni/internal/test/node"
	"github.com/metacni/metacni/scratch"
)

const blueNet = `{"cniVersion":"1.0.0","name":"blue","type":"bridge"}`

// A network is shared if anything on the node says that others may have attachments to it, or if
// something that would say so cannot be read.
func TestSharedNetworks(t *testing.T) {
	t.Parallel()
	record := func(n *nodetest.Node, dir, container string) {
		n.Helper()
		life := &lifecycle.Manager{Dir: n.Path(dir), Invoker: &delegate.Invoker{Exec: n.Exec}}
		a := delegate.Attachment{Network: nodetest.Parse(blueNet), ContainerID: container, IfName: "eth0"}
		_, err := life.Add(n.Context(), scratch.Key{Network: "multi", ContainerID: container, IfName: "eth0"}, lifecycle.Transaction{Plan: lifecycle.Plan(a)})
		nodetest.OK(n, err)
	}
	put := func(n *nodetest.Node, name, text string) {
		n.Helper()
		nodetest.OK(n, os.MkdirAll(filepath.Dir(n.Path(name)), 0o700))
		n.Write(name, text)
	}
	cached := func(n *nodetest.Node, container, network, conf string) {
		n.Helper()
		put(n, "var/lib/cni/results/"+network+"-"+container+"-eth0", fmt.Sprintf(`{"kind":"cniCacheV1","containerId":%q,"config":%q,"ifName":"eth0","networkName":%q,"netns":"/absent"}`,
			container, base64.StdEncoding.EncodeToString([]byte(conf)), network))
	}
	for name, tt := range map[string]struct {
		keys string
		make func(n *nodetest.Node)
		why  string
	}{
		"nobody else":             {},
		"the key":                 {keys: `,"sharedNetworks":["red","blue"]`, why: "sharedNetworks names it"},
		"the key names others":    {keys: `,"sharedNetworks":["red"]`},
		"a key of another type":   {keys: `,"sharedNetworks":"blue"`, why: `key "sharedNetworks"`},
		"the records of nri":      {make: func(n *nodetest.Node) { record(n, "var/lib/cni/nri", "c2") }, why: "it has attachments in /var/lib/cni/nri"},
		"the usual records":       {make: func(n *nodetest.Node) { record(n, "var/lib/cni/multinet", "c2") }, why: "/var/lib/cni/multinet"},
		"records of nri, damaged": {make: func(n *nodetest.Node) { put(n, "var/lib/cni/nri/c2@nri@eth0.json", "{") }, why: "/var/lib/cni/nri: "},
		"the records of another network of multinet": {make: func(n *nodetest.Node) {
			record(n, "other", "c2")
			put(n, "etc/cni/net.d/2.conf", `{"cniVersion":"1.0.0","name":"second","type":"multinet-shim","cniDir":"/other"}`)
		}, why: "/other"},
		"records that no network names":        {make: func(n *nodetest.Node) { record(n, "other", "c2") }},
		"the runtime":                          {make: func(n *nodetest.Node) { cached(n, "c2", "blue", blueNet) }, why: "the runtime has attached eth0 of c2"},
		"the runtime, and it was taken over":   {make: func(n *nodetest.Node) { cached(n, "c1", "blue", blueNet) }},
		"the runtime, to another network":      {make: func(n *nodetest.Node) { cached(n, "c2", "blue-2", strings.Replace(blueNet, "blue", "blue-2", 1)) }},
		"the runtime, with a plugin of ours":   {make: func(n *nodetest.Node) { cached(n, "c2", "blue", strings.Replace(blueNet, "bridge", "multinet", 1)) }},
		"an entry of the runtime, damaged":     {make: func(n *nodetest.Node) { put(n, "var/lib/cni/results/blue-c2-eth0", "{") }, why: "blue-c2-eth0"},
		"podman":                               {make: func(n *nodetest.Node) { put(n, "etc/containers/networks/blue.json", "{}") }, why: "podman has a network of this name"},
		"podman, a network of another name":    {make: func(n *nodetest.Node) { put(n, "etc/containers/networks/red.json", "{}") }},
		"a record of ours that cannot be read": {make: func(n *nodetest.Node) { cached(n, "c1", "blue", blueNet); put(n, "state/c3@multi@eth0.json", "{") }, why: "c3"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := nodetest.New(t, "bridge")
			record(n, "state", "c1")
			if tt.make != nil {
				tt.make(n)
			}
			why := Sharing(t.Context(), plugin.Root(n.Dir), []byte(`{"name":"multi","type":"multinet","cniDir":"/state"`+tt.keys+`}`), "")("blue")
			if (why == "") != (tt.why == "") || !strings.Contains(why, tt.why) {
				t.Errorf("%q, want %q", why, tt.why)
			}
		})
	}
}

// A GC does not tell the plugins of a shared network what is valid. It removes what is stale all the
// same.
func TestGCLeavesSharedNetworksAlone(t *testing.T) {
	t.Parallel()
	for keysOf, want := range map[string][]string{
		`"delegates":[{"type":"bridge"}]`:                              {"DEL bridge eth0", "GC bridge"},
		`"delegates":[{"type":"bridge"}],"sharedNetworks":["multi"]`:   {"DEL bridge eth0"},
		`"delegates":[{"type":"bridge"}],"sharedNetworks":["another"]`: {"DEL bridge eth0", "GC bridge"},
		`"delegates":[{"type":"bridge"}],"sharedNetworks":5`:           {"DEL bridge eth0"},
	} {
		h := newHost(t, "1.1.0")
		h.mustRun(t, "ADD", bridge)
		h.trace()
		nodetest.OK(t, h.run(t, "GC", keys(keysOf, gcFor())))
		wantTrace(t, h, want...)
	}
	h := newHost(t, "1.1.0")
	for _, command := range []string{"ADD", "STATUS"} {
		nodetest.Fails(t, h.run(t, command, keys(bridge, `"sharedNetworks":"blue"`)), 7, "sharedNetworks")
	}
}
