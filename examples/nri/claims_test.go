package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	resourcev1 "k8s.io/api/resource/v1"

	"github.com/metacni/metacni/delegate/delegatetest"
	"github.com/metacni/metacni/delegate/kube/dra"
	"github.com/metacni/metacni/delegate/kube/kubetest"
	"github.com/metacni/metacni/delegate/lifecycle"
	"github.com/metacni/metacni/examples/multinet/multinet"
	"github.com/metacni/metacni/internal/nodetest"
	"github.com/metacni/metacni/netconf/nad"
)

// addressed is a fake that gives an address.
func addressed() delegatetest.Plugin {
	return func(ctx context.Context, c delegatetest.Call) ([]byte, error) {
		if c.Command != "ADD" {
			return nil, nil
		}
		return fmt.Appendf(nil, `{"cniVersion":"1.0.0","interfaces":[{"name":%q,"mac":"02:00:00:00:00:01","sandbox":"/x"}],"ips":[{"interface":0,"address":"192.0.2.5/24"}]}`, c.IfName), nil
	}
}

// The networks of a pod's claims are attached after those that it selects, with names from one
// scheme. The record says why. The claims' status follows, to the end of the pod.
func TestClaimsAreAttachedWithWhatThePodSelects(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	x := plugins()
	x.Plugins["c"] = addressed()
	p := c.startWith(x)
	c.server.SetDefinition(kubetest.Definition{Namespace: "shop", Name: "storage", UID: "nad-1", Config: `{"type":"c"}`})
	storage := c.prepared("s1", "uid-1", defined("storage", ""), inline("b", `,"ifName":"net1"`))
	data := c.prepared("s2", "uid-1", inline("b", `,"ifName":"data0"`))
	other := c.prepared("s3", "uid-2", inline("b", ""))
	s := c.pod("c1", "uid-1", "blue")
	c.mustRun(s)
	nodetest.Equal(t, "calls", x.Trace(), []string{"ADD a net2", "ADD c net3", "ADD b net1", "ADD b data0"})
	calls := x.Calls()
	if text := string(calls[2].Stdin); !strings.Contains(text, "12345678901234567890") || !strings.Contains(text, "1e3") {
		t.Errorf("the network in a claim has become %s", text)
	}
	if calls[1].Args != calls[0].Args || calls[1].NetNS != calls[0].NetNS || nodetest.Stdin(t, calls[1])["cniVersion"] != cniVersion || nodetest.Stdin(t, calls[1])["name"] != "storage" {
		t.Errorf("a claim is attached by %+v: %s", calls[1], calls[1].Stdin)
	}
	var origins []nad.Origin
	records, err := (&lifecycle.Manager{Dir: p.Config.StateDir}).Container(t.Context(), "c1")
	if err != nil || len(records) != 1 {
		t.Fatalf("%d records, %v", len(records), err)
	}
	for _, a := range records[0].Attached {
		o := nad.ParseOrigin(a.Origin)
		o.Version = ""
		origins = append(origins, o)
	}
	nodetest.Equal(t, "origins", origins, []nad.Origin{
		{Use: nad.Selected},
		{Use: nad.Claimed, Definition: nad.Ref{Namespace: "shop", Name: "storage"}, UID: "nad-1", Claim: nad.Claim{UID: "claim-s1", Name: "s1", Request: "neta", Pool: "node1", Device: "storage", Share: "share-s1-0"}},
		{Use: nad.Claimed, Claim: nad.Claim{UID: "claim-s1", Name: "s1", Request: "netb", Pool: "node1", Device: "storage", Share: "share-s1-1"}},
		{Use: nad.Claimed, Claim: nad.Claim{UID: "claim-s2", Name: "s2", Request: "neta", Pool: "node1", Device: "storage", Share: "share-s2-0"}},
	})
	c.reports(storage, "net3 [192.0.2.5/24]", "Ready=True NetworkInterfaceReady")
	c.reports(data, "data0", "Ready=True")
	c.stop(s)
	nodetest.Equal(t, "calls", x.Trace()[4:], []string{"DEL b data0", "DEL b net1", "DEL c net3", "DEL a net2"})
	c.reports(storage, "Ready=False NetworkInterfaceNotReady")
	c.remove(s)
	for _, o := range []*resourcev1.ResourceClaim{storage, data} {
		if err := c.unprepare(o); err != nil {
			t.Error(err)
		}
	}
	nodetest.Equal(t, "prepared", c.prepares(), []string{"uid-2_claim-s3"})
	nodetest.Equal(t, "the status of a pod that was not started", []string{c.status(other)}, []string{""})
	nodetest.Equal(t, "records", p.records(), nil)
}

