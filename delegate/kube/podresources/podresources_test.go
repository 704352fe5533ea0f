package podresources

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"
	api "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/metacni/metacni/delegate/device"
	"github.com/metacni/metacni/delegate/kube"
	"github.com/metacni/metacni/delegate/kube/podresources/podresourcestest"
	nodetest "github.com/metacni/metacni/internal/test/node"
	"github.com/metacni/metacni/netconf/nad"
)

const vf = "vendor.example/vf"

// A View has the attributes that a Client needs.
var _ = Client{Attributes: (&kube.View{}).DeviceAttributes}

var web = nad.Pod{Namespace: "default", Name: "web", UID: "u1"}

// start starts a kubelet and a client of it.
func start(t *testing.T) (*podresourcestest.Kubelet, *Client) {
	t.Helper()
	k, err := podresourcestest.Start()
	nodetest.OK(t, err)
	c := &Client{Socket: k.Socket, Checkpoint: k.Checkpoint, Timeout: time.Minute}
	t.Cleanup(func() {
		nodetest.OK(t, errors.Join(c.Close(), k.Close()))
	})
	return k, c
}

// serving starts a kubelet that has a device for the pod web, with or without Get, and a client
// that has asked it.
func serving(t *testing.T, get bool) (*podresourcestest.Kubelet, *Client) {
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
func want(t *testing.T, c *Client, pod nad.Pod, want ...[]device.Device) {
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

// Whoever leaves asks again later. All who wait for an answer get that of the next kubelet.
func TestAKubeletMayRestartWhileItAnswers(t *testing.T) {
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
		held, release = hold(k, get)
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

func TestAnswersMayHave16MiB(t *testing.T) {
	t.Parallel()
	k, c := start(t)
	k.SetPod("default", "web", podresourcestest.Devices("app", vf, strings.Repeat("a", 10<<20)))
	want(t, c, web, on(0, strings.Repeat("a", 10<<20)))
	k.SetPod("default", "web", podresourcestest.Devices("app", vf, strings.Repeat("a", 16<<20)))
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

const checkpointText = `{"Data":{"PodDeviceEntries":[
	{"PodUID":"u1","ContainerName":"second","ResourceName":"vendor.example/vf","DeviceIDs":{"1":["d"],"-1":["e"],"0":["c","b"]},"AllocResp":"CgA="},
	{"PodUID":"u2","ContainerName":"app","ResourceName":"vendor.example/vf","DeviceIDs":{"0":["x"]},"AllocResp":""},
	{"PodUID":"u1","ContainerName":"first","ResourceName":"vendor.example/vf","DeviceIDs":{"0":["a"]},"AllocResp":""},
	{"PodUID":"u1","ContainerName":"second","ResourceName":"vendor.example/nic","DeviceIDs":{"0":["n"]},"AllocResp":""}
],"RegisteredDevices":{"vendor.example/vf":["a","b"]}},"Checksum":2711024366}`

func TestDevicesAreThoseThatTheKubeletReports(t *testing.T) {
	t.Parallel()
	k, c := start(t)
	want(t, c, nad.Pod{}) // outside of Kubernetes
	_, err := c.Devices(t.Context(), web)
	nodetest.Fails(t, err, 11, `devices of pod "default/web": the kubelet does not know the pod`)
	both := &api.TopologyInfo{Nodes: []*api.NUMANode{{ID: 1}, {}}}
	k.SetPod("default", "web",
		&api.ContainerResources{Name: "sidecar", Devices: []*api.ContainerDevices{
			{ResourceName: vf, DeviceIds: []string{"b", "a"}, Topology: both},
			{ResourceName: vf, DeviceIds: []string{"c"}},
		}},
		&api.ContainerResources{Name: "app"},
	)
	k.SetPod("another", "web", podresourcestest.Devices("app", vf, "x"))
	devices := append(on(0, "b", "a"), on(-1, "c")...)
	want(t, c, web, devices, nil)
	nodetest.Equal(t, "requests", methods(k), "Get:Unknown List:OK Get:OK")
	for first, disabled := range map[string]bool{"Get:Unimplemented": false, "Get:Unknown": true} {
		withoutGet(k, disabled)
		all := &Client{Socket: k.Socket}
		before := methods(k)
		for range 2 {
			want(t, all, web, devices, nil)
		}
		nodetest.OK(t, all.Close())
		nodetest.Equal(t, "requests without Get", methods(k), before+" "+first+" List:OK List:OK")
	}
}

// The kubelet takes 10 requests at once and 100 a second. The pods of a node that starts also ask at
// once what is served.
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
				nodetest.Equal(t, "error", err, nil)
				nodetest.Equal(t, "devices", got, [][]device.Device{on(0, fmt.Sprint("vf", i))})
				is, err := c.Serves(t.Context(), vf)
				nodetest.Equal(t, "error", err, nil)
				nodetest.Equal(t, "served", is, true)
			})
		}
		all.Wait()
		nodetest.Equal(t, "connections", k.Connections(), 1)
		if lists := strings.Count(methods(k), "List:OK"); lists > pods/2 {
			t.Errorf("%d requests for all pods, want few", lists)
		}
	}
}

