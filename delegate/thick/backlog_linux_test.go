package thick

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containernetworking/cni/pkg/skel"

	"github.com/metacni/metacni/delegate/delegatetest"
	"github.com/metacni/metacni/delegate/thick/internal/queue"
	"github.com/metacni/metacni/delegate/thick/wire"
	"github.com/metacni/metacni/internal/durable"
	"github.com/metacni/metacni/internal/nodetest"
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

// The first tries are in the order in which the queue was read.
func TestQueuedDelsBeginInTheirOrder(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var got []string
		f := &fake{del: func(_ context.Context, a *skel.CmdArgs) error {
			mu.Lock()
			defer mu.Unlock()
			got = append(got, a.ContainerID)
			return nil
		}}
		dir := queued(t, ids("c", 100)...)
		reader := &queue.Reader{Queue: queue.In(dir)}
		names, _, err := reader.List(t.Context())
		reader.Close()
		nodetest.OK(t, err)
		var want []string
		for _, name := range names {
			m, err := queue.In(dir).Read(name)
			nodetest.OK(t, err)
			want = append(want, m.Env["CNI_CONTAINERID"])
		}
		serve(t, &Server{Commands: f.commands(), Queue: dir, MaxInFlight: 2})
		synctest.Wait()
		mu.Lock()
		defer mu.Unlock()
		nodetest.Equal(t, "DELs", got, want)
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

// Serve returns only after the queue is written: a DEL that was done is no
// longer in it.
func TestServeWaitsUntilTheQueueIsWritten(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		dir := queued(t, "c1")
		slow := func(ev Event) { // between the DEL and the removal of its file
			if ev.Replayed {
				time.Sleep(time.Second)
			}
		}
		r := serve(t, &Server{Commands: (&fake{}).commands(), Queue: dir, Observer: slow})
		synctest.Wait()
		start := time.Now()
		r.stop()
		r.ended(time.Second, start)
		if n := left(t, dir); n != 0 {
			t.Errorf("%d left", n)
		}
	})
}

// A daemon that is told to stop does what it has begun, and leaves the rest for
// the next.
func TestStoppedWithAQueue(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		dir := queued(t, "c1", "c2", "c3")
		f := &fake{del: func(ctx context.Context, _ *skel.CmdArgs) error {
			time.Sleep(time.Second)
			return context.Cause(ctx) // it is not cancelled
		}}
		r := serve(t, &Server{Commands: f.commands(), Queue: dir, MaxInFlight: 4})
		synctest.Wait()
		start := time.Now()
		r.stop()
		r.ended(time.Second, start)
		if n := left(t, dir); n != 1 {
			t.Errorf("%d left", n)
		}
	})
}

// A queue that cannot be read keeps the daemon from being ready, and says why,
// until it can: nobody knows what must not be added. DELs are served.
func TestQueueThatCannotBeRead(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		dir := queued(t, "c1")
		nodetest.OK(t, os.Chmod(dir, 0o777))
		f := &fake{}
		r := serve(t, &Server{Commands: f.commands(), Queue: dir})
		synctest.Wait()
		const why = "other users may write to the directory"
		exchange(t.Context(), r.Client, "POST", wire.PathReady, nil).want(t, 503, 11, why)
		r.do(request("ADD", "c2")).want(t, 503, 11, why)
		r.do(request("STATUS", "")).want(t, 500, 50, why)
		r.do(request("DEL", "c2")).wantOK(t)
		f.want(t, "DEL c2")
		nodetest.OK(t, os.Chmod(dir, 0o700))
		r.do(request("ADD", "c2")).wantOK(t)
		time.Sleep(time.Second)
		synctest.Wait()
		exchange(t.Context(), r.Client, "POST", wire.PathReady, nil).wantOK(t)
		f.want(t, "ADD c2", "DEL c1")
	})
}

// Of two servers with one queue the second does no queued DEL and accepts no ADD, and
// says why, until the first has ended. It serves everything else.
func TestSecondServerOfAQueueWaitsForTheFirst(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var book logBook
		dir := queued(t)
		first := serve(t, &Server{Commands: (&fake{}).commands(), Queue: dir})
		synctest.Wait()
		f := &fake{}
		second := serve(t, &Server{Commands: f.commands(), Queue: dir, Logger: book.logger()})
		synctest.Wait()
		enqueue(t, dir, request("DEL", "c1"))
		second.do(request("ADD", "c2")).want(t, 503, 11, "another daemon reads this directory")
		exchange(t.Context(), second.Client, "GET", wire.PathReady, nil).want(t, 503, 11, "another daemon reads this directory")
		second.do(request("DEL", "c3")).wantOK(t)
		time.Sleep(10 * firstPause)
		f.want(t, "DEL c3")
		if n := strings.Count(book.String(), "another daemon"); n != 1 {
			t.Errorf("logged %d times: %s", n, book.String())
		}
		first.do(request("ADD", "c2")).wantOK(t)
		first.stop()
		<-first.done
		time.Sleep(firstPause)
		synctest.Wait()
		second.do(request("ADD", "c2")).wantOK(t)
	})
}

