package runtimes

import (
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/metacni/metacni/delegate/conform/host"
	"github.com/metacni/metacni/delegate/kube/dra/dratest"
	"github.com/metacni/metacni/internal/e2e/kube/played"
	nodetest "github.com/metacni/metacni/internal/test/node"
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
	nodetest.Equal(t, "interfaces", plain.names(), []string{"eth0"})
	nodetest.Equal(t, "interfaces", selecting.names(), []string{"eth0", "net1", "more"})
	blue := m.namespace + "/blue"
	m.wantStatus(plain, m.primaryName())
	m.wantStatus(selecting, m.primaryName(), blue, blue)
	nodetest.Equal(t, "records", len(m.records()), 2)
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
	nodetest.Equal(m.t, "networks in the status of "+p.name(), names, networks)
	nodetest.Equal(m.t, "interfaces in the status of "+p.name(), interfaces, p.interfaces())
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
	nodetest.Equal(t, "leases", m.leases(), nil)
	nodetest.Equal(t, "ports of bridges", m.host.Ports(), nil)
	nodetest.Equal(t, "rules", m.rules(), nil)
	nodetest.Equal(t, "namespaces", m.namespaces(), nil)
	nodetest.Equal(t, "sandboxes", m.sandboxes(), nil)

	m.define("blue", m.bridge(1))
	eventually(t, func() bool { return len(m.records()) == 0 })
	p.settle(true)
	nodetest.Equal(t, "interfaces", p.names(), []string{"eth0", "net1"})
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
	nodetest.OK(t, os.Remove(n.file("net.d/10-primary.conflist")))
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
	m.host.Mkdir("kubelet/plugins_registry")
	keys := m.daemonKeys(object{"kubeletDir": m.file("kubelet"), "dra": object{
		"driver": claimDriver, "networks": []object{{"device": "blue", "network": m.namespace + "/blue"}},
	}})
	m.startDaemon(keys)
	m.boot()
	m.waitForNetwork("multinet")

	client, err := played.Client(m.api.Admin())
	nodetest.OK(t, err)
	scheduler := played.Scheduler{Client: client, Driver: claimDriver}
	nodetest.OK(t, scheduler.Class(t.Context(), m.namespace))
	eventually(t, func() bool {
		devices, err := scheduler.Devices(t.Context(), m.name())
		return err == nil && len(devices) == 1
	})
	p, object := m.claiming()
	c, err := scheduler.Create(t.Context(), scheduler.Claim(m.namespace, p.name(), m.namespace, []string{"net"},
		`{"apiVersion":"dra.metacni.io/v1alpha1","kind":"Network","ifName":"data0","definition":"blue"}`))
	nodetest.OK(t, err)
	c, err = scheduler.Allocate(t.Context(), c, m.name(), []string{"blue"}, object)
	nodetest.OK(t, err)
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
	nodetest.OK(t, played.Prepare(t.Context(), kubelet, c))
	p.run()
	p.answers()
	nodetest.Equal(t, "interfaces", p.names(), []string{"eth0", "data0"})
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
	nodetest.Equal(t, "interfaces", p.names(), []string{"eth0", "data0"})
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
		nodetest.OK(m.t, err)
		if len(c.Status.Devices) != 1 || c.Status.Devices[0].NetworkData == nil || len(c.Status.Devices[0].NetworkData.IPs) != 1 {
			return false
		}
		data := c.Status.Devices[0].NetworkData
		address, _, _ := strings.Cut(data.IPs[0], "/")
		return slices.Contains(p.interfaces(), data.InterfaceName+" "+address)
	})
}

