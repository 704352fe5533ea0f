package podresources

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	api "k8s.io/kubelet/pkg/apis/podresources/v1"

	nodetest "github.com/metacni/metacni/internal/test/node"
)

// A request that has begun may have an answer that is older than the pod of the one who
// comes now.
func TestAllWhoWaitShareTheNextRequest(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newShared[*api.ListPodResourcesResponse]()
		var asked atomic.Int32
		answer := make(chan struct{})
		ask := func(context.Context) (*api.ListPodResourcesResponse, error) {
			asked.Add(1)
			<-answer
			return &api.ListPodResourcesResponse{}, nil
		}
		var first, rest sync.WaitGroup
		first.Go(func() { join(t, l, ask) })
		synctest.Wait()
		for range 50 {
			rest.Go(func() { join(t, l, ask) })
		}
		synctest.Wait()
		nodetest.Equal(t, "requests", asked.Load(), 1)
		answer <- struct{}{}
		first.Wait()
		answer <- struct{}{}
		rest.Wait()
		nodetest.Equal(t, "requests", asked.Load(), 2)
	})
}

func join(t *testing.T, l *shared[*api.ListPodResourcesResponse], ask func(context.Context) (*api.ListPodResourcesResponse, error)) {
	t.Helper()
	if reply, err := l.join(t.Context(), ask); reply == nil || err != nil {
		t.Error(reply, err)
	}
}

func TestARequestEndsWhenNobodyWaitsForIt(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newShared[*api.ListPodResourcesResponse]()
		var ended atomic.Int32
		ask := func(ctx context.Context) (*api.ListPodResourcesResponse, error) {
			<-ctx.Done()
			ended.Add(1)
			return nil, ctx.Err()
		}
		ctx1, cancel1 := context.WithCancel(t.Context())
		ctx2, cancel2 := context.WithCancel(t.Context())
		var all sync.WaitGroup
		for _, ctx := range []context.Context{ctx1, ctx1, ctx2} {
			all.Go(func() {
				if _, err := l.join(ctx, ask); !errors.Is(err, errUnanswered) {
					t.Error(err)
				}
			})
			synctest.Wait() // the first is in a request, the others in the next
		}
		cancel1()
		synctest.Wait()
		nodetest.Equal(t, "requests that have ended", ended.Load(), 1)
		cancel2()
		synctest.Wait()
		nodetest.Equal(t, "requests that have ended", ended.Load(), 2)
		all.Wait()
		// A request that nobody waits for any more is not joined.
		join(t, l, func(context.Context) (*api.ListPodResourcesResponse, error) {
			return &api.ListPodResourcesResponse{}, nil
		})
	})
}

func TestARequestThatWasGivenUpBeforeItBeganIsNotJoined(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newShared[*api.ListPodResourcesResponse]()
		answer := make(chan struct{})
		ask := func(ctx context.Context) (*api.ListPodResourcesResponse, error) {
			<-answer
			return &api.ListPodResourcesResponse{}, ctx.Err()
		}
		var all sync.WaitGroup
		all.Go(func() { join(t, l, ask) })
		synctest.Wait()
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := l.join(ctx, ask); !errors.Is(err, errUnanswered) {
			t.Error(err)
		}
		all.Go(func() { join(t, l, ask) })
		synctest.Wait()
		close(answer)
		all.Wait()
	})
}

func TestPausesGrowUntilTheTimeIsOver(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newShared[*api.ListPodResourcesResponse]()
		asked := 0
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		var all sync.WaitGroup
		for range 3 { // one asks, the others wait for their turn
			all.Go(func() {
				_, err := l.join(ctx, func(context.Context) (*api.ListPodResourcesResponse, error) {
					asked++
					return nil, status.Error(codes.ResourceExhausted, "rejected by rate limit")
				})
				if status.Code(err) != codes.ResourceExhausted {
					t.Errorf("got %v, want why it was repeated", err)
				}
			})
		}
		all.Wait()
		// 20 ms, 40 ms, ... up to 1 s, and half of that at least.
		if asked < 14 || asked > 26 {
			t.Errorf("asked %d times in 10 s", asked)
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
		if diff := cmp.Diff(c.devices(uid), again.devices(uid)); diff != "" {
			t.Error(diff)
		}
	})
}
