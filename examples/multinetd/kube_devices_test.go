package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/metacni/metacni/delegate/kube/kubetest"
	"github.com/metacni/metacni/delegate/kube/podresources/podresourcestest"
	"github.com/metacni/metacni/netconf/nad"
)

const vf = "vendor.example/vf"

// newTownWithDevices makes a daemon with a kubelet, in a cluster with the definition ns/vf,
// which needs a device. Device information files are in dir/devinfo.
func newTownWithDevices(t *testing.T) (*town, *podresourcestest.Kubelet) {
	t.Helper()
	k, err := podresourcestest.Start()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = k.Close() })
	tn := newTown(t, `,"nodeName":"n1","deviceInfoDir":"$DIR/devinfo","kubeletDir":"`+k.Dir()+`"`)
	tn.api.SetDefinition(kubetest.Definition{
		Namespace: "ns", Name: "vf", Config: `{"cniVersion":"1.0.0","type":"macvlan"}`,
		Annotations: map[string]string{nad.ResourceAnnotation: vf},
	})
	return tn.start(t), k
}

// The devices are those of the kubelet. It is asked once, and only for pods that need one.
func TestNetworksGetTheDevicesOfThePod(t *testing.T) {
	t.Parallel()
	tn, k := newTownWithDevices(t)
	info := filepath.Join(tn.dir, "devinfo", "dp", "vendor.example-vf-a-device.json")
	if err := os.MkdirAll(filepath.Dir(info), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(info, []byte(`{"type":"pci","pci":{"pci-address":"a"}}`), 0o644); err != nil {
		t.Fatal(err)
	}
	k.SetPod("ns", "one", podresourcestest.Devices("app", vf, "b", "a"))
	a := tn.pod(t, "one")
	want(t, "ADD", tn.command(t, "ADD", a, annotated("blue,vf,vf")), 0, "")
	want(t, "a pod that the kubelet does not have", tn.command(t, "ADD", tn.pod(t, "two"), annotated("vf")), 11, "does not know the pod")
	for i, id := range []string{"", "", "a", "b"} {
		if text := string(tn.fake.Calls()[i].Stdin); strings.Contains(text, `"deviceID":"`+id+`"`) != (id != "") {
			t.Errorf("call %d is without %q: %s", i, id, text)
		}
	}
	if got := tn.status("one"); !strings.Contains(got, `"interface":"net2","ips":["10.9.1.2"],"device-info":{"type":"pci","pci":{"pci-address":"a"}}}`) {
		t.Errorf("status %s", got)
	}
	k.SetPod("ns", "few", podresourcestest.Devices("app", vf, "c"))
	want(t, "more than there are", tn.command(t, "ADD", tn.pod(t, "few"), annotated("vf,vf")), 7, "ask for 2")
	tn.until(t, "there is an Event", func() bool { return slices.Contains(tn.reasons(), "Pod few InvalidNetwork") })
	asked := len(k.Requests())
	want(t, "DEL", tn.command(t, "DEL", a, annotated("")), 0, "")
	want(t, "a pod without devices", tn.command(t, "ADD", tn.pod(t, "three"), annotated("blue")), 0, "")
	if len(k.Requests()) != asked || k.Connections() != 1 {
		t.Errorf("%d requests, want %d; %d connections", len(k.Requests()), asked, k.Connections())
	}
	if left, err := os.ReadDir(filepath.Join(tn.dir, "devinfo", "cni")); err != nil || len(left) > 0 {
		t.Errorf("device information left: %v, %v", left, err)
	}
}

// Devices that a ResourceClaim has allocated are devices of the pod too. ResourceSlices are
// watched only when there is one.
func TestNetworksGetTheDevicesOfClaims(t *testing.T) {
	t.Parallel()
	tn, k := newTownWithDevices(t)
	tn.api.SetResourceSlice(&resourcev1.ResourceSlice{
		ObjectMeta: metav1.ObjectMeta{Name: "n1-nic"},
		Spec: resourcev1.ResourceSliceSpec{
			Driver: "nic.example", NodeName: new("n1"), Pool: resourcev1.ResourcePool{Name: "n1", Generation: 1, ResourceSliceCount: 1},
			Devices: []resourcev1.Device{{Name: "vf-7", Attributes: map[resourcev1.QualifiedName]resourcev1.DeviceAttribute{
				"k8s.cni.cncf.io/resourceName":    {StringValue: new(vf)},
				"resource.kubernetes.io/pciBusID": {StringValue: new("0000:3b:02.7")},
			}}},
		},
	})
	k.SetPod("ns", "plain", podresourcestest.Devices("app", vf, "a"))
	want(t, "ADD", tn.command(t, "ADD", tn.pod(t, "plain"), annotated("vf")), 0, "")
	if n := tn.api.Count("", "resourceslices"); n != 0 {
		t.Errorf("%d requests for a pod without claims", n)
	}
	k.SetPod("ns", "claims", &podresources.ContainerResources{Name: "app", DynamicResources: []*podresources.DynamicResource{{
		ClaimNamespace: "ns", ClaimName: "nic",
		ClaimResources: []*podresources.ClaimResource{{DriverName: "nic.example", PoolName: "n1", DeviceName: "vf-7"}},
	}}})
	want(t, "ADD", tn.command(t, "ADD", tn.pod(t, "claims"), annotated("vf")), 0, "")
	calls := tn.fake.Calls()
	if text := string(calls[len(calls)-1].Stdin); !strings.Contains(text, `"deviceID":"0000:3b:02.7"`) {
		t.Errorf("the plugin was given %s", text)
	}
}