// A pod need not have the annotation. Each of its sandboxes is attached, and the status is that
// of the newest.
func TestPodWithClaimsAloneIsAttached(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	x := plugins()
	p := c.startWith(x)
	o := c.prepared("s1", "uid-1", inline("a", ""))
	first, second := c.pod("c2", "uid-1", "red"), c.pod("c1", "uid-1", "")
	c.mustRun(first)
	c.reports(o, "net2", "Ready=True")
	c.mustRun(second, c.pod("c3", "uid-2", ""))
	nodetest.Equal(t, "calls", x.Trace(), []string{"ADD b net1", "ADD a net2", "ADD a net1"})
	c.reports(o, "net1", "Ready=True")
	c.stop(first)
	nodetest.Equal(t, "records", p.records(), []string{"c1 added"})
	if text := c.status(o); !strings.Contains(text, "net1") {
		t.Errorf("the status is %s", text)
	}
	c.stop(second)
	c.reports(o, "Ready=False")
	nodetest.Equal(t, "alive", x.Live(), nil)
}

// If one network cannot be attached, all are detached, and the pod is not started. The error
// and the status of the claim say what is wrong. The next sandbox is attached.
func TestFailedNetworkOfAClaimUndoesAll(t *testing.T) {
	t.Parallel()
	for _, late := range []bool{false, true} {
		t.Run(fmt.Sprintf("late=%v", late), func(t *testing.T) {
			t.Parallel()
			c := newCluster(t)
			x := plugins()
			good := x.Plugins["b"]
			x.Plugins["b"] = delegatetest.FailOn("ADD", 113, "no free device", good)
			edit := func(*Plugin) {}
			words := []string{`claim "s1", request "neta"`, "no free device", "code 113"}
			if late {
				gate, _ := c.gate()
				x.Plugins["b"] = delegatetest.GateOn("ADD", gate, good)
				edit, words = lateBy, []string{`network "own" (net2)`, "within the runtime's timeout", "code 11"}
			}
			p := c.startWith(x, edit)
			o := c.prepared("s1", "uid-1", inline("b", ""))
			nodetest.Says(t, c.run(c.pod("c1", "uid-1", "blue")), append([]string{`"shop/web" (c1)`}, words...)...)
			c.reports(o, "Ready=False NetworkInterfaceNotReady", words[len(words)-2])
			p.work.running.Wait()
			nodetest.Equal(t, "calls", x.Trace(), []string{"ADD a net1", "ADD b net2", "DEL b net2", "DEL a net1"})
			nodetest.Equal(t, "records", p.records(), nil)
			nodetest.Equal(t, "running", c.running(), nil)
			if late {
				return
			}
			x.Plugins["b"] = good
			c.mustRun(c.pod("c2", "uid-1", "blue"))
			c.reports(o, "net2", "Ready=True NetworkInterfaceReady")
		})
	}
}

// A claim that contradicts the pod, or that cannot be had, is refused before any plugin runs.
// The error names it.
func TestClaimsThatCannotBeAttachedAreRefused(t *testing.T) {
	t.Parallel()
	type definition = kubetest.Definition
	for _, tt := range []struct {
		name, parameters, networks string
		definition                 definition
		away                       bool
		words                      []string
	}{
		{"the interface of the pod", inline("a", `,"ifName":"eth0"`), "", definition{}, false, []string{"eth0", "code 7"}},
		{"an interface that the pod selects", inline("a", `,"ifName":"data0"`), "blue@data0", definition{}, false, []string{"data0", "code 7"}},
		{"an interface that exists", inline("a", `,"ifName":"lo"`), "", definition{}, false, []string{"lo"}},
		{"a definition that does not exist", defined("storage", ""), "", definition{Name: "other"}, false, []string{"NAD shop/storage", "code 7"}},
		{"a meta-plugin", defined("storage", ""), "", definition{Config: `{"type":"multus"}`}, false, []string{"NAD shop/storage", "multus", "code 7"}},
		{"a definition that is no network", defined("storage", ""), "", definition{Config: `{`}, false, []string{"NAD shop/storage", "code 6"}},
		{"a type that is not allowed", defined("storage", ""), "", definition{Config: `{"type":"c"}`}, false, []string{"allowedTypes", "code 7"}},
		{"a definition with devices", defined("storage", ""), "", definition{Config: `{"type":"a"}`, Annotations: map[string]string{nad.ResourceAnnotation: "x/y"}}, false, []string{nad.ResourceAnnotation, "code 7"}},
		{"a plugin that is not there", inline("b", ""), "", definition{}, false, []string{`"b"`, "code 7"}},
		{"an API server that was never there", defined("storage", ""), "", definition{Config: `{"type":"a"}`}, true, []string{"NAD shop/storage", "code 11"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t)
			x := plugins()
			delete(x.Plugins, "b")
			if tt.definition.Name == "" {
				tt.definition.Name = "storage"
			}
			tt.definition.Namespace = "shop"
			c.server.SetDefinition(tt.definition)
			if tt.away {
				c.server.Break(kubetest.Fault{Resource: "network-attachment-definitions", Status: 503})
			}
			p := c.startWith(x, func(p *Plugin) {
				p.Config.AllowedTypes = []string{"a", "b", "multus"}
				if tt.away {
					lateBy(p)
				}
			})
			o := c.prepared("s1", "uid-1", tt.parameters)
			err := c.run(c.pod("c1", "uid-1", tt.networks))
			nodetest.Says(t, err, append(tt.words, `"shop/web" (c1)`, `claim "s1", request "neta"`)...)
			c.reports(o, "Ready=False", tt.words[0])
			nodetest.Equal(t, "calls", x.Trace(), nil)
			nodetest.Equal(t, "records", p.records(), nil)
		})
	}
}

