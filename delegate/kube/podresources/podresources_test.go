package podresources_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"
	api "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/metacni/metacni/delegate/device"
	"github.com/metacni/metacni/delegate/kube"
	"github.com/metacni/metacni/delegate/kube/podresources"
	"github.com/metacni/metacni/delegate/kube/podresources/podresourcestest"
	nodetest "github.com/metacni/metacni/internal/test/node"
	"github.com/metacni/metacni/netconf/nad"
	"github.com/metacni/metacni/status"
)

const vf = "vendor.example/vf"

// maxSize is the largest answer of a kubelet that is read.
const maxSize = 16 << 20

// A View has the attributes that a Client needs.
var _ = podresources.Client{Attributes: (&kube.View{}).DeviceAttributes}

var web = nad.Pod{Namespace: "default", Name: "web", UID: "u1"}

// start starts a kubelet and a client of it.
func start(t *testing.T) (*podresourcestest.Kubelet, *podresources.Client) {
	t.Helper()
	k, err := podresourcestest.Start()
	nodetest.OK(t, err)
	c := &podresources.Client{Socket: k.Socket, Checkpoint: k.Checkpoint, Timeout: time.Minute}
	t.Cleanup(func() {
		nodetest.OK(t, errors.Join(c.Close(), k.Close()))
	})
	return k, c
}

// serving starts a kubelet that has a device for the pod web, with or without Get, and a client
// that has asked it.
func serving(t *testing.T, get bool) (*podresourcestest.Kubelet, *podresources.Client) {
	t.Helper()
	k, c := start(t)
	if !get {
		withoutGet(k, false)
	}
	k.SetPod("default", "web", podresourcestest.Devices("app", vf, "a"))
	want(t, c, web, on(0, "a"))
	return k, c
}

var errNoGet = grpcstatus.Error(codes.Unimplemented, "unknown method Get for service v1.PodResourcesLister")

// withoutGet makes k a kubelet before 1.27, which does not have Get, or, if disabled, one
// before 1.34, in which it is switched off.
func withoutGet(k *podresourcestest.Kubelet, disabled bool) {
	err := errNoGet
	if disabled {
		err = errors.New("PodResources API Get method disabled")
	}
	k.Before(func(_ context.Context, method string) error {
		if method == "Get" {
			return err
		}
		return nil
	})
}

// fail makes the next n requests fail with a code.
func fail(k *podresourcestest.Kubelet, n int32, code codes.Code, message string) {
	var left atomic.Int32
	left.Store(n)
	k.Before(func(context.Context, string) error {
		if left.Add(-1) >= 0 {
			return grpcstatus.Error(code, message)
		}
		return nil
	})
}

// hold makes all requests from now on wait until release is called, or their clients go away.
// held is closed when the first of them has come. get is as in serving.
func hold(k *podresourcestest.Kubelet, get bool) (held <-chan struct{}, release func()) {
	reached, opened := make(chan struct{}), make(chan struct{})
	reach := sync.OnceFunc(func() { close(reached) })
	k.Before(func(ctx context.Context, method string) error {
		reach()
		select {
		case <-opened:
		case <-ctx.Done():
			return ctx.Err()
		}
		if method == "Get" && !get {
			return errNoGet
		}
		return nil
	})
	return reached, sync.OnceFunc(func() { close(opened) })
}

// want compares the devices of a pod.
func want(t *testing.T, c *podresources.Client, pod nad.Pod, want ...[]device.Device) {
	t.Helper()
	got, err := c.Devices(t.Context(), pod)
	nodetest.OK(t, err)
	nodetest.Equal(t, "got", got, want)
}

func on(numa int, ids ...string) (ds []device.Device) {
	for _, id := range ids {
		ds = append(ds, device.Device{Resource: vf, ID: id, NUMA: numa})
	}
	return ds
}

func methods(k *podresourcestest.Kubelet) string { return strings.Join(k.Requests(), " ") }

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
		append(on(0, "b", "a"), on(-1, "c")...),
		nil,
	)
	nodetest.Equal(t, "requests", methods(k), "Get:OK")
}

func TestAContainerOutsideOfKubernetesHasNoDevices(t *testing.T) {
	t.Parallel()
	k, c := start(t)
	want(t, c, nad.Pod{})
	nodetest.Equal(t, "requests", methods(k), "")
}

