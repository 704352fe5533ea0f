package podresources_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	api "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/metacni/metacni/delegate/device"
	"github.com/metacni/metacni/delegate/kube/podresources"
	"github.com/metacni/metacni/delegate/kube/podresources/podresourcestest"
	"github.com/metacni/metacni/internal/nodetest"
	"github.com/metacni/metacni/status"
)

func TestDevicesOfClaimsBelongToTheResourceInTheirAttributes(t *testing.T) {
	t.Parallel()
	k, c := start(t)
	attributes := map[string]map[string]string{
		"nic.example/node1/both":  {"k8s.cni.cncf.io/resourceName": vf, "k8s.cni.cncf.io/deviceID": "id", "resource.kubernetes.io/pciBusID": "0000:01:00.0"},
		"nic.example/node1/pci":   {"k8s.cni.cncf.io/resourceName": vf, "resource.kubernetes.io/pciBusID": "0000:02:00.0"},
		"nic.example/node1/no-id": {"k8s.cni.cncf.io/resourceName": vf},
		"gpu.example/node1/gpu-0": {"resource.kubernetes.io/pciBusID": "0000:03:00.0"},
		"gpu.example/node1/plain": {},
	}
	c.Attributes = func(_ context.Context, driver, pool, name string) (map[string]string, error) {
		if driver == "away.example" {
			return nil, errors.New("the API has not answered")
		}
		return attributes[driver+"/"+pool+"/"+name], nil
	}
	claims := func(devices ...string) *api.DynamicResource {
		r := &api.DynamicResource{ClaimNamespace: "default", ClaimName: "nics"}
		for _, d := range devices {
			part := strings.Split(d, "/")
			r.ClaimResources = append(r.ClaimResources, &api.ClaimResource{DriverName: part[0], PoolName: part[1], DeviceName: part[2]})
		}
		return r
	}
	app := podresourcestest.Devices("app", vf, "plugin")
	app.DynamicResources = []*api.DynamicResource{claims("nic.example/node1/pci", "nic.example/node1/no-id"), claims("gpu.example/node1/gpu-0", "gpu.example/node1/plain", "nic.example/node1/both")}
	k.SetPod("default", "web", app)
	want(t, c, web, append(on(0, "plugin"), on(-1, "0000:02:00.0", "id")...))

	app = podresourcestest.Devices("app", vf, "plugin")
	app.DynamicResources = []*api.DynamicResource{claims("away.example/node1/x")}
	k.SetPod("default", "web", app)
	_, err := c.Devices(t.Context(), web)
	if text := `devices of pod "default/web": attributes of device away.example/node1/x of claim default/nics: the API has not answered`; status.Code(err) != 11 || err.Error() != text {
		t.Errorf("got %v", err)
	}
}

// The ResourceSlice of a device may come later than the pod.
func TestDevicesOfClaimsWithoutAttributesBelongToAResourceThatNobodyKnows(t *testing.T) {
	t.Parallel()
	k, c := start(t)
	app := podresourcestest.Devices("app", vf, "plugin")
	app.DynamicResources = []*api.DynamicResource{{ClaimResources: []*api.ClaimResource{{DriverName: "nic.example", PoolName: "node1", DeviceName: "new"}}}}
	k.SetPod("default", "web", app)
	expected := append(on(0, "plugin"), device.Device{ID: "nic.example/node1/new", NUMA: -1})
	want(t, c, web, expected)
	withView := &podresources.Client{Socket: k.Socket(), Attributes: func(context.Context, string, string, string) (map[string]string, error) { return nil, nil }}
	defer withView.Close()
	want(t, withView, web, expected)
}

// A claim may have several shares of a device, and several containers one claim.
func TestADeviceThatIsSharedIsOneDevice(t *testing.T) {
	t.Parallel()
	k, c := start(t)
	c.Attributes = func(context.Context, string, string, string) (map[string]string, error) {
		return map[string]string{"k8s.cni.cncf.io/resourceName": vf, "k8s.cni.cncf.io/deviceID": "a"}, nil
	}
	share := func(id string) *api.ClaimResource {
		return &api.ClaimResource{DriverName: "nic.example", PoolName: "node1", DeviceName: "nic-0", ShareId: &id}
	}
	claim := []*api.DynamicResource{{ClaimNamespace: "default", ClaimName: "shares", ClaimResources: []*api.ClaimResource{share("1"), share("2")}}}
	k.SetPod("default", "web", &api.ContainerResources{Name: "one", DynamicResources: claim}, &api.ContainerResources{Name: "two", DynamicResources: claim})
	containers, err := c.Devices(t.Context(), web)
	nodetest.OK(t, err)
	vfs := []device.Device{{Resource: vf}, {Resource: vf}}
	if ids, err := device.Allocate(containers, nil, vfs[:1]...); err != nil || ids[0] != "a" {
		t.Errorf("one network: %q, %v", ids, err)
	}
	if ids, err := device.Allocate(containers, nil, vfs...); err == nil {
		t.Errorf("two networks: %q, %v", ids, err)
	}
}
