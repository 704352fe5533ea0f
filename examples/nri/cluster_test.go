package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containerd/nri/pkg/api"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/metacni/metacni/delegate/delegatetest"
	"github.com/metacni/metacni/delegate/kube/dra/dratest"
	"github.com/metacni/metacni/delegate/kube/kubetest"
	"github.com/metacni/metacni/internal/nodetest"
)

const driverName = "net.example.com"

// A cluster is the API server of a node, its scheduler and its kubelet.
type cluster struct {
	*node
	server  *kubetest.Server
	kubelet *dratest.Kubelet
}

// newCluster returns one without a plugin.
func newCluster(t *testing.T) *cluster {
	t.Helper()
	return clusterOf(t, newNode(t))
}

// clusterOf returns the cluster of a node.
func clusterOf(t *testing.T, n *node) *cluster {
	t.Helper()
	c := &cluster{node: n, server: kubetest.NewServer()}
	t.Cleanup(c.server.Close)
	c.server.SetNode(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node1"}})
	if _, err := c.server.Kubeconfig(c.dir); err != nil {
		t.Fatal(err)
	}
	nodetest.OK(t, os.MkdirAll(c.file("kubelet", "plugins_registry"), 0o700))
	return c
}

// claims has a plugin know claims.
func (c *cluster) claims(p *Plugin) {
	p.Config.DRA.Driver, p.Config.NodeName = driverName, "node1"
	p.Config.DRA.AllowedTypes = []string{"a", "b", "c", "bridge", "host-local"}
	p.Config.KubeletDir, p.Config.DRA.CDIDir = c.file("kubelet"), c.file("cdi")
	file, err := c.server.Kubeconfig(c.dir)
	if err != nil {
		c.t.Error(err)
	}
	p.Config.Kubeconfig = file
}

// startWith starts a plugin with claims, see [node.start], and connects the kubelet to it.
func (c *cluster) startWith(x *delegatetest.Exec, edit ...func(*Plugin)) *process {
	c.t.Helper()
	p := c.start(x, append([]func(*Plugin){c.claims}, edit...)...)
	c.register()
	return p
}

// register connects the kubelet to the driver.
func (c *cluster) register() {
	c.t.Helper()
	var err error
	c.kubelet, err = dratest.Register(c.t.Context(), c.file("kubelet", "plugins_registry", driverName+"-reg.sock"), "/")
	nodetest.OK(c.t, err)
	c.t.Cleanup(func() { _ = c.kubelet.Close() })
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
	return c.server.SetClaim(o)
}

// prepare has the kubelet prepare a claim.
func (c *cluster) prepare(o *resourcev1.ResourceClaim) error {
	all, err := c.kubelet.Prepare(c.t.Context(), o)
	if err != nil {
		return err
	}
	return all[string(o.UID)].Err
}

// prepared makes a claim and has the kubelet prepare it.
func (c *cluster) prepared(name, podUID string, parameters ...string) *resourcev1.ResourceClaim {
	c.t.Helper()
	o := c.claim(name, podUID, parameters...)
	nodetest.OK(c.t, c.prepare(o))
	return o
}

// unprepare has the kubelet release a claim.
func (c *cluster) unprepare(o *resourcev1.ResourceClaim) error {
	return c.kubelet.Unprepare(c.t.Context(), o)
}

// status returns the status of the first device of a claim: the interface, the addresses, and
// the condition with its message.
func (c *cluster) status(o *resourcev1.ResourceClaim) string {
	now := c.server.Claim(o.Namespace, o.Name)
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
	c.t.Helper()
	c.await(fmt.Sprintf("the status of claim %s has %q", o.Name, words), func() bool {
		status := c.status(o)
		return !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(status, w) })
	}, func() string { return c.status(o) })
}

// await waits until the API server is as it should be.
func (c *cluster) await(what string, done func() bool, got func() string) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), 60*time.Second)
	defer cancel()
	if err := c.server.Wait(ctx, done); err != nil {
		c.t.Fatalf("waited too long until %s: %s", what, got())
	}
}

// prepares lists the claims that are prepared, as POD_CLAIM.
func (c *cluster) prepares() (all []string) {
	entries, err := os.ReadDir(c.file("state", "claims"))
	if err != nil && !os.IsNotExist(err) {
		c.t.Error(err)
	}
	for _, e := range entries {
		all = append(all, filepath.Base(e.Name()))
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
	c.server.SetDefinition(kubetest.Definition{Namespace: "shop", Name: name, Config: config})
}