func TestAKubeletThatIsNotThereForAMomentIsAskedAgain(t *testing.T) {
	t.Parallel()
	for _, what := range []string{"unavailable", "rate", "crash", "without socket"} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			k, c := serving(t, true)
			var asked atomic.Int32
			switch code := map[string]codes.Code{"unavailable": codes.Unavailable, "rate": codes.ResourceExhausted}[what]; {
			case code != codes.OK:
				k.Before(func(context.Context, string) error {
					if asked.Add(1) <= 4 {
						return grpcstatus.Error(code, "not now")
					}
					return nil
				})
			case what == "without socket":
				nodetest.OK(t, os.WriteFile(k.Checkpoint, []byte(checkpointText), 0o600)) // not read: there is a connection
				fallthrough
			default:
				k.Crash()
				if what == "without socket" {
					nodetest.OK(t, os.Remove(k.Socket))
				}
				var again sync.WaitGroup
				again.Go(func() { nodetest.Equal(t, "the next kubelet", k.Listen(), nil) })
				defer again.Wait()
			}
			want(t, c, web, on(0, "a"))
		})
	}
}

func TestAKubeletThatDoesNotComeBackIsTriedAgainLater(t *testing.T) {
	t.Parallel()
	k, c := start(t)
	k.Crash()
	nodetest.OK(t, os.WriteFile(k.Checkpoint, []byte(checkpointText), 0o600)) // not read: there is a socket
	for _, timeout := range []time.Duration{100 * time.Millisecond, time.Millisecond} {
		c.Timeout = timeout
		_, err := c.Devices(t.Context(), web)
		nodetest.Is(t, err, context.DeadlineExceeded)
		nodetest.Code(t, err, 11)
		_ = os.Remove(k.Socket) // a kubelet that starts makes it again
	}
}

// claimed are devices of claims, such as driver/pool/device, or driver/pool/device/share.
func claimed(devices ...string) *api.DynamicResource {
	r := &api.DynamicResource{ClaimNamespace: "default", ClaimName: "nics"}
	for _, d := range devices {
		part := append(strings.Split(d, "/"), "")
		r.ClaimResources = append(r.ClaimResources, &api.ClaimResource{DriverName: part[0], PoolName: part[1], DeviceName: part[2], ShareId: &part[3]})
	}
	return r
}

// The ResourceSlice of a device may come later than the pod: its resource is one that nobody knows.
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
	app := podresourcestest.Devices("app", vf, "plugin")
	app.DynamicResources = []*api.DynamicResource{claimed("nic.example/node1/new")}
	k.SetPod("default", "web", app)
	unknown := append(on(0, "plugin"), device.Device{ID: "nic.example/node1/new", NUMA: -1})
	want(t, c, web, unknown)
	c.Attributes = func(_ context.Context, driver, pool, name string) (map[string]string, error) {
		if driver == "away.example" {
			return nil, errors.New("the API has not answered")
		}
		return attributes[driver+"/"+pool+"/"+name], nil
	}
	want(t, c, web, unknown)
	app.DynamicResources = []*api.DynamicResource{claimed("nic.example/node1/pci", "nic.example/node1/no-id"), claimed("gpu.example/node1/gpu-0", "gpu.example/node1/plain", "nic.example/node1/both")}
	k.SetPod("default", "web", app)
	want(t, c, web, append(on(0, "plugin"), on(-1, "0000:02:00.0", "id")...))
	app.DynamicResources = []*api.DynamicResource{claimed("away.example/node1/x")}
	k.SetPod("default", "web", app)
	_, err := c.Devices(t.Context(), web)
	nodetest.Fails(t, err, 11, `devices of pod "default/web": attributes of device away.example/node1/x of claim default/nics: the API has not answered`)
}

// A claim may have several shares of a device, and several containers one claim.
func TestADeviceThatIsSharedIsOneDevice(t *testing.T) {
	t.Parallel()
	k, c := start(t)
	c.Attributes = func(context.Context, string, string, string) (map[string]string, error) {
		return map[string]string{"k8s.cni.cncf.io/resourceName": vf, "k8s.cni.cncf.io/deviceID": "a"}, nil
	}
	claim := []*api.DynamicResource{claimed("nic.example/node1/nic-0/1", "nic.example/node1/nic-0/2")}
	k.SetPod("default", "web", &api.ContainerResources{Name: "one", DynamicResources: claim}, &api.ContainerResources{Name: "two", DynamicResources: claim})
	containers, err := c.Devices(t.Context(), web)
	nodetest.OK(t, err)
	vfs := []device.Device{{Resource: vf}, {Resource: vf}}
	ids, err := device.Allocate(containers, nil, vfs[:1]...)
	nodetest.OK(t, err)
	nodetest.Equal(t, "one network", ids, []string{"a"})
	if ids, err := device.Allocate(containers, nil, vfs...); err == nil {
		t.Errorf("two networks: %q, %v", ids, err)
	}
}

