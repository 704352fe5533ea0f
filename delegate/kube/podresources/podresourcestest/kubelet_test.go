package podresourcestest_test

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	api "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/metacni/metacni/delegate/kube/podresources/podresourcestest"
	"github.com/metacni/metacni/internal/nodetest"
)

const vf = "vendor.example/vf"

// start starts a kubelet with the pods default/a and default/b, and a client of it.
func start(t *testing.T) (*podresourcestest.Kubelet, api.PodResourcesListerClient) {
	t.Helper()
	k, err := podresourcestest.Start()
	nodetest.OK(t, err)
	k.SetPod("default", "a", podresourcestest.Devices("old", vf, "0"))
	k.SetPod("default", "b", podresourcestest.Devices("app", vf, "2"))
	k.SetPod("default", "a", podresourcestest.Devices("app", vf, "1"))
	conn, err := grpc.NewClient("unix://"+k.Socket(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	nodetest.OK(t, err)
	t.Cleanup(func() {
		if err := errors.Join(conn.Close(), k.Close()); err != nil {
			t.Error(err)
		}
		if _, err := os.Stat(k.Dir()); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("left %s: %v", k.Dir(), err)
		}
	})
	return k, api.NewPodResourcesListerClient(conn)
}

// get asks for a pod of default, and returns its devices.
func get(ctx context.Context, c api.PodResourcesListerClient, pod string) (string, error) {
	reply, err := c.Get(ctx, &api.GetPodResourcesRequest{PodNamespace: "default", PodName: pod})
	return text(reply.GetPodResources()), err
}

func text(p *api.PodResources) string {
	var s strings.Builder
	s.WriteString(p.GetName())
	for _, c := range p.GetContainers() {
		for _, d := range c.GetDevices() {
			s.WriteString(" " + c.GetName() + "=" + strings.Join(d.GetDeviceIds(), ","))
		}
	}
	return s.String()
}

func wantCode(t *testing.T, what string, err error, want codes.Code, words string) {
	t.Helper()
	if status.Code(err) != want || err != nil && !strings.Contains(err.Error(), words) {
		t.Errorf("%s: %v, want %v and %q", what, err, want, words)
	}
}

func TestPodsAreWhatWasSet(t *testing.T) {
	t.Parallel()
	k, c := start(t)
	got, err := get(t.Context(), c, "a")
	if got != "a app=1" || err != nil {
		t.Errorf("got %q, %v", got, err)
	}
	_, err = get(t.Context(), c, "none")
	wantCode(t, "a pod that is not there", err, codes.Unknown, "pod none in namespace default not found")
	list, err := c.List(t.Context(), &api.ListPodResourcesRequest{})
	nodetest.OK(t, err)
	var all []string
	for _, p := range list.GetPodResources() {
		all = append(all, text(p))
	}
	if diff := cmp.Diff([]string{"a app=1", "b app=2"}, all); diff != "" {
		t.Error(diff)
	}
	want := []podresourcestest.Request{{"Get", "default/a", codes.OK}, {"Get", "default/none", codes.Unknown}, {"List", "", codes.OK}}
	if diff := cmp.Diff(want, k.Requests()); diff != "" {
		t.Error(diff)
	}
	if k.Connections() != 1 {
		t.Errorf("%d connections", k.Connections())
	}
}

func TestRequestsOverTheLimitAreRejected(t *testing.T) {
	t.Parallel()
	_, c := start(t)
	var served, rejected atomic.Int32
	var all sync.WaitGroup
	for range 20 * podresourcestest.Burst {
		all.Go(func() {
			_, err := get(t.Context(), c, "a")
			switch {
			case err == nil:
				served.Add(1)
			case status.Code(err) == codes.ResourceExhausted && strings.Contains(err.Error(), "rejected by rate limit"):
				rejected.Add(1)
			default:
				t.Error(err)
			}
		})
	}
	all.Wait()
	if served.Load() < podresourcestest.Burst || rejected.Load() == 0 {
		t.Errorf("%d served, %d rejected", served.Load(), rejected.Load())
	}
}

func TestAKubeletCanBeWithoutGetFailAndHang(t *testing.T) {
	t.Parallel()
	k, c := start(t)
	k.Fail(1, codes.Unavailable, "starting")
	_, err := get(t.Context(), c, "a")
	wantCode(t, "a fault", err, codes.Unavailable, "starting")

	held, release := k.Hold()
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-held
		cancel()
	}()
	_, err = get(ctx, c, "a")
	wantCode(t, "a client that does not wait", err, codes.Canceled, "")
	release()
	release()
	_, err = get(t.Context(), c, "a")
	wantCode(t, "released", err, codes.OK, "")

	k.WithoutGet(false)
	_, err = get(t.Context(), c, "a")
	wantCode(t, "before 1.27", err, codes.Unimplemented, "unknown method Get")
	k.WithoutGet(true)
	_, err = get(t.Context(), c, "a")
	wantCode(t, "before 1.34", err, codes.Unknown, "disabled")
}

func TestAKubeletCanEndAndStartAgain(t *testing.T) {
	t.Parallel()
	k, c := start(t)
	again := func(end func() error, socket bool) {
		t.Helper()
		nodetest.OK(t, end())
		if _, err := os.Stat(k.Socket()); (err == nil) != socket {
			t.Errorf("the socket is there: %v", err)
		}
		_, err := get(t.Context(), c, "a")
		wantCode(t, "ended", err, codes.Unavailable, "")
		nodetest.OK(t, k.Listen())
		reply, err := c.Get(t.Context(), &api.GetPodResourcesRequest{PodNamespace: "default", PodName: "a"}, grpc.WaitForReady(true))
		if text(reply.GetPodResources()) != "a app=1" || err != nil {
			t.Errorf("got %v, %v", reply, err)
		}
	}
	again(func() error { k.Crash(); return nil }, true)
	again(k.Stop, false)
	nodetest.OK(t, os.RemoveAll(k.Dir()))
	if err := k.Listen(); err == nil {
		t.Error("it listens without its directory")
	}
}