// Claims for which the rules do not allow the network are not prepared. If the rules have become
// stricter since, their pods are refused.
func TestForbiddenClaimsAreRefused(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	x := plugins()
	c.definition("storage", `{"type":"a"}`)
	c.server.SetDefinition(kubetest.Definition{Namespace: "kube-system", Name: "x", Config: `{"type":"a"}`})
	p := c.startWith(x)
	c.prepared("old1", "uid-1", inline("b", ""))
	c.prepared("old2", "uid-2", defined("kube-system/x", ""))
	c.definition("empty", "")
	c.prepared("old3", "uid-3", defined("empty", ""))
	p.stop()
	c.startWith(x, func(p *Plugin) {
		p.Config.NamespaceIsolation, p.Config.GlobalNamespaces, p.Config.AllowedTypes = true, "shared", []string{"a"}
	})
	for parameters, why := range map[string]string{
		defined("kube-system/x", ""): "namespaceIsolation",
		defined("shared/x", ""):      "",
		inline("b", ""):              "allowedTypes",
		inline("a", ""):              "",
		inline("multinet", ""):       "meta-plugin",
	} {
		err := c.prepare(c.claim("s1", "uid-3", parameters))
		if why == "" && err != nil || why != "" && !strings.Contains(fmt.Sprint(err), why) {
			t.Errorf("%s: %v, want %q", parameters, err, why)
		}
	}
	nodetest.Says(t, c.run(c.pod("c1", "uid-1", "")), `claim shop/old1`, `request "neta"`, "allowedTypes", "code 7")
	nodetest.Says(t, c.run(c.pod("c2", "uid-2", "")), `claim shop/old2`, `request "neta"`, "namespaceIsolation", "code 7")
	nodetest.Says(t, c.run(c.pod("c3", "uid-3", "")), `claim "old3"`, `request "neta"`, "files of the node", "code 7")
	nodetest.Equal(t, "calls", x.Trace(), nil)
}

// Networks that claims have themselves need no API server, and neither do Stop and the release
// of a claim.
func TestPodsOfClaimsStartWhileTheAPIServerIsAway(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	x := plugins()
	c.startWith(x)
	o := c.prepared("s1", "uid-1", inline("a", ""))
	c.server.Stop()
	s := c.pod("c1", "uid-1", "")
	c.mustRun(s)
	c.server.Start()
	c.reports(o, "net1", "Ready=True")
	c.server.Stop()
	c.stop(s)
	if err := c.unprepare(o); err != nil {
		t.Error(err)
	}
	nodetest.Equal(t, "calls", x.Trace(), []string{"ADD a net1", "DEL a net1"})
	nodetest.Equal(t, "prepared", c.prepares(), nil)
}

// A claim whose record is damaged is an error for its pod, and not for others.
func TestDamagedClaimStopsItsPodOnly(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	x := plugins()
	c.startWith(x)
	o := c.prepared("s1", "uid-1", inline("a", ""))
	c.prepared("s2", "uid-2", inline("a", ""))
	c.write("x", "state", "claims", "uid-1_claim-s1")
	nodetest.Says(t, c.run(c.pod("c1", "uid-1", "blue")), "damaged", "code 5")
	c.mustRun(c.pod("c2", "uid-2", ""))
	if err := c.prepare(o); err != nil { // the kubelet does, for each sandbox
		t.Fatal(err)
	}
	c.mustRun(c.pod("c3", "uid-1", ""))
	nodetest.Equal(t, "calls", x.Trace(), []string{"ADD a net1", "ADD a net1"})
}

