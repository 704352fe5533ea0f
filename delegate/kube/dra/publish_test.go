package dra

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/metacni/metacni/internal/nodetest"
)

// published returns the devices in all slices of the node.
func (n *node) published() map[string]resourcev1.Device {
	devices := map[string]resourcev1.Device{}
	for _, s := range n.server.ResourceSlices() {
		if s.Spec.Driver == driverName && s.Spec.Pool.Name == "node1" && s.Spec.NodeName != nil && *s.Spec.NodeName == "node1" {
			for _, d := range s.Spec.Devices {
				devices[d.Name] = d
			}
		}
	}
	return devices
}

func TestNetworksArePublishedAndWithdrawn(t *testing.T) {
	t.Parallel()
	n := newNode(t, nil)
	n.server.SetNode(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node1"}})
	storage := device{name: "storage", attributes: map[string]string{"plugin": "bridge", "master": "eth1", "example.com/zone": "a"}}
	vlan := device{name: "vlan", exclusive: true}
	publish := func(devices ...device) {
		t.Helper()
		nodetest.OK(t, n.publish(t.Context(), devices))
	}
	publish(vlan, storage)
	n.await(t, "published", func() bool { return len(n.published()) == 2 })
	got := n.published()
	if a := got["storage"].AllowMultipleAllocations; a == nil || !*a || got["vlan"].AllowMultipleAllocations != nil {
		t.Errorf("shared: %v, %v", a, got["vlan"].AllowMultipleAllocations)
	}
	for key, want := range storage.attributes {
		if v := got["storage"].Attributes[resourcev1.QualifiedName(key)].StringValue; v == nil || *v != want {
			t.Errorf("%s is %v", key, v)
		}
	}
	storage.err = errors.New("STATUS fails")
	publish(storage, vlan)
	n.await(t, "withdrawn", func() bool { return len(n.published()) == 1 && n.published()["vlan"].Name != "" })
	storage.err = nil
	publish(storage, vlan)
	n.await(t, "published again", func() bool { return len(n.published()) == 2 })
	publish()
	n.await(t, "all withdrawn", func() bool { return len(n.published()) == 0 })
	var many []device
	for i := range 200 {
		many = append(many, device{name: fmt.Sprintf("net%d", i)})
	}
	publish(many...)
	n.await(t, "many published", func() bool { return len(n.published()) == 200 })
}

func TestDevicesThatNoServerTakesAreRefused(t *testing.T) {
	t.Parallel()
	attribute := func(key, value string) device {
		return device{name: "a", attributes: map[string]string{key: value}}
	}
	for name, device := range map[string]device{
		"no name":               {},
		"no DNS label":          {name: "A_b"},
		"a long key":            attribute(strings.Repeat("x", 33), ""),
		"a key that is none":    attribute("a-b", ""),
		"a domain that is none": attribute("A_B/a", ""),
	} {
		if err := device.check(); err == nil {
			t.Errorf("taken: %s", name)
		}
	}
}
