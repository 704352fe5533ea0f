package podresources_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	api "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/metacni/metacni/delegate/device"
	"github.com/metacni/metacni/delegate/kube"
	"github.com/metacni/metacni/delegate/kube/podresources"
	"github.com/metacni/metacni/delegate/kube/podresources/podresourcestest"
	"github.com/metacni/metacni/netconf/nad"
)

const vf = "vendor.example/vf"

// A View has the attributes that a Client needs.
var _ = podresources.Client{Attributes: (&kube.View{}).DeviceAttributes}

var web = nad.Pod{Namespace: "default", Name: "web", UID: "u1"}

// start starts a kubelet and a client of it.
func start(t *testing.T) (*podresourcestest.Kubelet, *podresources.Client) {
	t.Helper()
	k, err := podresourcestest.Start()
	if err != nil {
		t.Fatal(err)
	}
	c := &podresources.Client{Socket: k.Socket(), Checkpoint: k.Checkpoint(), Timeout: time.Minute}
	t.Cleanup(func() {
		if err := errors.Join(c.Close(), k.Close()); err != nil {
			t.Error(err)
		}
	})
	return k, c
}

// want compares the devices of a pod.
func want(t *testing.T, c *podresources.Client, pod nad.Pod, want ...device.Container) {
	t.Helper()
	got, err := c.Devices(t.Context(), pod)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func on(numa int, ids ...string) (ds []device.Device) {
	for _, id := range ids {
		ds = append(ds, device.Device{Resource: vf, ID: id, NUMA: numa})
	}
	return ds
}

func methods(k *podresourcestest.Kubelet) string {
	var all []string
	for _, r := range k.Requests() {
		all = append(all, r.Method+":"+r.Code.String())
	}
	return strings.Join(all, " ")
}

func TestDevicesAreThoseThatTheKubeletReports(t *testing.T) {
	t.Parallel()
	k, c := start(t)
	topology := func(nodes ...int64) *api.TopologyInfo {
		info := &api.TopologyInfo{}
		for _, n := range nodes {
			info.Nodes = append(info.Nodes, &api.NUMANode{ID: n})
		}
		return info
	}
	k.SetPod("default", "web",
		&api.ContainerResources{Name: "sidecar", Devices: []*api.ContainerDevices{
			{ResourceName: vf, DeviceIds: []string{"b", "a"}, Topology: topology(1, 0)},
			{ResourceName: vf, DeviceIds: []string{"c"}},
		}},
		&api.ContainerResources{Name: "app"},
	)
	k.SetPod("other", "web", podresourcestest.Devices("app", vf, "x"))
	want(t, c, web,
		device.Container{Name: "sidecar", Devices: append(on(0, "b", "a"), on(device.NoNUMA, "c")...)},
		device.Container{Name: "app"},
	)
	if got := methods(k); got != "Get:OK" {
		t.Errorf("the kubelet was asked %s, want Get alone", got)
	}
}

func TestAContainerOutsideOfKubernetesHasNoDevices(t *testing.T) {
	t.Parallel()
	k, c := start(t)
	want(t, c, nad.Pod{})
	if got := methods(k); got != "" {
		t.Errorf("the kubelet was asked %s", got)
	}
}

func TestKubeletsWithoutGetAreAskedForAllPods(t *testing.T) {
	t.Parallel()
	for _, disabled := range []bool{false, true} {
		k, c := start(t)
		k.WithoutGet(disabled)
		k.SetPod("default", "api", podresourcestest.Devices("app", vf, "x"))
		k.SetPod("default", "web", podresourcestest.Devices("app", vf, "a"))
		for range 2 {
			want(t, c, web, device.Container{Name: "app", Devices: on(0, "a")})
		}
		first := "Get:Unimplemented"
		if disabled {
			first = "Get:Unknown"
		}
		if got, want := methods(k), first+" List:OK List:OK"; got != want {
			t.Errorf("the kubelet was asked %s, want %s", got, want)
		}
	}
}

func TestAPodThatTheKubeletDoesNotKnowIsTriedAgainLater(t *testing.T) {
	t.Parallel()
	_, c := start(t)
	_, err := c.Devices(t.Context(), web)
	var e *podresources.Error
	if !errors.As(err, &e) || !errors.Is(err, podresources.ErrUnknownPod) || e.CNICode() != 11 {
		t.Errorf("got %v", err)
	}
	if want := `devices of pod "default/web": the kubelet does not know the pod`; err.Error() != want {
		t.Errorf("got %q, want %q", err, want)
	}
}

const checkpoint = `{"Data":{"PodDeviceEntries":[
	{"PodUID":"u1","ContainerName":"second","ResourceName":"vendor.example/vf","DeviceIDs":{"1":["d"],"-1":["e"],"0":["c","b"]},"AllocResp":"CgA="},
	{"PodUID":"u2","ContainerName":"app","ResourceName":"vendor.example/vf","DeviceIDs":{"0":["x"]},"AllocResp":""},
	{"PodUID":"u1","ContainerName":"first","ResourceName":"vendor.example/vf","DeviceIDs":{"0":["a"]},"AllocResp":""},
	{"PodUID":"u1","ContainerName":"second","ResourceName":"vendor.example/nic","DeviceIDs":{"0":["n"]},"AllocResp":""}
],"RegisteredDevices":{"vendor.example/vf":["a","b"]}},"Checksum":2711024366}`

func TestWithoutASocketTheCheckpointIsRead(t *testing.T) {
	t.Parallel()
	k, c := start(t)
	k.Stop()
	if err := os.WriteFile(k.Checkpoint(), []byte(checkpoint), 0o600); err != nil {
		t.Fatal(err)
	}
	want(t, c, web,
		device.Container{Name: "first", Devices: on(0, "a")},
		device.Container{Name: "second", Devices: append(append(append(on(-1, "e"), on(0, "c", "b")...), on(1, "d")...), device.Device{Resource: "vendor.example/nic", ID: "n"})},
	)
	want(t, c, nad.Pod{Namespace: "default", Name: "plain", UID: "u3"})
}

func TestACheckpointThatCannotBeUsedIsTriedAgainLater(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for name, text := range map[string]string{
		"empty": "", "cut": checkpoint[:200], "another": `{"data":[]}`, "empty object": `{}`, "number": "7",
		"without NUMA": `{"Data":{"PodDeviceEntries":[{"PodUID":"u1","DeviceIDs":["a"]}]}}`,
		"large":        strings.Repeat(" ", podresources.MaxSize) + checkpoint,
	} {
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		c := &podresources.Client{Socket: filepath.Join(dir, "none"), Checkpoint: file}
		if got, err := c.Devices(t.Context(), web); err == nil || code(err) != 11 {
			t.Errorf("%s: got %v, %v", name, got, err)
		}
	}
	c := &podresources.Client{Socket: filepath.Join(dir, "none"), Checkpoint: filepath.Join(dir, "none")}
	if _, err := c.Devices(t.Context(), web); !errors.Is(err, fs.ErrNotExist) || code(err) != 11 {
		t.Errorf("neither socket nor checkpoint: %v", err)
	}
	c.Checkpoint = filepath.Join(dir, "empty object")
	if _, err := c.Devices(t.Context(), nad.Pod{Namespace: "default", Name: "web"}); err == nil || !strings.Contains(err.Error(), "K8S_POD_UID") {
		t.Errorf("without a UID: %v", err)
	}
}

// code returns the CNI code of err, or 0.
func code(err error) uint {
	var e *podresources.Error
	if !errors.As(err, &e) {
		return 0
	}
	return e.CNICode()
}

// The kubelet takes 10 requests at once and 100 a second.
func TestAnyNumberOfPodsCanStartAtOnce(t *testing.T) {
	t.Parallel()
	for _, get := range []bool{true, false} {
		k, c := start(t)
		if !get {
			k.WithoutGet(false)
		}
		const pods = 200
		for i := range pods {
			k.SetPod("default", fmt.Sprint("web", i), podresourcestest.Devices("app", vf, fmt.Sprint("vf", i)))
		}
		var all sync.WaitGroup
		for i := range pods {
			all.Go(func() {
				got, err := c.Devices(t.Context(), nad.Pod{Namespace: "default", Name: fmt.Sprint("web", i)})
				if err != nil {
					t.Error(err)
					return
				}
				if diff := cmp.Diff([]device.Container{{Name: "app", Devices: on(0, fmt.Sprint("vf", i))}}, got); diff != "" {
					t.Error(diff)
				}
			})
		}
		all.Wait()
		if n := k.Connections(); n != 1 {
			t.Errorf("%d connections, want 1", n)
		}
		lists := 0
		for _, r := range k.Requests() {
			if r.Method == "List" && r.Code == codes.OK {
				lists++
			}
		}
		if lists > pods/2 {
			t.Errorf("%d requests for all pods, want few", lists)
		}
	}
}

func TestAKubeletThatIsNotThereForAMomentIsAskedAgain(t *testing.T) {
	t.Parallel()
	for name, disturb := range map[string]func(*podresourcestest.Kubelet) error{
		"unavailable": func(k *podresourcestest.Kubelet) error { k.Fail(4, codes.Unavailable, "starting"); return nil },
		"rate": func(k *podresourcestest.Kubelet) error {
			k.Fail(4, codes.ResourceExhausted, "rejected by rate limit")
			return nil
		},
		"crash": func(k *podresourcestest.Kubelet) error { return k.Crash() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			k, c := start(t)
			k.SetPod("default", "web", podresourcestest.Devices("app", vf, "a"))
			want(t, c, web, device.Container{Name: "app", Devices: on(0, "a")})
			if err := os.WriteFile(k.Checkpoint(), []byte(checkpoint), 0o600); err != nil { // for a moment without a socket
				t.Fatal(err)
			}
			if err := disturb(k); err != nil {
				t.Fatal(err)
			}
			got := make(chan error)
			go func() {
				_, err := c.Devices(t.Context(), web)
				got <- err
			}()
			if name == "crash" {
				if err := os.Remove(k.Socket()); err != nil {
					t.Error(err)
				}
				if err := k.Listen(); err != nil {
					t.Error(err)
				}
			}
			if err := <-got; err != nil {
				t.Error(err)
			}
		})
	}
}

