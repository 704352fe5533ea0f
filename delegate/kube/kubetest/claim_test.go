package kubetest_test

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	typedresourcev1 "k8s.io/client-go/kubernetes/typed/resource/v1"

	"github.com/metacni/metacni/delegate/kube/kubetest"
)

// resources returns a client for claims and slices, in protobuf.
func resources(t *testing.T, s *kubetest.Server) *typedresourcev1.ResourceV1Client {
	t.Helper()
	c := s.Config()
	c.ContentType, c.AcceptContentTypes = runtime.ContentTypeProtobuf, runtime.ContentTypeProtobuf
	client, err := typedresourcev1.NewForConfig(c)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// allocated returns a claim to which a share of a device is allocated.
func allocated() *resourcev1.ResourceClaim {
	share := types.UID("s1")
	return &resourcev1.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "c1", UID: "u1"},
		Status: resourcev1.ResourceClaimStatus{Allocation: &resourcev1.AllocationResult{Devices: resourcev1.DeviceAllocationResult{
			Results: []resourcev1.DeviceRequestAllocationResult{{Request: "r", Driver: "d", Pool: "p", Device: "x", ShareID: &share}},
		}}},
	}
}

// What is not the status is left alone by an update of the status. The status has devices of the
// allocation only, in the sizes that the API has.
func TestTheStatusOfAClaimIsUpdated(t *testing.T) {
	t.Parallel()
	share, other := "s1", "s2"
	device := func(share *string, edit func(*resourcev1.AllocatedDeviceStatus)) resourcev1.AllocatedDeviceStatus {
		d := resourcev1.AllocatedDeviceStatus{Driver: "d", Pool: "p", Device: "x", ShareID: share}
		if edit != nil {
			edit(&d)
		}
		return d
	}
	for name, tt := range map[string]struct {
		edit    func(*resourcev1.ResourceClaim)
		refused string // empty means that it is written
	}{
		"a device of the allocation": {func(c *resourcev1.ResourceClaim) {
			c.Status.Devices = []resourcev1.AllocatedDeviceStatus{device(&share, nil)}
		}, ""},
		"the spec as well": {func(c *resourcev1.ResourceClaim) {
			c.Spec.Devices.Requests = []resourcev1.DeviceRequest{{Name: "new"}}
			c.Status.Devices = []resourcev1.AllocatedDeviceStatus{device(&share, nil)}
		}, ""},
		"another share": {func(c *resourcev1.ResourceClaim) {
			c.Status.Devices = []resourcev1.AllocatedDeviceStatus{device(&other, nil)}
		}, "must be an allocated device"},
		"no share": {func(c *resourcev1.ResourceClaim) {
			c.Status.Devices = []resourcev1.AllocatedDeviceStatus{device(nil, nil)}
		}, "must be an allocated device"},
		"long data": {func(c *resourcev1.ResourceClaim) {
			c.Status.Devices = []resourcev1.AllocatedDeviceStatus{device(&share, func(d *resourcev1.AllocatedDeviceStatus) {
				d.Data = &runtime.RawExtension{Raw: []byte(`"` + strings.Repeat("x", resourcev1.AllocatedDeviceStatusDataMaxLength) + `"`)}
			})}
		}, "data"},
		"many addresses": {func(c *resourcev1.ResourceClaim) {
			c.Status.Devices = []resourcev1.AllocatedDeviceStatus{device(&share, func(d *resourcev1.AllocatedDeviceStatus) {
				d.NetworkData = &resourcev1.NetworkDeviceData{IPs: make([]string, resourcev1.NetworkDeviceDataMaxIPs+1)}
			})}
		}, "ips"},
		"another allocation": {func(c *resourcev1.ResourceClaim) {
			c.Status.Allocation.Devices.Results[0].Device = "y"
		}, "field is immutable"},
		"an old version": {func(c *resourcev1.ResourceClaim) { c.ResourceVersion = "1" }, "modified"},
		"another UID":    {func(c *resourcev1.ResourceClaim) { c.UID = "u2" }, "metadata.uid"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newServer(t)
			s.SetNode(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}) // has version 1
			s.SetClaim(allocated())
			client := resources(t, s).ResourceClaims("ns")
			c, err := client.Get(t.Context(), "c1", metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			tt.edit(c)
			_, err = client.UpdateStatus(t.Context(), c, metav1.UpdateOptions{})
			if tt.refused != "" {
				if err == nil || !strings.Contains(err.Error(), tt.refused) {
					t.Errorf("%v, want %q", err, tt.refused)
				}
				if now := s.Claim("ns", "c1"); len(now.Status.Devices) > 0 {
					t.Errorf("written: %+v", now.Status.Devices)
				}
				return
			}
			now := s.Claim("ns", "c1")
			if err != nil || len(now.Status.Devices) != 1 || len(now.Spec.Devices.Requests) > 0 {
				t.Errorf("%v, %+v", err, now)
			}
		})
	}
}

func TestClaimsAndNodesAreKept(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	if s.Claim("ns", "c1") != nil || s.Node("n1") != nil || s.ResourceSlices() != nil {
		t.Error("there is something in a new server")
	}
	first := s.SetClaim(allocated())
	s.SetNode(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}})
	if c := s.Claim("ns", "c1"); c == nil || c.ResourceVersion != first.ResourceVersion || s.Node("n1") == nil {
		t.Errorf("%+v, %+v", c, s.Node("n1"))
	}
	s.DeleteClaim("ns", "c1")
	if _, err := resources(t, s).ResourceClaims("ns").Get(t.Context(), "c1", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("a claim that was deleted: %v", err)
	}
}

func TestResourceSlicesAreUpdated(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	s.SetResourceSlice(&resourcev1.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: "a"}, Spec: resourcev1.ResourceSliceSpec{Driver: "d"}})
	client := resources(t, s).ResourceSlices()
	if _, err := client.Create(t.Context(), &resourcev1.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: "b"}, Spec: resourcev1.ResourceSliceSpec{Driver: "e"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	found, err := client.List(t.Context(), metav1.ListOptions{FieldSelector: "spec.driver=d"})
	if err != nil || len(found.Items) != 1 || found.Items[0].Name != "a" {
		t.Fatalf("%v, %+v", err, found)
	}
	l := found.Items[0]
	l.Spec.Devices = []resourcev1.Device{{Name: "x"}}
	if _, err := client.Update(t.Context(), &l, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := client.Update(t.Context(), &l, metav1.UpdateOptions{}); !apierrors.IsConflict(err) {
		t.Errorf("the same version again: %v", err)
	}
	s.DeleteResourceSlice("b")
	if all := s.ResourceSlices(); len(all) != 1 || len(all[0].Spec.Devices) != 1 {
		t.Errorf("%+v", all)
	}
}
