package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/containerd/nri/pkg/api"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/metacni/metacni/delegate/delegatetest"
	"github.com/metacni/metacni/delegate/kube/dra"
	"github.com/metacni/metacni/delegate/kube/dra/dratest"
	"github.com/metacni/metacni/delegate/lifecycle"
	multinet "github.com/metacni/metacni/examples/multinet/plugin"
	kubetest "github.com/metacni/metacni/internal/test/kube"
	nodetest "github.com/metacni/metacni/internal/test/node"
	"github.com/metacni/metacni/netconf/nad"
)

const driverName = "net.example.com"

// A cluster is the API server of a node, its scheduler and its kubelet.
type cluster struct {
	*node
	server  *kubetest.Server
	kubelet *dratest.Kubelet
}

// newCluster returns one without a plugin, and fakes for one.
func newCluster(t *testing.T) (*cluster, *delegatetest.Exec) {
	t.Helper()
	n, x := newNode(t)
	return clusterOf(t, n), x
}

// clusterOf returns the cluster of a node.
func clusterOf(t *testing.T, n *node) *cluster {
	t.Helper()
	c := &cluster{node: n, server: kubetest.NewServer(scheme.Codecs.UniversalDeserializer().Decode)}
	t.Cleanup(c.server.Close)
	kubetest.Put(c.server, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node1"}})
	nodetest.OK(t, os.MkdirAll(c.Path("kubelet", "plugins_registry"), 0o700))
	return c
}

// claims has a plugin know claims.
func (c *cluster) claims(p *Plugin) {
	p.Config.DRA.Driver, p.Config.NodeName = driverName, "node1"
	p.Config.DRA.AllowedTypes = []string{"a", "b", "c", "bridge", "host-local"}
	p.Config.KubeletDir, p.Config.DRA.CDIDir = c.Path("kubelet"), c.Path("cdi")
	var err error
	p.Config.Kubeconfig, err = c.server.Kubeconfig(c.Dir)
	nodetest.OK(c, err)
}

// startWith starts a plugin with claims, see [node.start], and connects the kubelet to it.
func (c *cluster) startWith(x *delegatetest.Exec, edit ...func(*Plugin)) *process {
	c.Helper()
	p := c.start(x, append([]func(*Plugin){c.claims}, edit...)...)
	c.register()
	return p
}

// startedCluster returns a cluster on whose node a plugin with claims runs fakes.
func startedCluster(t *testing.T) (*cluster, *delegatetest.Exec, *process) {
	t.Helper()
	c, x := newCluster(t)
	return c, x, c.startWith(x)
}

// register connects the kubelet to the driver.
func (c *cluster) register() {
	c.Helper()
	var err error
	c.kubelet, err = dratest.Register(c.Context(), c.Path("kubelet", "plugins_registry", driverName+"-reg.sock"), "/")
	nodetest.OK(c, err)
	c.Cleanup(func() { _ = c.kubelet.Close() })
}

// inline returns parameters with a network of their own. rest is added to them.
func inline(plugin, rest string) string {
	return fmt.Sprintf(`{"apiVersion":"cni.networking.x-k8s.io/v1alpha1","kind":"CNIConfig","config":{"cniVersion":"1.0.0","name":"own","type":%q,"z":1e3,"a":12345678901234567890}%s}`, plugin, rest)
}

// defined returns parameters that name a definition.
func defined(definition, rest string) string {
	return fmt.Sprintf(`{"apiVersion":"dra.metacni.io/v1alpha1","kind":"Network","definition":%q%s}`, definition, rest)
}

// claim makes a claim of a pod that is allocated: one request for each of parameters.
func (c *cluster) claim(name, podUID string, parameters ...string) *resourcev1.ResourceClaim {
	o := &resourcev1.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, UID: types.UID("claim-" + name)},
		Status: resourcev1.ResourceClaimStatus{
			ReservedFor: []resourcev1.ResourceClaimConsumerReference{{Resource: "pods", Name: "web", UID: types.UID(podUID)}},
			Allocation:  &resourcev1.AllocationResult{},
		},
	}
	for i, p := range parameters {
		share := types.UID(fmt.Sprintf("share-%s-%d", name, i))
		request := fmt.Sprintf("net%c", 'a'+i)
		o.Status.Allocation.Devices.Results = append(o.Status.Allocation.Devices.Results,
			resourcev1.DeviceRequestAllocationResult{Request: request, Driver: driverName, Pool: "node1", Device: "storage", ShareID: &share})
		o.Status.Allocation.Devices.Config = append(o.Status.Allocation.Devices.Config, resourcev1.DeviceAllocationConfiguration{
			Source: resourcev1.AllocationConfigSourceClaim, Requests: []string{request}, DeviceConfiguration: resourcev1.DeviceConfiguration{
				Opaque: &resourcev1.OpaqueDeviceConfiguration{Driver: driverName, Parameters: runtime.RawExtension{Raw: []byte(p)}},
			},
		})
	}
	return kubetest.Put(c.server, o)
}