func TestKubeletsWithoutGetAreAskedForAllPods(t *testing.T) {
	t.Parallel()
	for _, disabled := range []bool{false, true} {
		k, c := start(t)
		withoutGet(k, disabled)
		k.SetPod("other", "web", podresourcestest.Devices("app", vf, "y"))
		k.SetPod("default", "api", podresourcestest.Devices("app", vf, "x"))
		k.SetPod("default", "web", podresourcestest.Devices("app", vf, "a"))
		for range 2 {
			want(t, c, web, on(0, "a"))
		}
		first := "Get:Unimplemented"
		if disabled {
			first = "Get:Unknown"
		}
		nodetest.Equal(t, "requests", methods(k), first+" List:OK List:OK")
	}
}

func TestAPodThatTheKubeletDoesNotKnowIsTriedAgainLater(t *testing.T) {
	t.Parallel()
	k, c := start(t)
	_, err := c.Devices(t.Context(), web)
	nodetest.Fails(t, err, 11, `devices of pod "default/web": the kubelet does not know the pod`)
	k.SetPod("default", "web", podresourcestest.Devices("app", vf, "a"))
	want(t, c, web, on(0, "a"))
	nodetest.Equal(t, "requests", methods(k), "Get:Unknown List:OK Get:OK")
}

// The kubelet takes 10 requests at once and 100 a second.
func TestAnyNumberOfPodsCanStartAtOnce(t *testing.T) {
	t.Parallel()
	for _, get := range []bool{true, false} {
		k, c := start(t)
		if !get {
			withoutGet(k, false)
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
				nodetest.Equal(t, "got", got, [][]device.Device{on(0, fmt.Sprint("vf", i))})
			})
		}
		all.Wait()
		nodetest.Equal(t, "connections", k.Connections(), 1)
		lists := 0
		for _, r := range k.Requests() {
			if r == "List:OK" {
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
	for name, disturb := range map[string]func(*podresourcestest.Kubelet) (ended bool, err error){
		"unavailable": func(k *podresourcestest.Kubelet) (bool, error) {
			fail(k, 4, codes.Unavailable, "starting")
			return false, nil
		},
		"rate": func(k *podresourcestest.Kubelet) (bool, error) {
			fail(k, 4, codes.ResourceExhausted, "rejected by rate limit")
			return false, nil
		},
		"crash": func(k *podresourcestest.Kubelet) (bool, error) {
			k.Crash()
			return true, nil
		},
		"without socket": func(k *podresourcestest.Kubelet) (bool, error) {
			k.Crash()
			return true, errors.Join(os.Remove(k.Socket), os.WriteFile(k.Checkpoint, []byte(checkpoint), 0o600))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			k, c := serving(t, true)
			ended, err := disturb(k)
			nodetest.OK(t, err)
			var call sync.WaitGroup
			call.Go(func() {
				got, err := c.Devices(t.Context(), web)
				if diff := cmp.Diff([][]device.Device{on(0, "a")}, got); diff != "" || err != nil {
					t.Error(diff, err)
				}
			})
			if ended {
				nodetest.OK(t, k.Listen())
			}
			call.Wait()
		})
	}
}

// All who wait for an answer get that of the next kubelet.
func TestAKubeletMayRestartWhileItAnswers(t *testing.T) {
	t.Parallel()
	for _, get := range []bool{true, false} {
		k, c := serving(t, get)
		held, release := hold(k, get)
		var all sync.WaitGroup
		for range 3 {
			all.Go(func() {
				if got, err := c.Devices(t.Context(), web); err != nil || len(got) != 1 {
					t.Errorf("got %v, %v", got, err)
				}
			})
		}
		<-held
		k.Crash()
		release()
		nodetest.OK(t, k.Listen())
		all.Wait()
	}
}

func TestAKubeletThatDoesNotAnswerIsTriedAgainLater(t *testing.T) {
	t.Parallel()
	for _, get := range []bool{true, false} {
		k, c := serving(t, get)
		held, release := hold(k, get)
		ctx, cancel := context.WithCancel(t.Context())
		go func() {
			<-held
			cancel()
		}()
		_, err := c.Devices(ctx, web)
		nodetest.Is(t, err, context.Canceled)
		nodetest.Fails(t, err, 11, `devices of pod "default/web": context canceled: the kubelet has not answered`)
		release()
		want(t, c, web, on(0, "a"))
	}
}

