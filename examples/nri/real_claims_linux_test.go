package main

import (
	"slices"
	"testing"

	"github.com/metacni/metacni/internal/nodetest"
)

// A pod has a network that it selects, one of a definition and one that is in its claim. The
// second pod is too many for the definition's addresses. The first one's Stop is lost.
func realClaims(t *testing.T, bin string) {
	t.Helper()
	c := clusterOf(t, newRealNode(t))
	c.write(`{"cniVersion":"1.0.0","name":"green","type":"bridge","bridge":"br-green","ipam":{"type":"host-local","subnet":"10.75.0.0/24"}}`, "net.d", "green.conf")
	p := c.start(nil, c.claims, realProcesses(bin))
	c.register()
	c.definition("storage", `{"type":"bridge","bridge":"br-storage","ipam":{"type":"host-local","subnet":"10.73.0.0/30"}}`)
	o := c.prepared("s1", "uid-1", defined("storage", `,"ifName":"sto0"`), realInline("10.74.0.0/24"))
	other := c.prepared("s2", "uid-2", realInline("10.74.0.0/24"), defined("storage", ""))
	s, netns := c.realSandbox("c1", "green")
	s.Uid = "uid-1"
	c.mustRun(s)
	nodetest.Equal(t, "first pod", c.interfaces(netns), []string{"net1[10.75.0.2/24]", "sto0[10.73.0.2/30]", "net3[10.74.0.2/24]"})
	c.reports(o, "sto0 [10.73.0.2/30]", "Ready=True NetworkInterfaceReady")
	second, secondNS := c.realSandbox("c2", "green")
	second.Uid = "uid-2"
	nodetest.Says(t, c.run(second), `claim "s2", request "netb"`, "no IP addresses available")
	c.reports(other, "Ready=False", "no IP addresses available")
	nodetest.Equal(t, "second pod", c.interfaces(secondNS), nil)
	nodetest.Equal(t, "leases", slices.Sorted(slices.Values(c.leases())), []string{"10.73.0.2", "10.74.0.2", "10.75.0.2"})
	p.stop()

	p = c.start(nil, c.claims, realProcesses(bin))
	c.register()
	if err := c.unprepare(o); err != nil {
		t.Error(err)
	}
	nodetest.Equal(t, "first pod", c.interfaces(netns), []string{"net1[10.75.0.2/24]"})
	c.stop(s)
	nodetest.Equal(t, "leases", c.leases(), nil)
	nodetest.Equal(t, "records", p.records(), nil)
}

// realInline returns parameters with a network of their own.
func realInline(subnet string) string {
	return `{"apiVersion":"cni.networking.x-k8s.io/v1alpha1","kind":"CNIConfig","config":{"cniVersion":"1.0.0","name":"own","type":"bridge","bridge":"br-own","ipam":{"type":"host-local","subnet":"` + subnet + `"}}}`
}
