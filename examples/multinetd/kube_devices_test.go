package main

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/metacni/metacni/internal/nodetest"

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
	nodetest.OK(t, err)
	t.Cleanup(func() { _ = k.Close() })
	tn := newTown(t, `,"nodeName":"n1","deviceInfoDir":"$DIR/devinfo","kubeletDir":"`+k.Dir()+`"`)
	tn.api.SetDefinition(kubetest.Definition{
		Namespace: "ns", Name: "vf", Config: `{"cniVersion":"1.0.0","type":"macvlan"}`,
		Annotations: map[string]string{nad.ResourceAnnotation: vf},
	})
	return tn.start(t), k
}

// writeInfo writes what a device plugin says about a device.
func (tn *town) writeInfo(t *testing.T, id, text string) {
	t.Helper()
	info := filepath.Join(tn.dir, "devinfo", "dp", "vendor.example-vf-"+id+"-device.json")
	nodetest.OK(t, errors.Join(os.MkdirAll(filepath.Dir(info), 0o755), os.WriteFile(info, []byte(text), 0o644)))
}

// The devices are those of the kubelet. It is asked once, and only for pods that need one.
func TestNetworksGetTheDevicesOfThePod(t *testing.T) {
	t.Parallel()
	tn, k := newTownWithDevices(t)
	tn.writeInfo(t, "a", `{"type":"pci","pci":{"pci-address":"a"}}`)
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
	if _, text := tn.get(t, "/metrics"); series(t, text)["multinetd_devices_exhausted_total"] != 1 {
		t.Errorf("one ADD of three had too few devices:\n%s", text)
	}
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

// What cannot be read of a device is said once, and nothing else fails.
func TestDeviceInformationThatCannotBeReadIsAnEventAndALineInTheLog(t *testing.T) {
	t.Parallel()
	for what, text := range map[string]string{"torn": `{"type":"pci"`, "not an object": `[]`, "large": `{"type":"` + strings.Repeat("x", 1<<20) + `"}`} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			tn, k := newTownWithDevices(t)
			tn.writeInfo(t, "a", text)
			k.SetPod("ns", "one", podresourcestest.Devices("app", vf, "a"))
			a := tn.pod(t, "one")
			want(t, "ADD", tn.command(t, "ADD", a, annotated("vf")), 0, "")
			tn.until(t, "there is an Event", func() bool { return slices.Contains(tn.reasons(), "Pod one DeviceInfoLost") })
			tn.until(t, "there is a status", func() bool { return strings.Contains(tn.status("one"), "net1") })
			tn.until(t, "all is told", func() bool { return slices.Contains(tn.reasons(), "Pod one AddedInterface") })
			if n := strings.Count(tn.logged.String(), "device information of net1"); n != 1 {
				t.Errorf("said %d times", n)
			}
			want(t, "DEL", tn.command(t, "DEL", a, annotated("")), 0, "")
			if left, err := os.ReadDir(filepath.Join(tn.dir, "devinfo", "cni")); err != nil || len(left) > 0 {
				t.Errorf("device information left: %v, %v", left, err)
			}
		})
	}
}

// Devices that a ResourceClaim has allocated are devices of the pod too. ResourceSlices are
// watched only when there is one.
func TestNetworksGetTheDevicesOfClaims(t *testing.T) {
	t.Parallel()
	tn, k := newTownWithDevices(t)
	slice := &resourcev1.ResourceSlice{
		ObjectMeta: metav1.ObjectMeta{Name: "n1-nic"},
		Spec: resourcev1.ResourceSliceSpec{
			Driver: "nic.example", NodeName: new("n1"), Pool: resourcev1.ResourcePool{Name: "n1", Generation: 1, ResourceSliceCount: 1},
			Devices: []resourcev1.Device{{Name: "vf-7", Attributes: map[resourcev1.QualifiedName]resourcev1.DeviceAttribute{
				"k8s.cni.cncf.io/resourceName":    {StringValue: new(vf)},
				"resource.kubernetes.io/pciBusID": {StringValue: new("0000:3b:02.7")},
			}}},
		},
	}
	k.SetPod("ns", "plain", podresourcestest.Devices("app", vf, "a"))
	want(t, "ADD", tn.command(t, "ADD", tn.pod(t, "plain"), annotated("vf")), 0, "")
	if n := tn.api.Count("", "resourceslices"); n != 0 {
		t.Errorf("%d requests for a pod without claims", n)
	}
	k.SetPod("ns", "claims", &podresources.ContainerResources{Name: "app", DynamicResources: []*podresources.DynamicResource{{
		ClaimNamespace: "ns", ClaimName: "nic",
		ClaimResources: []*podresources.ClaimResource{{DriverName: "nic.example", PoolName: "n1", DeviceName: "vf-7"}},
	}}})
	a := tn.pod(t, "claims")
	want(t, "before the ResourceSlice has come", tn.command(t, "ADD", a, annotated("vf")), 11, `the resource is not known of "nic.example/n1/vf-7"`)
	tn.api.SetResourceSlice(slice)
	tn.until(t, "the daemon knows the ResourceSlice", func() bool {
		_, text := tn.get(t, "/metrics")
		return series(t, text)[`multinetd_view_objects{resource="resourceslices"}`] == 1
	})
	want(t, "ADD", tn.command(t, "ADD", a, annotated("vf")), 0, "")
	if _, text := tn.get(t, "/metrics"); series(t, text)["multinetd_devices_exhausted_total"] != 0 || slices.Contains(tn.reasons(), "Pod claims InvalidNetwork") {
		t.Error("the pod is to blame")
	}
	calls := tn.fake.Calls()
	if text := string(calls[len(calls)-1].Stdin); !strings.Contains(text, `"deviceID":"0000:3b:02.7"`) {
		t.Errorf("the plugin was given %s", text)
	}
}