func TestAKubeletThatDoesNotComeBackIsTriedAgainLater(t *testing.T) {
	t.Parallel()
	k, c := start(t)
	k.Crash()
	nodetest.OK(t, os.WriteFile(k.Checkpoint, []byte(checkpoint), 0o600)) // not read: there is a socket
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	_, err := c.Devices(ctx, web)
	nodetest.Is(t, err, context.DeadlineExceeded)
	nodetest.Fails(t, err, 11, "refused")
	short := &podresources.Client{Socket: k.Socket, Checkpoint: k.Checkpoint, Timeout: time.Millisecond}
	defer short.Close()
	for range 2 {
		_, err := short.Devices(t.Context(), web)
		nodetest.Is(t, err, context.DeadlineExceeded)
		nodetest.Code(t, err, 11)
		_ = os.Remove(k.Socket) // a kubelet that starts makes it again
	}
}

func TestAnswersMayHave16MiB(t *testing.T) {
	t.Parallel()
	k, c := start(t)
	k.SetPod("default", "web", podresourcestest.Devices("app", vf, strings.Repeat("a", 10<<20)))
	want(t, c, web, on(0, strings.Repeat("a", 10<<20)))
	k.SetPod("default", "web", podresourcestest.Devices("app", vf, strings.Repeat("a", maxSize)))
	_, err := c.Devices(t.Context(), web)
	nodetest.Fails(t, err, 11, "larger than max") // and is not asked for again
	nodetest.Equal(t, "requests", methods(k), "Get:OK Get:OK List:OK")
}

func TestCloseEndsCallsThatWait(t *testing.T) {
	t.Parallel()
	k, c := start(t)
	held, release := hold(k, true)
	defer release()
	got := make(chan error)
	for range 3 {
		go func() {
			_, err := c.Devices(t.Context(), web)
			got <- err
		}()
	}
	<-held
	nodetest.OK(t, c.Close())
	for range 3 {
		nodetest.Code(t, <-got, 11)
	}
	release()
	k.SetPod("default", "web")
	_, err := c.Devices(t.Context(), web)
	nodetest.Code(t, err, 11)
}

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
	nodetest.Fails(t, err, 11, `devices of pod "default/web": attributes of device away.example/node1/x of claim default/nics: the API has not answered`)
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
	withView := &podresources.Client{Socket: k.Socket, Attributes: func(context.Context, string, string, string) (map[string]string, error) { return nil, nil }}
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

const checkpoint = `{"Data":{"PodDeviceEntries":[
	{"PodUID":"u1","ContainerName":"second","ResourceName":"vendor.example/vf","DeviceIDs":{"1":["d"],"-1":["e"],"0":["c","b"]},"AllocResp":"CgA="},
	{"PodUID":"u2","ContainerName":"app","ResourceName":"vendor.example/vf","DeviceIDs":{"0":["x"]},"AllocResp":""},
	{"PodUID":"u1","ContainerName":"first","ResourceName":"vendor.example/vf","DeviceIDs":{"0":["a"]},"AllocResp":""},
	{"PodUID":"u1","ContainerName":"second","ResourceName":"vendor.example/nic","DeviceIDs":{"0":["n"]},"AllocResp":""}
],"RegisteredDevices":{"vendor.example/vf":["a","b"]}},"Checksum":2711024366}`

func TestWithoutASocketTheCheckpointIsRead(t *testing.T) {
	t.Parallel()
	k, c := start(t)
	k.Crash()
	nodetest.OK(t, os.Remove(k.Socket))
	nodetest.OK(t, os.WriteFile(k.Checkpoint, []byte(checkpoint), 0o600))
	want(t, c, web,
		on(0, "a"),
		append(append(append(on(-1, "e"), on(0, "c", "b")...), on(1, "d")...), device.Device{Resource: "vendor.example/nic", ID: "n"}),
	)
	want(t, c, nad.Pod{Namespace: "default", Name: "plain", UID: "u3"})
	nodetest.Equal(t, "connections", k.Connections(), 0)
}