// withCheckpoint returns a client of a kubelet without a socket.
func withCheckpoint(t *testing.T, text string) *Client {
	t.Helper()
	k, c := start(t)
	k.Crash()
	nodetest.OK(t, errors.Join(os.Remove(k.Socket), os.WriteFile(k.Checkpoint, []byte(text), 0o600)))
	return c
}

func TestWithoutASocketTheCheckpointIsRead(t *testing.T) {
	t.Parallel()
	c := withCheckpoint(t, checkpointText)
	want(t, c, web,
		on(0, "a"),
		append(append(append(on(-1, "e"), on(0, "c", "b")...), on(1, "d")...), device.Device{Resource: "vendor.example/nic", ID: "n"}),
	)
	want(t, c, nad.Pod{Namespace: "default", Name: "plain", UID: "u3"})
}

func TestACheckpointThatCannotBeUsedIsTriedAgainLater(t *testing.T) {
	t.Parallel()
	for text, says := range map[string]string{
		"": "", checkpointText[:200]: "", `{"data":[]}`: "", `{}`: "", "7": "",
		`{"Data":{"PodDeviceEntries":[{"PodUID":"u1","DeviceIDs":["a"]}]}}`: "", // before 1.20, without NUMA nodes
		strings.Repeat(" ", 16<<20) + checkpointText:                        "larger than 16 MiB",
	} {
		_, err := withCheckpoint(t, text).Devices(t.Context(), web)
		nodetest.Fails(t, err, 11, says)
	}
	c := withCheckpoint(t, "{}")
	_, err := c.Devices(t.Context(), nad.Pod{Namespace: "default", Name: "web"})
	nodetest.Fails(t, err, 11, "K8S_POD_UID")
	nodetest.OK(t, os.Remove(c.Checkpoint))
	_, err = c.Devices(t.Context(), web)
	nodetest.Fails(t, err, 11, "neither a socket nor a checkpoint")
	nodetest.OK(t, syscall.Mkfifo(c.Checkpoint, 0o600))
	_, err = c.Devices(t.Context(), web)
	nodetest.Fails(t, err, 11, "not a regular file")
}

// A resource is served whether or not it has devices, if the kubelet or its checkpoint says so. If
// neither can be read, nobody knows.
func TestWhichResourcesDevicePluginsServe(t *testing.T) {
	t.Parallel()
	const marker, unhealthy = "bridge.network.kubevirt.io/br1", "vendor.example/unhealthy"
	registered := `{"Data":{"PodDeviceEntries":null,"RegisteredDevices":{"` + vf + `":["a"],"` + unhealthy + `":null}}}`
	for name, tt := range map[string]struct {
		checkpoint string
		off, gone  bool     // GetAllocatableResources; the socket
		served     []string // nil: not known
	}{
		"the kubelet":                        {served: []string{vf}},
		"both":                               {checkpoint: registered, served: []string{vf, unhealthy}},
		"the checkpoint, beside a socket":    {checkpoint: registered, off: true, served: []string{vf, unhealthy}},
		"the checkpoint, without a socket":   {checkpoint: registered, gone: true, served: []string{vf, unhealthy}},
		"a damaged checkpoint":               {checkpoint: registered[:40], served: []string{vf}},
		"a checkpoint that does not say":     {checkpoint: `{"Data":{"PodDeviceEntries":null}}`, gone: true},
		"neither":                            {off: true},
		"neither a socket nor a checkpoint":  {gone: true},
		"a damaged checkpoint and no socket": {checkpoint: "{", gone: true},
	} {
		k, c := start(t)
		k.SetPlugins(vf)
		if tt.off {
			k.Before(func(context.Context, string) error {
				return errors.New("Pod Resources API GetAllocatableResources disabled")
			})
		}
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
			if tt.served == nil {
				nodetest.Fails(t, err, 11, resource, "not known")
			} else {
				nodetest.OK(t, err)
			}
		}
		nodetest.Equal(t, name, served, tt.served)
	}
}

// answers are shared in a bubble of package synctest, in which pauses take no time.
type answers struct {
	*testing.T
	*shared[int]
}

func sharing(t *testing.T, test func(l *answers)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, func(t *testing.T) { test(&answers{t, newShared[int]()}) })
}

