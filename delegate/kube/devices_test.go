package kube

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/metacni/metacni/internal/kubetest"
	"github.com/metacni/metacni/internal/nodetest"
)

// resourceSlice is one of node1's devices, with the attribute in it that is given.
func resourceSlice(name string, generation int64, device, attribute, value string) *resourcev1.ResourceSlice {
	number := int64(7)
	return &resourcev1.ResourceSlice{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: resourcev1.ResourceSliceSpec{
			Driver: "nic.example", NodeName: new("node1"),
			Pool: resourcev1.ResourcePool{Name: "node1", Generation: generation, ResourceSliceCount: 1},
			Devices: []resourcev1.Device{{Name: device, Attributes: map[resourcev1.QualifiedName]resourcev1.DeviceAttribute{
				resourcev1.QualifiedName(attribute): {StringValue: &value}, "number": {IntValue: &number},
			}}},
		},
	}
}

func wantAttributes(t *testing.T, v *View, device string, want map[string]string) {
	t.Helper()
	got, err := v.DeviceAttributes(t.Context(), "nic.example", "node1", device)
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("%s: %v %s", device, err, diff)
	}
}

func TestAttributesOfDevicesAreThoseOfTheResourceSlicesOfTheNode(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	kubetest.Put(s, resourceSlice("a", 2, "vf-0", "k8s.cni.cncf.io/resourceName", "vendor.example/vf"))
	kubetest.Put(s, resourceSlice("b", 2, "vf-1", "model", "x"))
	kubetest.Put(s, resourceSlice("c", 1, "vf-0", "old", "x"))
	kubetest.Put(s, resourceSlice("d", 1, "withdrawn", "old", "x"))
	foreign := resourceSlice("g", 9, "vf-0", "of another driver", "x")
	foreign.Spec.Driver = "gpu.example"
	kubetest.Put(s, foreign)
	pool := resourceSlice("h", 9, "vf-0", "of another pool", "x")
	pool.Spec.Pool.Name = "node1-2"
	kubetest.Put(s, pool)
	other := resourceSlice("e", 9, "vf-0", "elsewhere", "x")
	other.Spec.NodeName = new("node2")
	kubetest.Put(s, other)
	v := synced(t, s, Config{Node: "node1"})
	nodetest.Equal(t, "requests before anybody has asked", s.Count("", "resourceslices"), 0)
	for range 2 {
		wantAttributes(t, v, "vf-0", map[string]string{"k8s.cni.cncf.io/resourceName": "vendor.example/vf"})
		wantAttributes(t, v, "vf-1", map[string]string{"nic.example/model": "x"})
		wantAttributes(t, v, "withdrawn", nil)
		wantAttributes(t, v, "none", nil)
	}
	nodetest.Equal(t, "requests", s.Count("", "resourceslices"), 1)
	if all := v.Resources(); all[len(all)-1].Name != "resourceslices" || all[len(all)-1].Objects != 6 {
		t.Errorf("resources: %+v", all)
	}

	kubetest.Put(s, resourceSlice("f", 3, "vf-9", "model", "y"))
	until(t, v.slices, func() bool { return v.slices.resource().Objects == 7 })
	wantAttributes(t, v, "vf-9", map[string]string{"nic.example/model": "y"})
	wantAttributes(t, v, "vf-0", nil) // of an older generation
}

func TestAttributesThatCannotBeKnownAreTriedAgainLater(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	s.Break(kubetest.Fault{Resource: "resourceslices", Status: 403})
	v := open(t, s, Config{Node: "node1"})
	_, err := v.DeviceAttributes(briefly(t), "nic.example", "node1", "vf-0")
	if !errors.Is(err, ErrNotSynced) || code(err) != 11 {
		t.Errorf("forbidden: %v", err)
	}
	v.Close()
	if _, err := v.DeviceAttributes(t.Context(), "nic.example", "node1", "vf-0"); code(err) != 11 {
		t.Errorf("closed: %v", err)
	}
	nowhere := open(t, s, Config{})
	if _, err := nowhere.DeviceAttributes(t.Context(), "nic.example", "node1", "vf-0"); !errors.Is(err, ErrNotSynced) {
		t.Errorf("without a node: %v", err)
	}
	nowhere.Close()
	closed := open(t, s, Config{Node: "node1"})
	closed.Close()
	if _, err := closed.DeviceAttributes(t.Context(), "nic.example", "node1", "vf-0"); code(err) != 11 {
		t.Errorf("closed before the first call: %v", err)
	}
}