// prepare has the kubelet prepare a claim.
func (c *cluster) prepare(o *resourcev1.ResourceClaim) error {
	all, err := c.kubelet.Prepare(c.Context(), o)
	if err != nil {
		return err
	}
	return all[string(o.UID)].Err
}

// prepared makes a claim and has the kubelet prepare it.
func (c *cluster) prepared(name, podUID string, parameters ...string) *resourcev1.ResourceClaim {
	c.Helper()
	o := c.claim(name, podUID, parameters...)
	nodetest.OK(c, c.prepare(o))
	return o
}

// unprepare has the kubelet release a claim.
func (c *cluster) unprepare(o *resourcev1.ResourceClaim) error {
	return c.kubelet.Unprepare(c.Context(), o)
}

// status returns the status of the first device of a claim: the interface, the addresses, and
// the condition with its message.
func (c *cluster) status(o *resourcev1.ResourceClaim) string {
	now := kubetest.Get[resourcev1.ResourceClaim](c.server, o.Namespace, o.Name)
	if now == nil || len(now.Status.Devices) == 0 {
		return ""
	}
	d := now.Status.Devices[0]
	text := ""
	if d.NetworkData != nil {
		text = fmt.Sprintf("%s %v ", d.NetworkData.InterfaceName, d.NetworkData.IPs)
	}
	for _, condition := range d.Conditions {
		text += fmt.Sprintf("%s=%s %s %s", condition.Type, condition.Status, condition.Reason, condition.Message)
	}
	return text
}

// reports waits until the status of a claim has all words.
func (c *cluster) reports(o *resourcev1.ResourceClaim, words ...string) {
	c.Helper()
	nodetest.Until(c, fmt.Sprintf("the status of claim %s has %q", o.Name, words), func() bool {
		status := c.status(o)
		return !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(status, w) })
	})
}

// prepares lists the UIDs of the claims that are prepared.
func (c *cluster) prepares() (all []string) {
	claims, err := dra.Prepared(c.Context(), c.Path("state", "claims"), "")
	nodetest.OK(c, err)
	for _, claim := range claims {
		all = append(all, claim.UID)
	}
	return all
}

// pod returns a new sandbox of a pod with that UID.
func (c *cluster) pod(id, uid, networks string) *api.PodSandbox {
	s := c.sandbox(id, networks)
	s.Uid = uid
	return s
}

// definition makes a NetworkAttachmentDefinition in the pods' namespace.
func (c *cluster) definition(name, config string) {
	kubetest.Put(c.server, kubetest.Definition{Namespace: "shop", Name: name, Config: config})
}