// A request that has begun may have an answer that is older than the pod of the one who
// comes now.
func TestAllWhoWaitShareTheNextRequest(t *testing.T) {
	sharing(t, func(l *answers) {
		var asked atomic.Int32
		answer := make(chan struct{})
		ask := func(context.Context) (int, error) {
			asked.Add(1)
			<-answer
			return 1, nil
		}
		var first, rest sync.WaitGroup
		first.Go(func() { l.answered(ask) })
		synctest.Wait()
		for range 50 {
			rest.Go(func() { l.answered(ask) })
		}
		synctest.Wait()
		nodetest.Equal(l, "requests", asked.Load(), 1)
		answer <- struct{}{}
		first.Wait()
		answer <- struct{}{}
		rest.Wait()
		nodetest.Equal(l, "requests", asked.Load(), 2)
	})
}

func (l *answers) answered(ask func(context.Context) (int, error)) {
	l.Helper()
	reply, err := l.join(l.Context(), ask)
	nodetest.Equal(l, "error", err, nil)
	nodetest.Equal(l, "reply", reply, 1)
}

func TestARequestEndsWhenNobodyWaitsForIt(t *testing.T) {
	sharing(t, func(l *answers) {
		var ended atomic.Int32
		ask := func(ctx context.Context) (int, error) {
			<-ctx.Done()
			ended.Add(1)
			return 0, ctx.Err()
		}
		ctx1, cancel1 := context.WithCancel(l.Context())
		ctx2, cancel2 := context.WithCancel(l.Context())
		var all sync.WaitGroup
		for _, ctx := range []context.Context{ctx1, ctx1, ctx2} {
			all.Go(func() {
				_, err := l.join(ctx, ask)
				nodetest.Is(l, err, errUnanswered)
			})
			synctest.Wait() // the first is in a request, the others in the next
		}
		cancel1()
		synctest.Wait()
		nodetest.Equal(l, "requests that have ended", ended.Load(), 1)
		cancel2()
		synctest.Wait()
		nodetest.Equal(l, "requests that have ended", ended.Load(), 2)
		all.Wait()
		// A request that nobody waits for any more is not joined.
		l.answered(func(context.Context) (int, error) { return 1, nil })
	})
}

func TestARequestThatWasGivenUpBeforeItBeganIsNotJoined(t *testing.T) {
	sharing(t, func(l *answers) {
		answer := make(chan struct{})
		ask := func(ctx context.Context) (int, error) {
			<-answer
			return 1, ctx.Err()
		}
		var all sync.WaitGroup
		all.Go(func() { l.answered(ask) })
		synctest.Wait()
		ctx, cancel := context.WithCancel(l.Context())
		cancel()
		_, err := l.join(ctx, ask)
		nodetest.Is(l, err, errUnanswered)
		all.Go(func() { l.answered(ask) })
		synctest.Wait()
		close(answer)
		all.Wait()
	})
}

func TestPausesGrowUntilTheTimeIsOver(t *testing.T) {
	sharing(t, func(l *answers) {
		asked := 0
		ctx, cancel := context.WithTimeout(l.Context(), 10*time.Second)
		defer cancel()
		var all sync.WaitGroup
		for range 3 { // one asks, the others wait for their turn
			all.Go(func() {
				_, err := l.join(ctx, func(context.Context) (int, error) {
					asked++
					return 0, grpcstatus.Error(codes.ResourceExhausted, "rejected by rate limit")
				})
				nodetest.Equal(l, "why it was repeated", grpcstatus.Code(err), codes.ResourceExhausted)
			})
		}
		all.Wait()
		// 20 ms, 40 ms, ... up to 1 s, and half of that at least.
		if asked < 14 || asked > 26 {
			l.Errorf("asked %d times in 10 s", asked)
		}
	})
}

// FuzzCheckpoint shows that a checkpoint has one meaning, or is refused.
func FuzzCheckpoint(f *testing.F) {
	f.Add([]byte(`{"Data":{"PodDeviceEntries":[{"PodUID":"u","ContainerName":"c","ResourceName":"r","DeviceIDs":{"0":["a"],"-1":["b"]}}]},"Checksum":1}`), "u")
	f.Add([]byte(`{"Data":{"PodDeviceEntries":[{"PodUID":"u","ContainerName":"b"},{"PodUID":"u","ContainerName":"a","DeviceIDs":null}]}}`), "u")
	f.Add([]byte(`{"Data":null}`), "")
	f.Fuzz(func(t *testing.T, data []byte, uid string) {
		c, err := parseCheckpoint(data)
		again, errAgain := parseCheckpoint(data)
		if err != nil || errAgain != nil {
			nodetest.Equal(t, "refused", fmt.Sprint(errAgain), fmt.Sprint(err))
			return
		}
		nodetest.Equal(t, "devices", again.devices(uid), c.devices(uid))
	})
}