// Multinet is installed on a node whose pods run, and removed again. The pods keep their
// networks and ports all the time. Each pod is removed entirely by whatever is installed
// when it stops.
func TestInstallAndUninstallOnANodeInUse(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.writeJSON("net.d/10-primary.conflist", n.primary())
	n.boot()
	n.waitForNetwork(n.primaryName())
	first, second := n.newPod("").run(), n.newPod("").run()
	first.answers()

	n.host.Mkdir("networks")
	blue := n.bridge(1)
	blue["name"] = "blue"
	n.writeJSON("networks/blue.conf", blue)
	n.writeJSON("more.json", object{"confDir": n.file("networks"), "binDir": os.Getenv(binEnv)})
	places := []string{"--conf-dir", n.file("net.d"), "--bin-dir", os.Getenv(binEnv)}
	n.tool(0, slices.Concat([]string{"install"}, places, []string{"--cni-dir", n.file("state"), "--config", n.file("more.json")})...)
	n.waitForNetwork("multinet")
	n.wantRunning(first, second)
	first.stop()
	n.wantRunning(second)
	third, fourth := n.newPod("blue").run(), n.newPod("blue").run()
	nodetest.Equal(t, "interfaces", third.names(), []string{"eth0", "net1"})
	n.wantRunning(second, third, fourth)
	fourth.stop()
	n.wantRunning(second, third)
	n.killContainerd() // what it has in memory does not matter
	n.startContainerd()
	n.wantRunning(second, third)

	uninstall := slices.Concat([]string{"uninstall"}, places, []string{"--dir", n.file("state")})
	if said := n.tool(1, uninstall...); !strings.Contains(said, "2 containers") {
		t.Errorf("uninstall while pods run: %s", said)
	}
	n.tool(0, append(uninstall, "--detach")...)
	n.waitForNetwork(n.primaryName())
	nodetest.Equal(t, "records", n.records(), nil)
	nodetest.Equal(t, "interfaces", third.names(), []string{"eth0"})
	nodetest.Equal(t, "leases", n.addresses(), []string{second.addresses()[0], third.addresses()[0]})
	for _, p := range []*pod{second, third, n.newPod("").run()} {
		p.answers()
		p.stop()
	}
	n.wantNothing()
}

// Pods come and go while containerd and multinetd are killed and started again. In the end
// exactly the pods that run are attached, and nothing is left of the others.
func TestNothingIsLostWhileContainerdAndMultinetdAreKilled(t *testing.T) {
	t.Parallel()
	m := newMember(t)
	m.define("blue", m.bridge(1))
	m.writeJSON("net.d/10-primary.conflist", m.primary())
	keys := m.daemonKeys(nil)
	m.startDaemon(keys)
	m.boot()
	m.waitForNetwork("multinet")

	const workers, rounds = 4, 5
	kept := make([]*pod, workers)
	var working sync.WaitGroup
	for w := range workers {
		working.Go(func() {
			for range rounds {
				p := m.create("blue")
				p.settle(true)
				p.answers()
				p.settle(false)
			}
			kept[w] = m.create("blue")
			kept[w].settle(true)
		})
	}
	done := make(chan struct{})
	go func() { working.Wait(); close(done) }()
	kills := 0
	for worked := false; !worked; kills++ {
		if kills%2 == 0 {
			m.killContainerd()
			m.startContainerd()
		} else {
			m.killDaemon()
			m.startDaemon(keys)
		}
		started := m.pods.Load()
		select {
		case <-done:
			worked = true
		default:
			eventually(t, func() bool { // some progress
				select {
				case <-done:
					return true
				default:
					return m.pods.Load() > started
				}
			})
		}
	}
	if t.Failed() {
		t.FailNow() // a worker has ended early
	}
	t.Logf("figures: %d pods, %d kills", workers*(rounds+1), kills)

	records := make([]string, 0, workers)
	for _, p := range kept {
		nodetest.Equal(t, "interfaces", p.names(), []string{"eth0", "net1"})
		m.wantStatus(p, m.primaryName(), m.namespace+"/blue")
		records = append(records, p.id+" eth0 added")
	}
	slices.Sort(records)
	eventually(t, func() bool { return slices.Equal(records, m.records()) }) // after a sweep
	m.wantRunning(kept...)
	for _, p := range kept {
		p.settle(false)
	}
	// Containerd forgets a namespace that it was making or removing when it was killed, and the
	// file for it.
	for _, path := range m.namespaces() {
		if os.Remove(path) == nil { // nothing is mounted there
			continue
		}
		lost := &pod{n: m.node, netns: path}
		nodetest.Equal(t, "interfaces of a namespace that containerd has forgotten", lost.interfaces(), nil)
		nodetest.OK(t, host.RemoveNS(path))
	}
	m.wantNothing()
}