// addressed is a fake that gives an address.
func addressed() delegatetest.Fake {
	return func(ctx context.Context, c delegatetest.Invocation) ([]byte, error) {
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
	c, x := newCluster(t)
	x.Plugins["c"] = addressed()
	p := c.startWith(x)
	c.definition("storage", `{"type":"c"}`)
	storage := c.prepared("s1", "uid-1", defined("storage", ""), inline("b", `,"ifName":"net1"`))
	data := c.prepared("s2", "uid-1", inline("b", `,"ifName":"data0"`))
	other := c.prepared("s3", "uid-2", inline("b", ""))
	s := c.pod("c1", "uid-1", "blue")
	c.mustRun(s)
	nodetest.Equal(t, "calls", x.Trace(), []string{"ADD a net2", "ADD c net3", "ADD b net1", "ADD b data0"})
	calls := x.Calls()
	nodetest.Contains(t, "the network in a claim", string(calls[2].Stdin), "12345678901234567890", "1e3")
	if calls[1].Args != calls[0].Args || calls[1].NetNS != calls[0].NetNS || nodetest.Stdin(t, calls[1])["cniVersion"] != cniVersion || nodetest.Stdin(t, calls[1])["name"] != "storage" {
		t.Errorf("a claim is attached by %+v: %s", calls[1], calls[1].Stdin)
	}
	records, err := (&lifecycle.Manager{Dir: p.Config.StateDir}).Container(t.Context(), "c1")
	nodetest.OK(t, err)
	origin := nad.ParseOrigin(records[0].Attached[1].Origin)
	nodetest.Equal(t, "definition", origin.Definition, nad.Ref{Namespace: "shop", Name: "storage"})
	nodetest.Equal(t, "claim", origin.Claim, nad.Claim{UID: "claim-s1", Name: "s1", Request: "neta", Pool: "node1", Device: "storage", Share: "share-s1-0"})
	c.reports(storage, "net3 [192.0.2.5/24]", "Ready=True NetworkInterfaceReady")
	c.reports(data, "data0", "Ready=True")
	c.stop(s)
	nodetest.Equal(t, "calls", x.Trace()[4:], []string{"DEL b data0", "DEL b net1", "DEL c net3", "DEL a net2"})
	c.reports(storage, "Ready=False NetworkInterfaceNotReady")
	c.remove(s)
	for _, o := range []*resourcev1.ResourceClaim{storage, data} {
		nodetest.OK(t, c.unprepare(o))
	}
	nodetest.Equal(t, "prepared", c.prepares(), []string{"claim-s3"})
	nodetest.Equal(t, "the status of a pod that was not started", []string{c.status(other)}, []string{""})
	nodetest.Equal(t, "records", p.records(), nil)
}

// A claim that is released when its pod is being attached is not attached: another pod may have
// its device.
func TestClaimReleasedDuringTheADDIsNotAttached(t *testing.T) {
	t.Parallel()
	c, x := newCluster(t)
	var during atomic.Pointer[func()]
	p := c.startWith(x, func(p *Plugin) {
		p.InterfaceNames = func(string) ([]string, error) {
			if do := during.Load(); do != nil {
				(*do)()
			}
			return nil, nil
		}
	})
	o := c.prepared("s1", "uid-1", inline("b", ""))
	release := func() { nodetest.OK(t, c.unprepare(o)) }
	during.Store(&release)
	nodetest.Says(t, c.run(c.pod("c1", "uid-1", "")), "claim shop/s1: not prepared: the kubelet has released it during the ADD", "code 11")
	p.nothingDone(x)
}

// A claim that contradicts the pod, or that cannot be had, is refused before any plugin runs.
// The error names it.
func TestClaimsThatCannotBeAttachedAreRefused(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, parameters, definition string
		away                         bool
		words                        []string
	}{
		{"an interface that the pod selects", inline("a", `,"ifName":"data0"`), `{"type":"a"}`, false, []string{"data0", "code 7"}},
		{"a definition that does not exist", defined("other", ""), `{"type":"a"}`, false, []string{"NAD shop/other", "code 7"}},
		{"a meta-plugin", defined("storage", ""), `{"type":"multus"}`, false, []string{"NAD shop/storage", "multus", "code 7"}},
		{"a definition with devices", defined("storage", ""), "", false, []string{nad.ResourceAnnotation, "code 7"}},
		{"a type that is not allowed", defined("storage", ""), `{"type":"c"}`, false, []string{"allowedTypes", "code 7"}},
		{"an API server that was never there", defined("storage", ""), `{"type":"a"}`, true, []string{"NAD shop/storage", "code 11"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			c, x := newCluster(t)
			if tt.definition != "" {
				c.definition("storage", tt.definition)
			} else {
				kubetest.Put(c.server, kubetest.Definition{Namespace: "shop", Name: "storage", Config: `{"type":"a"}`, Annotations: map[string]string{nad.ResourceAnnotation: "x/y"}})
			}
			if tt.away {
				c.server.Break(kubetest.Fault{Resource: "network-attachment-definitions", Status: 503})
			}
			p := c.startWith(x, func(p *Plugin) {
				p.Config.AllowedTypes = []string{"a", "multus"}
				if tt.away {
					make(deadline).set(p)
					p.Config.Margin = multinet.Duration(requestTimeout - time.Second) // for the API server
				}
			})
			o := c.prepared("s1", "uid-1", tt.parameters)
			nodetest.Says(t, c.run(c.pod("c1", "uid-1", "blue@data0")), append(tt.words, `"shop/web" (c1)`, `claim "s1", request "neta"`)...)
			c.reports(o, "Ready=False", tt.words[0])
			p.nothingDone(x)
		})
	}
}