func TestAKubeletThatDoesNotComeBackIsTriedAgainLater(t *testing.T) {
	t.Parallel()
	k, c := start(t)
	if err := k.Crash(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err := c.Devices(ctx, web)
	if !errors.Is(err, context.DeadlineExceeded) || code(err) != 11 || !strings.Contains(err.Error(), "refused") {
		t.Errorf("got %v, want what is wrong, and that the time is over", err)
	}
	short := &podresources.Client{Socket: k.Socket(), Timeout: time.Millisecond}
	defer short.Close()
	if _, err := short.Devices(t.Context(), web); !errors.Is(err, context.DeadlineExceeded) || code(err) != 11 {
		t.Errorf("with a short timeout: %v", err)
	}
}

func TestAnswersMayHave16MiB(t *testing.T) {
	t.Parallel()
	k, c := start(t)
	k.SetPod("default", "web", podresourcestest.Devices("app", vf, strings.Repeat("a", 10<<20)))
	want(t, c, web, device.Container{Name: "app", Devices: on(0, strings.Repeat("a", 10<<20))})
	k.SetPod("default", "web", podresourcestest.Devices("app", vf, strings.Repeat("a", podresources.MaxSize)))
	if _, err := c.Devices(t.Context(), web); code(err) != 11 || !strings.Contains(err.Error(), "larger than max") {
		t.Errorf("got %v", err)
	}
	if got := methods(k); got != "Get:OK Get:OK List:OK" {
		t.Errorf("the kubelet was asked %s: an answer that is too large must not be asked for again", got)
	}
}

func TestCloseEndsCallsThatWait(t *testing.T) {
	t.Parallel()
	k, c := start(t)
	release := k.Hold()
	defer release()
	got := make(chan error)
	for range 3 {
		go func() {
			_, err := c.Devices(t.Context(), web)
			got <- err
		}()
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if err := <-got; code(err) != 11 {
			t.Errorf("got %v", err)
		}
	}
	if _, err := c.Devices(t.Context(), web); code(err) != 11 {
		t.Errorf("after Close: %v", err)
	}
}

func TestDevicesOfClaimsBelongToTheResourceInTheirAttributes(t *testing.T) {
	t.Parallel()
	k, c := start(t)
	attributes := map[string]map[string]string{
		"nic.example/node1/both":     {"k8s.cni.cncf.io/resourceName": vf, "k8s.cni.cncf.io/deviceID": "id", "resource.kubernetes.io/pciBusID": "0000:01:00.0"},
		"nic.example/node1/pci":      {"k8s.cni.cncf.io/resourceName": vf, "resource.kubernetes.io/pciBusID": "0000:02:00.0"},
		"nic.example/node1/no-id":    {"k8s.cni.cncf.io/resourceName": vf},
		"gpu.example/node1/gpu-0":    {"resource.kubernetes.io/pciBusID": "0000:03:00.0"},
		"gone.example/node1/no-more": nil,
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
	app.DynamicResources = []*api.DynamicResource{claims("nic.example/node1/pci", "nic.example/node1/no-id"), claims("gpu.example/node1/gpu-0", "gone.example/node1/no-more", "nic.example/node1/both")}
	k.SetPod("default", "web", app)
	want(t, c, web, device.Container{Name: "app", Devices: append(on(0, "plugin"), on(device.NoNUMA, "0000:02:00.0", "id")...)})

	app = podresourcestest.Devices("app", vf, "plugin")
	app.DynamicResources = []*api.DynamicResource{claims("away.example/node1/x")}
	k.SetPod("default", "web", app)
	_, err := c.Devices(t.Context(), web)
	if text := `devices of pod "default/web": attributes of device away.example/node1/x of claim default/nics: the API has not answered`; code(err) != 11 || err.Error() != text {
		t.Errorf("got %v", err)
	}
	plain := &podresources.Client{Socket: k.Socket()}
	defer plain.Close()
	want(t, plain, web, device.Container{Name: "app", Devices: on(0, "plugin")})
}