// A server that cannot write to its queue says so to probes and STATUS: shims cannot leave a
// DEL there either. An ADD is served.
func TestNotReadyWhileTheQueueCannotBeWritten(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		dir := queued(t)
		r := serve(t, &Server{Commands: (&fake{}).commands(), Queue: dir})
		synctest.Wait()
		nodetest.OK(t, r.CheckReady(t.Context()))
		r.do(request("STATUS", "")).wantOK(t)
		obstacle := filepath.Join(dir, durable.TempPrefix+"try") // as a full disk is
		nodetest.OK(t, os.Mkdir(obstacle, 0o700))
		r.get(wire.PathReady).want(t, 503, 11, dir)
		r.do(request("STATUS", "")).want(t, 500, 50, dir)
		r.do(request("ADD", "c1")).wantOK(t)
		nodetest.OK(t, os.Remove(obstacle))
		nodetest.OK(t, r.CheckReady(t.Context()))
		nodetest.OK(t, os.RemoveAll(dir))
		nodetest.OK(t, r.CheckReady(t.Context()))
		if left(t, dir) != 0 {
			t.Error("a file is left")
		}
	})
}

// A server that cannot be the reader of its queue says so to probes and STATUS: shims leave
// DELs there that nobody does. An ADD is served.
func TestNotReadyWhileTheQueueIsNotRead(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		dir := queued(t)
		mark := filepath.Join(dir, ".reader")
		nodetest.OK(t, os.Remove(mark))
		nodetest.OK(t, os.Mkdir(mark, 0o700))
		r := serve(t, &Server{Commands: (&fake{}).commands(), Queue: dir})
		synctest.Wait()
		r.get(wire.PathReady).want(t, 503, 11, mark)
		r.do(request("STATUS", "")).want(t, 500, 50, mark)
		r.do(request("ADD", "c1")).wantOK(t)
		nodetest.OK(t, os.Remove(mark))
		time.Sleep(2 * firstPause)
		synctest.Wait()
		nodetest.OK(t, r.CheckReady(t.Context()))
	})
}

// A queued DEL does not remove an attachment that was recorded after it was queued,
// and is not tried again.
func TestQueuedDelSparesALaterAttachment(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct{ during, recorded bool }{
		"before it is read":                       {false, true},
		"while it waits for the container":        {true, true},
		"before it is read, without a record":     {false, false},
		"while it waits, with a record meanwhile": {true, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				works := delegatetest.Result(nil)
				m, exec := newMeta(t, map[string]delegatetest.Plugin{"blue": works, "red": works})
				args := &skel.CmdArgs{ContainerID: "c1", IfName: "eth0"}
				add := func() {
					_, err := m.Add(t.Context(), args)
					nodetest.OK(t, err)
				}
				add()
				records, err := m.Container(t.Context(), "c1")
				if err != nil || len(records) != 1 {
					t.Fatal(records, err)
				}
				del := request("DEL", "c1")
				if del.Recorded = records[0].Created; !tt.recorded {
					nodetest.OK(t, m.Del(t.Context(), args))
					del.Recorded, del.Unrecorded = time.Time{}, time.Now()
				}
				dir := queued(t)
				enqueue(t, dir, del)
				// Another program shares the records, and does not know the queue.
				again := func() {
					time.Sleep(time.Millisecond)
					nodetest.OK(t, m.Del(t.Context(), args))
					add()
				}
				commands := m.commands()
				if tt.during {
					commands.Del = func(ctx context.Context, a *skel.CmdArgs) error {
						again()
						return m.Del(ctx, a)
					}
				} else {
					again()
				}
				serve(t, &Server{Commands: commands, Queue: dir})
				time.Sleep(time.Hour)
				if live := exec.Live(); len(live) != 2 {
					t.Errorf("alive %q", live)
				}
				if left(t, dir) != 0 {
					t.Error("it is still queued")
				}
			})
		})
	}
}