// Nothing is attached to a pod on the host's network, and the claim's status says so.
func TestClaimsOfPodsOnTheHostsNetwork(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	x := plugins()
	c.startWith(x)
	o := c.prepared("s1", "uid-1", inline("a", ""))
	s := c.pod("c1", "uid-1", "")
	s.Linux.Namespaces = s.Linux.Namespaces[:1]
	c.mustRun(s)
	c.reports(o, "Ready=False", "host's network")
	nodetest.Equal(t, "calls", x.Trace(), nil)
}

// Containers see the interface and the addresses of each device, in files that are complete
// before the runtime has the answer. If they cannot be written the pod is started all the same.
func TestContainersSeeWhatClaimsAreAttachedTo(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	x := plugins()
	x.Plugins["c"] = addressed()
	p := c.startWith(x, func(p *Plugin) { p.Config.DRA.Metadata = true })
	c.prepared("s1", "uid-1", inline("c", ""))
	metadata := func() (text string) {
		_ = filepath.WalkDir(c.file("kubelet", "plugins", driverName), func(path string, d os.DirEntry, err error) error {
			if err == nil && strings.HasSuffix(path, ".json") {
				data, _ := os.ReadFile(path)
				text += string(data)
			}
			return nil
		})
		return text
	}
	if text := metadata(); !strings.Contains(text, `"storage"`) || strings.Contains(text, "192.0.2.5") {
		t.Errorf("before the ADD: %s", text)
	}
	c.mustRun(c.pod("c1", "uid-1", ""))
	if text := metadata(); !strings.Contains(text, "192.0.2.5/24") || !strings.Contains(text, `"net1"`) {
		t.Errorf("after the ADD: %s", text)
	}
	c.prepared("s2", "uid-2", inline("c", ""))
	nodetest.OK(t, os.RemoveAll(c.file("kubelet", "plugins", driverName)))
	c.write("", "kubelet", "plugins", driverName)
	c.mustRun(c.pod("c2", "uid-2", ""))
	nodetest.Equal(t, "warnings", p.log.Count("containers do not see"), 1)
}

// The networks of the node are published as devices, and withdrawn while their STATUS fails.
func TestNetworksThatAreReadyArePublished(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.write(`{"cniVersion":"1.1.0","name":"up","type":"up","master":"eth1"}`, "net.d", "up.conf")
	c.server.SetDefinition(kubetest.Definition{Namespace: "shop", Name: "storage", Config: `{"type":"a"}`})
	x := plugins()
	ready := make(chan error, 1)
	x.Plugins["up"] = func(context.Context, delegatetest.Call) ([]byte, error) {
		err := <-ready
		ready <- err
		return nil, err
	}
	ready <- nil
	p := c.plugin(x, c.claims, func(p *Plugin) {
		p.Config.Sweep = multinet.Duration(sweepOften)
		p.Config.DRA.Networks = []dra.Offer{
			{Network: "up", Exclusive: true, Attributes: map[string]string{"speed": "fast"}},
			{Device: "nas", Network: "shop/storage"},
			{Network: "absent"},
			{Network: "shop/absent", Device: "absent2"},
		}
	})
	p.launch()
	p.connected()
	published := func() (all []string) {
		for _, s := range c.server.ResourceSlices() {
			for _, d := range s.Spec.Devices {
				text := d.Name
				for _, key := range []resourcev1.QualifiedName{"plugin", "master", "speed"} {
					if v := d.Attributes[key].StringValue; v != nil {
						text += " " + *v
					}
				}
				all = append(all, fmt.Sprint(text, " shared=", d.AllowMultipleAllocations != nil))
			}
		}
		return all
	}
	publishes := func(want ...string) {
		t.Helper()
		c.await(fmt.Sprint(want), func() bool { return fmt.Sprint(published()) == fmt.Sprint(want) }, func() string { return fmt.Sprint(published(), p.log) })
	}
	publishes("nas a shared=true", "up up eth1 fast shared=false")
	<-ready
	ready <- errors.New("the link is down")
	publishes("nas a shared=true")
	nodetest.Equal(t, "log", []int{p.log.Count("the link is down"), p.log.Count("device=absent "), p.log.Count("device=absent2 ")}, []int{1, 1, 1})
	<-ready
	ready <- nil
	publishes("nas a shared=true", "up up eth1 fast shared=false")
}