// Claims for which the rules do not allow the network are not prepared. If the rules have become
// stricter since, their pods are refused.
func TestForbiddenClaimsAreRefused(t *testing.T) {
	t.Parallel()
	c, x := newCluster(t)
	c.definition("empty", "")
	kubetest.Put(c.server, kubetest.Definition{Namespace: "kube-system", Name: "x", Config: `{"type":"a"}`})
	p := c.startWith(x)
	c.prepared("old1", "uid-1", inline("b", ""))
	c.prepared("old2", "uid-2", defined("kube-system/x", ""))
	c.prepared("old3", "uid-3", defined("empty", ""))
	p.stop()
	c.startWith(x, func(p *Plugin) {
		p.Config.NamespaceIsolation, p.Config.GlobalNamespaces, p.Config.AllowedTypes = true, "shared", []string{"a"}
	})
	nodetest.OK(t, c.prepare(c.claim("shared", "uid-4", defined("shared/x", ""))))
	nodetest.Says(t, c.prepare(c.claim("s1", "uid-4", inline("b", ""))), "allowedTypes")
	nodetest.Says(t, c.prepare(c.claim("s2", "uid-4", inline("multinet", ""))), "meta-plugin")
	for uid, words := range map[string][]string{"uid-1": {"claim shop/old1", "allowedTypes"}, "uid-2": {"claim shop/old2", "namespaceIsolation"}, "uid-3": {`claim "old3"`, "files of the node"}} {
		nodetest.Says(t, c.run(c.pod("c1", uid, "")), append(words, `request "neta"`, "code 7")...)
	}
	nodetest.Equal(t, "calls", x.Trace(), nil)
}

// Nothing is attached to a pod on the host's network, and the claim's status says so.
func TestClaimsOfPodsOnTheHostsNetwork(t *testing.T) {
	t.Parallel()
	c, x, _ := startedCluster(t)
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
	c, x := newCluster(t)
	x.Plugins["c"] = addressed()
	p := c.startWith(x, func(p *Plugin) { p.Config.DRA.Metadata = true })
	c.prepared("s1", "uid-1", inline("c", ""))
	c.mustRun(c.pod("c1", "uid-1", ""))
	text := ""
	for _, file := range c.Files("kubelet/plugins/" + driverName) {
		if strings.HasSuffix(file, ".json") {
			text += c.Read("kubelet/plugins/" + driverName + "/" + file)
		}
	}
	nodetest.Contains(t, "after the ADD", text, "192.0.2.5/24", `"net1"`)
	c.prepared("s2", "uid-2", inline("c", ""))
	nodetest.OK(t, os.RemoveAll(c.Path("kubelet", "plugins", driverName)))
	c.Write("kubelet/plugins/"+driverName, "")
	c.mustRun(c.pod("c2", "uid-2", ""))
	nodetest.Equal(t, "warnings", p.log.Count("containers do not see"), 1)
}

