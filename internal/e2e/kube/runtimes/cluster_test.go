package runtimes

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/metacni/metacni/internal/e2e/kube/server"
	nodetest "github.com/metacni/metacni/internal/test/node"
)

// shared is the server of cluster. It ends with the private host.
var shared struct {
	sync.Once
	ok bool
	*server.Server
}

// cluster returns an API server with multinetd's manifests, which all tests share.
func cluster(t *testing.T) *server.Server {
	t.Helper()
	shared.Do(func() {
		var err error
		if shared.Server, err = server.Open(os.Getenv(kubeEnv)); err != nil {
			t.Fatal(err)
		}
		shared.Deploy(t)
		shared.ok = true
	})
	if !shared.ok {
		t.Fatal("another test could not start the API server")
	}
	return shared.Server
}

// A member is a node of a cluster. Its multinetd has the account, the role and the policy
// of the manifests.
type member struct {
	*node
	api       *server.Server
	namespace string
}

// newMember makes a node of the cluster, and a namespace for the test.
func newMember(t *testing.T) *member {
	t.Helper()
	n := newNode(t)
	m := &member{node: n, api: cluster(t)}
	m.namespace = m.api.Namespace(t)
	m.api.Node(t, m.name())
	return m
}

func (m *member) name() string { return fmt.Sprintf("node%d", m.host.ID) }

// daemonKeys are those of the node, for the API.
func (m *member) daemonKeys(more object) object {
	m.t.Helper()
	pod := m.api.DaemonPod(m.t, m.name())
	keys := m.node.daemonKeys(more)
	keys["nodeName"] = m.name()
	keys["kubeconfig"] = m.api.Kubeconfig(m.t, m.api.Token(m.t, pod.Namespace, pod.Spec.ServiceAccountName, pod))
	return keys
}

// define creates or changes the definition of a network.
func (m *member) define(name string, network object) {
	m.t.Helper()
	config, err := json.Marshal(network)
	nodetest.OK(m.t, err)
	text, err := json.Marshal(object{
		"apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition",
		"metadata": object{"namespace": m.namespace, "name": name}, "spec": object{"config": string(config)},
	})
	nodetest.OK(m.t, err)
	m.api.Kubectl(m.t, string(text), "apply", "-f", "-")
}

// create creates a pod in the API, and returns what the kubelet makes of it.
func (m *member) create(networks string) *pod {
	m.t.Helper()
	p := m.newPod(networks)
	object := server.PodOn(m.name(), m.namespace, p.name())
	object.Annotations = p.config.Annotations
	object = m.api.Pod(m.t, object)
	p.config.Metadata.Namespace, p.config.Metadata.Uid = m.namespace, string(object.UID)
	p.config.Annotations = map[string]string{"kubernetes.io/config.source": "api"}
	maps.Copy(p.config.Annotations, object.Annotations)
	return p
}

// status returns the network-status that the pod has in the API: the network of each entry,
// and its interface with the addresses.
func (m *member) status(p *pod) (networks, interfaces []string) {
	m.t.Helper()
	got, err := m.get(p)
	nodetest.OK(m.t, err)
	return parseStatus(m.t, got.Annotations["k8s.v1.cni.cncf.io/network-status"])
}

func (m *member) get(p *pod) (*corev1.Pod, error) {
	return m.api.Core(m.t, m.api.Admin()).Pods(m.namespace).Get(m.t.Context(), p.name(), metav1.GetOptions{})
}

// parseStatus returns the network of each entry of a network-status, and its interface with
// the addresses.
func parseStatus(t testing.TB, text string) (networks, interfaces []string) {
	t.Helper()
	var status []struct {
		Name, Interface string
		IPs             []string
	}
	if text == "" {
		return nil, nil
	}
	if err := json.Unmarshal([]byte(text), &status); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	for _, entry := range status {
		networks = append(networks, entry.Name)
		line := entry.Interface
		for _, ip := range entry.IPs {
			line += " " + ip
		}
		interfaces = append(interfaces, line)
	}
	return networks, interfaces
}
