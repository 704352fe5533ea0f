package runtimes

import (
	"os"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/metacni/metacni/delegate/kube/dra/dratest"
	"github.com/metacni/metacni/internal/e2e/kube/played"
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

// The node is not ready while its primary network is missing, and ready again when it is
// back. Pods that run are not concerned.
func TestNodeIsNotReadyWithoutItsPrimaryNetwork(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.writeJSON("net.d/10-primary.conflist", n.primary())
	n.writeJSON("more.json", object{"confDir": n.file("networks"), "binDir": os.Getenv(binEnv)})
	n.tool(0, "install", "--conf-dir", n.file("net.d"), "--host-conf-dir", n.file("net.d"), "--bin-dir", os.Getenv(binEnv),
		"--cni-dir", n.file("state"), "--config", n.file("more.json"))
	n.boot()
	n.waitForNetwork("multinet")
	p := n.newPod("").run()
	ready := func(want bool, word string) {
		t.Helper()
		eventually(t, func() bool {
			got, message := n.networkReady()
			return got == want && strings.Contains(message, word)
		})
	}
	ready(true, "")
	if err := os.Remove(n.file("net.d/10-primary.conflist")); err != nil {
		t.Fatal(err)
	}
	ready(false, "10-primary.conflist")
	p.answers()
	n.writeJSON("net.d/10-primary.conflist", n.primary())
	ready(true, "")
	p.stop()
	n.wantNothing()
}

const claimDriver = "multinetd.metacni.io" // of the manifests

// claiming creates a pod in the API with the claim of its name, and returns what the kubelet
// makes of it.
func (m *member) claiming() (*pod, *corev1.Pod) {
	m.t.Helper()
	p := m.newPod("")
	name := p.name()
	object := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: m.namespace, Name: name}, Spec: corev1.PodSpec{
		NodeName:       m.name(),
		ResourceClaims: []corev1.PodResourceClaim{{Name: "net", ResourceClaimName: &name}},
		Containers:     []corev1.Container{{Name: "main", Image: "none", Resources: corev1.ResourceRequirements{Claims: []corev1.ResourceClaim{{Name: "net"}}}}},
	}}
	object = m.api.Pod(m.t, object)
	p.config.Metadata.Namespace, p.config.Metadata.Uid = m.namespace, string(object.UID)
	p.config.Annotations = map[string]string{"kubernetes.io/config.source": "api"}
	return p, object
}

// The kubelet has a claim prepared, and containerd then runs the pod: it has the interface of
// the claim besides its primary one, and the claim's status says so. The same holds for its next
// sandbox, when the first one has ended while containerd and multinetd were killed and replaced.
// When the pod has stopped and the claim is released nothing is left.
func TestPodHasTheNetworkOfItsClaim(t *testing.T) {
	t.Parallel()
	m := newMember(t)
	m.api.DeployWith(t, "dra")
	m.define("blue", m.bridge(1))
	m.writeJSON("net.d/10-primary.conflist", m.primary())
	m.mkdir("kubelet/plugins_registry")
	keys := m.daemonKeys(object{"kubeletDir": m.file("kubelet"), "dra": object{
		"driver": claimDriver, "networks": []object{{"device": "blue", "network": m.namespace + "/blue"}},
	}})
	m.startDaemon(keys)
	m.boot()
	m.waitForNetwork("multinet")

	client, err := played.Client(m.api.Admin())
	if err != nil {
		t.Fatal(err)
	}
	scheduler := played.Scheduler{Client: client, Driver: claimDriver}
	if err := scheduler.Class(t.Context(), m.namespace); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() bool {
		devices, err := scheduler.Devices(t.Context(), m.name())
		return err == nil && len(devices) == 1
	})
	p, object := m.claiming()
	c, err := scheduler.Create(t.Context(), scheduler.Claim(m.namespace, p.name(), m.namespace, []string{"net"},
		`{"apiVersion":"dra.metacni.io/v1alpha1","kind":"Network","ifName":"data0","definition":"blue"}`))
	if err == nil {
		c, err = scheduler.Allocate(t.Context(), c, m.name(), []string{"blue"}, object)
	}
	if err != nil {
		t.Fatal(err)
	}
	register := func() (k *dratest.Kubelet) {
		t.Helper()
		eventually(t, func() bool {
			k, err = dratest.Register(t.Context(), m.file("kubelet/plugins_registry", claimDriver+"-reg.sock"), "/")
			return err == nil
		}, &err)
		t.Cleanup(func() { _ = k.Close() })
		return k
	}
	kubelet := register()
	if err := played.Prepare(t.Context(), kubelet, c); err != nil {
		t.Fatal(err)
	}
	p.run()
	p.answers()
	same(t, "interfaces", []string{"eth0", "data0"}, p.names())
	m.wantClaim(scheduler, p)

	// The node's programs are replaced, and the pod gets another sandbox.
	m.killContainerd()
	m.killDaemon()
	p.die()
	m.startDaemon(keys)
	m.startContainerd()
	kubelet = register()
	p.settle(true)
	p.answers()
	same(t, "interfaces", []string{"eth0", "data0"}, p.names())
	m.wantClaim(scheduler, p)

	p.stop()
	if err := kubelet.Unprepare(t.Context(), c); err != nil {
		t.Error(err)
	}
	m.wantNothing()
}

// wantClaim waits until the status of the claim of a pod has an interface of the pod.
func (m *member) wantClaim(s played.Scheduler, p *pod) {
	m.t.Helper()
	eventually(m.t, func() bool {
		c, err := s.Client.ResourceV1().ResourceClaims(m.namespace).Get(m.t.Context(), p.name(), metav1.GetOptions{})
		if err != nil {
			m.t.Fatal(err)
		}
		if len(c.Status.Devices) != 1 || c.Status.Devices[0].NetworkData == nil || len(c.Status.Devices[0].NetworkData.IPs) != 1 {
			return false
		}
		data := c.Status.Devices[0].NetworkData
		address, _, _ := strings.Cut(data.IPs[0], "/")
		return slices.Contains(p.interfaces(), data.InterfaceName+" "+address)
	})
}