// The networks of the node are published as devices, and withdrawn while their STATUS fails.
func TestNetworksThatAreReadyArePublished(t *testing.T) {
	t.Parallel()
	c, x := newCluster(t)
	c.Write("net.d/up.conf", `{"cniVersion":"1.1.0","name":"up","type":"up","master":"eth1"}`)
	c.definition("storage", `{"type":"a"}`)
	var broken atomic.Bool
	x.Plugins["up"] = failing("STATUS", &broken, delegatetest.Result(nil))
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
	publishes := func(want ...string) {
		t.Helper()
		nodetest.Until(t, fmt.Sprintf("%q are published", want), func() bool {
			var all []string
			for _, s := range kubetest.List[resourcev1.ResourceSlice](c.server) {
				for _, d := range s.Spec.Devices {
					text := d.Name
					for _, key := range []resourcev1.QualifiedName{"plugin", "master", "speed"} {
						if v := d.Attributes[key].StringValue; v != nil {
							text += " " + *v
						}
					}
					all = append(all, text)
				}
			}
			return slices.Equal(all, want)
		}, p.log)
	}
	publishes("nas a", "up up eth1 fast")
	broken.Store(true)
	publishes("nas a")
	nodetest.Equal(t, "log", []int{p.log.Count("not now"), p.log.Count("device=absent "), p.log.Count("device=absent2 ")}, []int{1, 1, 1})
	broken.Store(false)
	publishes("nas a", "up up eth1 fast")
}

// sweepOften is a pause between two sweeps that a test can wait for.
const sweepOften = 5 * time.Millisecond

// The kubelet is served while there is no connection to the runtime, and by the same driver after it:
// a claim that it releases is detached, and that alone, or stays until it can be.
func TestClaimsWhileTheRuntimeIsAway(t *testing.T) {
	t.Parallel()
	c, x, p := startedCluster(t)
	away := c.BlockPluginSync()
	p.disconnect()
	o := c.prepared("s1", "uid-1", inline("a", ""))
	away.Unblock()
	p.connected()
	c.mustRun(c.pod("c1", "uid-1", "red"))
	c.reports(o, "net2", "Ready=True")
	p.reconnect()
	x.Plugins["a"] = delegatetest.FailOn("DEL", 101, "not now", x.Plugins["a"])
	nodetest.Says(t, c.unprepare(o), "shop/s1", "not now")
	nodetest.Equal(t, "prepared", c.prepares(), []string{"claim-s1"})
	x.Plugins["a"] = delegatetest.Result(nil)
	c.server.Stop() // which is not needed
	nodetest.OK(t, c.unprepare(o))
	nodetest.Equal(t, "alive", x.Live(), []string{"b c1 net1"}) // what the pod selects
	nodetest.Equal(t, "prepared", c.prepares(), nil)
}

// A pod that the runtime has given up without an event is detached when its namespace is gone, and
// the status of its claims says so.
func TestLostPodsAreReported(t *testing.T) {
	t.Parallel()
	c, x, p := startedCluster(t)
	c.other("95", "later", func(*api.PodSandbox) error { return errors.New("later is not willing") })
	o := c.prepared("s1", "uid-1", inline("a", ""))
	s := c.pod("c1", "uid-1", "")
	nodetest.Says(t, c.run(s), "later is not willing")
	c.reports(o, "net1", "Ready=True")
	c.unlink(s)
	p.again(func(pass Pass) bool { return pass.Detached == 1 })
	c.reports(o, "Ready=False")
	nodetest.Equal(t, "alive", x.Live(), nil)
}

// On a new node the runtime starts before the kubelet. Pods that select networks must not wait for
// it, and nri, which the runtime may start only once, must not end.
func TestTheKubeletMayComeLater(t *testing.T) {
	t.Parallel()
	c, x := newCluster(t)
	registry := c.Path("kubelet", "plugins_registry")
	nodetest.OK(t, os.Remove(registry))
	c.start(x, c.claims)
	c.mustRun(c.pod("c1", "uid-1", "blue"))
	nodetest.OK(t, os.Mkdir(registry, 0o700))
	nodetest.Until(t, "nri registers", func() bool { // the file of a socket is there before anybody listens
		conn, err := net.Dial("unix", filepath.Join(registry, driverName+"-reg.sock"))
		return err == nil && conn.Close() == nil
	})
	c.register()
	o := c.prepared("s1", "uid-2", inline("b", ""))
	c.mustRun(c.pod("c2", "uid-2", ""))
	c.reports(o, "Ready=True")
	nodetest.Equal(t, "calls", x.Trace(), []string{"ADD a net1", "ADD b net1"})
}
