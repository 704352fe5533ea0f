package thick

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containernetworking/cni/pkg/skel"

	"github.com/metacni/metacni/delegate/thick/internal/queue"
	"github.com/metacni/metacni/delegate/thick/wire"
)

// hung is the DEL of a plugin that hangs, as long as its context lets it, for the
// containers whose ID begins with "hung".
func hung(ctx context.Context, a *skel.CmdArgs) error {
	if strings.HasPrefix(a.ContainerID, "hung") {
		return untilEnd(ctx, a)
	}
	return nil
}

func ids(prefix string, n int) (list []string) {
	for i := range n {
		list = append(list, fmt.Sprint(prefix, i))
	}
	return list
}

// A full queue of DELs that hang keeps nobody waiting except the attachments
// that are in it: a daemon is ready from the first moment.
func TestReadyAtOnceWithAQueueThatHangs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		dir := queued(t, ids("hung", queue.Cap)...)
		f := &fake{del: hung}
		start := time.Now()
		r := serve(t, &Server{Commands: f.commands(), Queue: dir, MaxInFlight: 4})
		exchange(t.Context(), r.Client, "POST", wire.PathReady, nil).wantOK(t)
		for _, verb := range []string{"ADD", "CHECK", "DEL", "GC", "STATUS"} {
			r.do(request(verb, "other")).wantOK(t)
		}
		r.do(with(request("ADD", "hung200"), "CNI_IFNAME", "eth1")).wantOK(t)
		r.do(request("ADD", "hung200")).want(t, 503, 11, "an earlier DEL of the attachment is still queued")
		if d := time.Since(start); d != 0 {
			t.Errorf("it took %v", d)
		}
	})
}

// DELs of the queue take no turn and no place from those of the runtime, are
// half as many at once, get the configuration that all get, and have as long as
// any other, each from its own beginning.
func TestQueuedDelsTakeNoTurnFromOthers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var running, most atomic.Int32
		var seen events
		f := &fake{del: func(ctx context.Context, a *skel.CmdArgs) error {
			if !strings.Contains(string(a.StdinData), `"binDir":"/host"`) {
				t.Errorf("without the override: %s", a.StdinData)
			}
			if strings.HasPrefix(a.ContainerID, "hung") {
				if d, ok := ctx.Deadline(); !ok || time.Until(d) != time.Minute {
					t.Errorf("deadline %v", d)
				}
				most.Store(max(most.Load(), running.Add(1)))
				defer running.Add(-1)
				return hung(ctx, a)
			}
			time.Sleep(20 * time.Second)
			return nil
		}}
		r := serve(t, &Server{
			Commands: f.commands(), Queue: queued(t, ids("hung", 9)...), MaxInFlight: 4, MaxQueued: 4, Override: []byte(`{"binDir":"/host"}`),
			Observer: seen.observe, Timeouts: Timeouts{Del: time.Minute},
		})
		synctest.Wait()
		var live []func() answer
		for i := range 8 { // all that may run and wait
			live = append(live, r.begin(request("DEL", fmt.Sprint("c", i))))
			synctest.Wait()
		}
		if got := r.Stats().Del; got != (Load{InFlight: 6, Queued: 4}) {
			t.Errorf("%+v", got)
		}
		r.do(request("DEL", "one-more")).want(t, 503, 11, "too many requests are waiting")
		start := time.Now()
		for _, del := range live {
			del().wantOK(t)
		}
		if d := time.Since(start); d != 40*time.Second {
			t.Errorf("DELs of the runtime took %v", d)
		}
		time.Sleep(5 * time.Minute)
		if most.Load() != 2 {
			t.Errorf("%d at once", most.Load())
		}
		tried := map[string]bool{}
		for _, e := range seen.taken() {
			if e.Replayed {
				tried[e.ContainerID] = true
				if e.UID != -1 || e.Command != "DEL" || e.Status != 500 {
					t.Errorf("%+v", e)
				}
			}
		}
		if len(tried) != 9 {
			t.Errorf("tried %v", tried)
		}
	})
}

// What has failed least often is tried first, so that a DEL that comes after many that
// hang has its turn, and at once if an ADD waits for it.
func TestQueuedDelsThatHangKeepNoOtherFromItsTurn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var seen events
		dir := queued(t, ids("hung", 40)...)
		r := serve(t, &Server{Commands: (&fake{del: hung}).commands(), Queue: dir, MaxInFlight: 2, Observer: seen.observe, Timeouts: Timeouts{Del: time.Minute}})
		time.Sleep(41*time.Minute + 30*time.Second) // all of them have failed, and none ends now
		enqueue(t, dir, request("DEL", "new"))
		enqueue(t, dir, request("DEL", "new-and-wanted"))
		seen.taken()
		r.do(request("ADD", "new-and-wanted")).want(t, 503, 11, "is still queued")
		time.Sleep(3 * time.Minute)
		synctest.Wait()
		var done []string
		for _, e := range seen.taken() {
			if e.Replayed && e.Err == nil {
				done = append(done, e.ContainerID)
			}
		}
		slices.Sort(done)
		if !slices.Equal(done, []string{"new", "new-and-wanted"}) {
			t.Errorf("done %q", done)
		}
		r.do(request("ADD", "new-and-wanted")).wantOK(t)
	})
}