func TestACheckpointThatCannotBeUsedIsTriedAgainLater(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	nodetest.OK(t, syscall.Mkfifo(filepath.Join(dir, "fifo"), 0o600))
	for name, text := range map[string]string{
		"empty": "", "cut": checkpoint[:200], "another": `{"data":[]}`, "empty object": `{}`, "number": "7",
		"of a kubelet before 1.20, without NUMA nodes": `{"Data":{"PodDeviceEntries":[{"PodUID":"u1","DeviceIDs":["a"]}]}}`,
		"large": strings.Repeat(" ", maxSize) + checkpoint,
	} {
		file := filepath.Join(dir, name)
		nodetest.OK(t, os.WriteFile(file, []byte(text), 0o600))
		c := &podresources.Client{Socket: filepath.Join(dir, "none"), Checkpoint: file}
		got, err := c.Devices(t.Context(), web)
		if status.Code(err) != 11 || strings.Contains(err.Error(), "larger than 16 MiB") != (name == "large") {
			t.Errorf("%s: got %v, %v", name, got, err)
		}
	}
	for _, test := range []struct{ checkpoint, uid, says string }{
		{"fifo", "u1", "not a regular file"}, {"none", "u1", "neither a socket nor a checkpoint"}, {"empty object", "", "K8S_POD_UID"},
	} {
		c := &podresources.Client{Socket: filepath.Join(dir, "none"), Checkpoint: filepath.Join(dir, test.checkpoint)}
		_, err := c.Devices(t.Context(), nad.Pod{Namespace: "default", Name: "web", UID: test.uid})
		nodetest.Fails(t, err, 11, test.says)
	}
}

// A resource is served whether or not it has devices, if the kubelet or its checkpoint says so. If
// neither can be read, nobody knows.
func TestWhichResourcesDevicePluginsServe(t *testing.T) {
	t.Parallel()
	const marker, unhealthy = "bridge.network.kubevirt.io/br1", "vendor.example/unhealthy"
	registered := `{"Data":{"PodDeviceEntries":null,"RegisteredDevices":{"` + vf + `":["a"],"` + unhealthy + `":null}}}`
	off := errors.New("Pod Resources API GetAllocatableResources disabled")
	for name, tt := range map[string]struct {
		checkpoint string
		fails      error // of GetAllocatableResources
		gone       bool  // the socket
		served     []string
		unknown    bool
	}{
		"the kubelet":                        {served: []string{vf}},
		"both":                               {checkpoint: registered, served: []string{vf, unhealthy}},
		"the checkpoint, beside a socket":    {checkpoint: registered, fails: off, served: []string{vf, unhealthy}},
		"the checkpoint, without a socket":   {checkpoint: registered, gone: true, served: []string{vf, unhealthy}},
		"a damaged checkpoint":               {checkpoint: registered[:40], served: []string{vf}},
		"a checkpoint that does not say":     {checkpoint: `{"Data":{"PodDeviceEntries":null}}`, gone: true, unknown: true},
		"neither":                            {fails: off, unknown: true},
		"neither a socket nor a checkpoint":  {gone: true, unknown: true},
		"a damaged checkpoint and no socket": {checkpoint: "{", gone: true, unknown: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			k, c := start(t)
			k.SetPlugins(vf)
			k.Before(func(context.Context, string) error { return tt.fails })
			if tt.gone {
				k.Crash()
				nodetest.OK(t, os.Remove(k.Socket))
			}
			if tt.checkpoint != "" {
				nodetest.OK(t, os.WriteFile(k.Checkpoint, []byte(tt.checkpoint), 0o600))
			}
			var served []string
			for _, resource := range []string{vf, unhealthy, marker} {
				is, err := c.Serves(t.Context(), resource)
				if is {
					served = append(served, resource)
				}
				if tt.unknown {
					nodetest.Fails(t, err, 11, resource, "not known")
				} else {
					nodetest.OK(t, err)
				}
			}
			nodetest.Equal(t, "served", served, tt.served)
		})
	}
}

// The pods of a node that starts ask at once: more than the kubelet answers.
func TestAnyNumberOfPodsCanAskWhatIsServed(t *testing.T) {
	t.Parallel()
	_, c := start(t)
	var all sync.WaitGroup
	for range 100 {
		all.Go(func() {
			if is, err := c.Serves(t.Context(), vf); is || err != nil {
				t.Error(is, err)
			}
		})
	}
	all.Wait()
}
