package runtimes

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/metacni/metacni/delegate/kube/dra/dratest"
	"github.com/metacni/metacni/internal/e2e/kube/played"
)

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
