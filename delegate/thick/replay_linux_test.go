package thick

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"

	"github.com/metacni/metacni/delegate/thick/internal/queue"
	"github.com/metacni/metacni/delegate/thick/wire"
)

// queued returns a queue with the DELs of the containers.
func queued(t *testing.T, ids ...string) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "queue")
	for _, id := range ids {
		enqueue(t, dir, request("DEL", id))
	}
	return dir
}

func enqueue(t *testing.T, dir string, m wire.Request) {
	t.Helper()
	if err := queue.Put(t.Context(), dir, m, func() (bool, error) { return false, nil }); err != nil {
		t.Fatal(err)
	}
}

// left returns how many are in the queue.
func left(t *testing.T, dir string) int {
	t.Helper()
	names, err := filepath.Glob(dir + "/*.json")
	if err != nil {
		t.Fatal(err)
	}
	return len(names)
}

// S20, D10: what came while the daemon was away is done before it takes an
// ADD, as wide as DELs are, and by the rules for them.
func TestS20QueueIsDoneFirst(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const n = 10
		var ids []string
		for i := range n {
			ids = append(ids, fmt.Sprint("c", i))
		}
		dir := queued(t, ids...)
		g := make(gate)
		var running, most atomic.Int32
		var seen events
		f := &fake{del: func(ctx context.Context, a *skel.CmdArgs) error {
			if !strings.Contains(string(a.StdinData), `"binDir":"/host"`) {
				t.Errorf("without the override: %s", a.StdinData)
			}
			if d, ok := ctx.Deadline(); !ok || time.Until(d) != time.Minute {
				t.Errorf("deadline %v", d)
			}
			most.Store(max(most.Load(), running.Add(1)))
			defer running.Add(-1)
			return g.wait(ctx)
		}}
		r := serve(t, &Server{
			Handler: f, Queue: dir, MaxInFlight: 4, Override: []byte(`{"binDir":"/host"}`), Observer: seen.observe,
			Timeouts: Timeouts{Del: time.Minute},
		})
		synctest.Wait()
		if most.Load() != 4 {
			t.Errorf("%d at once", most.Load())
		}
		r.do(request("ADD", "x")).want(t, 503, 11, "the daemon is starting")
		r.do(request("CHECK", "x")).want(t, 503, 11, "the daemon is starting")
		r.do(request("STATUS", "")).want(t, 503, 50, "the daemon is starting")
		exchange(t.Context(), r.Client, "POST", wire.PathReady, nil).want(t, 503, 11, "not ready: queue: the daemon is starting")
		exchange(t.Context(), r.Client, "GET", wire.PathHealth, nil).wantOK(t)
		if calls := f.said(); len(calls) != 4 {
			t.Errorf("calls %q", calls)
		}
		close(g)
		synctest.Wait()
		exchange(t.Context(), r.Client, "POST", wire.PathReady, nil).wantOK(t)
		r.do(request("ADD", "x")).wantOK(t)
		synctest.Wait()
		if left(t, dir) != 0 {
			t.Errorf("%d left", left(t, dir))
		}
		all := seen.taken()
		all = slices.DeleteFunc(all, func(e Event) bool { return !e.Replayed })
		if len(all) != n || all[0].UID != -1 || all[0].Command != "DEL" || all[0].Status != 200 || all[0].ContainerID == "" {
			t.Errorf("events %+v", all)
		}
	})
}

// DELs are served while the queue is, the same one after the other.
func TestS20DelWhileStarting(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := make(gate)
		f := &fake{del: func(ctx context.Context, a *skel.CmdArgs) error {
			if a.ContainerID == "c2" {
				return nil
			}
			return g.wait(ctx)
		}}
		r := serve(t, &Server{Handler: f, Queue: queued(t, "c1")})
		synctest.Wait()
		r.do(request("DEL", "c2")).wantOK(t)
		r.do(request("GC", "")).wantOK(t)
		same := r.begin(request("DEL", "c1"))
		synctest.Wait()
		f.want(t, "DEL c1", "DEL c2", "end DEL c2", "GC")
		close(g)
		same().wantOK(t)
		f.want(t, "end DEL c1", "DEL c1", "end DEL c1")
	})
}

// A DEL that fails stays, and is tried again with growing pauses; the daemon
// is ready all the same, but for an ADD that it would remove.
func TestS20FailedDelIsTriedAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var book logBook
		var tries []time.Duration
		start := time.Now()
		var works atomic.Bool
		f := &fake{del: func(_ context.Context, a *skel.CmdArgs) error {
			tries = append(tries, time.Since(start))
			if works.Load() {
				return nil
			}
			return types.NewError(101, "stuck", "")
		}}
		dir := queued(t, "c1")
		r := serve(t, &Server{Handler: f, Queue: dir, Logger: book.logger()})
		synctest.Wait()
		exchange(t.Context(), r.Client, "POST", wire.PathReady, nil).wantOK(t)
		verbose := func() string {
			a := exchange(t.Context(), r.Client, "GET", wire.PathReady+"?verbose", nil)
			a.wantOK(t)
			return a.body
		}
		if got := verbose(); !strings.Contains(got, `{"name":"queue","ok":true,"error":"`) || !strings.Contains(got, "stuck") {
			t.Errorf("with one that is stuck: %s", got)
		}
		r.do(request("ADD", "c2")).wantOK(t)
		r.do(with(request("ADD", "c1"), "CNI_IFNAME", "eth1")).wantOK(t)
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		var want []time.Duration
		for _, s := range []int{0, 1, 3, 7, 15, 31, 63} {
			want = append(want, time.Duration(s)*time.Second)
		}
		if !slices.Equal(tries, want) {
			t.Errorf("tried at %v, want %v", tries, want)
		}
		if left(t, dir) != 1 || !strings.Contains(book.String(), "stuck") {
			t.Errorf("%d left, log %s", left(t, dir), book.String())
		}
		// An ADD that it would remove waits for it, and has it tried soon.
		works.Store(true)
		r.do(request("ADD", "c1")).want(t, 503, 11, "a DEL that came before has not been done yet")
		time.Sleep(firstPause)
		synctest.Wait()
		if left(t, dir) != 0 {
			t.Errorf("%d left", left(t, dir))
		}
		if got := verbose(); strings.Contains(got, "error") {
			t.Errorf("with none: %s", got)
		}
		r.do(request("ADD", "c1")).wantOK(t)
		n := len(tries)
		time.Sleep(time.Hour)
		if len(tries) != n {
			t.Error("it was done again")
		}
	})
}

// A DEL of the runtime does what the one in the queue would: this is not done
// to the attachment that has the name next.
func TestS20PaidByTheRuntime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		fails := true
		f := &fake{del: func(context.Context, *skel.CmdArgs) error {
			if fails {
				return types.NewError(101, "stuck", "")
			}
			return nil
		}}
		dir := queued(t, "c1")
		r := serve(t, &Server{Handler: f, Queue: dir})
		synctest.Wait()
		r.do(request("DEL", "c1")).want(t, 500, 101, "stuck")
		r.do(request("ADD", "c1")).want(t, 503, 11, "has not been done")
		fails = false
		r.do(request("DEL", "c1")).wantOK(t)
		r.do(request("ADD", "c1")).wantOK(t)
		f.said()
		time.Sleep(time.Hour)
		f.want(t)
		if left(t, dir) != 0 {
			t.Errorf("%d left", left(t, dir))
		}
		// One that is queued after it is another.
		enqueue(t, dir, request("DEL", "c1"))
		time.Sleep(longestPause)
		synctest.Wait()
		f.want(t, "DEL c1", "end DEL c1")
	})
}

// What an operator has taken out of the queue is owed no more, and what comes
// into it later is done.
func TestS20RemovedByHand(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var works atomic.Bool
		var dels atomic.Int32
		f := &fake{del: func(context.Context, *skel.CmdArgs) error {
			dels.Add(1)
			if works.Load() {
				return nil
			}
			return types.NewError(101, "stuck", "")
		}}
		dir := queued(t, "c1", "c2")
		r := serve(t, &Server{Handler: f, Queue: dir})
		synctest.Wait()
		names, err := filepath.Glob(dir + "/*.json")
		if err != nil || len(names) != 2 {
			t.Fatalf("%q, %v", names, err)
		}
		for _, name := range names {
			if err := os.Remove(name); err != nil {
				t.Fatal(err)
			}
		}
		works.Store(true)
		r.do(request("DEL", "c2")).wantOK(t)
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		r.do(request("ADD", "c1")).wantOK(t)
		r.do(request("ADD", "c2")).wantOK(t)
		enqueue(t, dir, request("DEL", "c2"))
		dels.Store(0)
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		if dels.Load() != 1 || left(t, dir) != 0 {
			t.Errorf("%d done, %d left", dels.Load(), left(t, dir))
		}
	})
}

// An old DEL takes the place of nothing that is newer.
func TestS20SupersedesNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		fails := true
		f := &fake{del: func(context.Context, *skel.CmdArgs) error {
			if fails {
				return types.NewError(101, "stuck", "")
			}
			return nil
		}, add: func(ctx context.Context, _ *skel.CmdArgs) (types.Result, error) {
			time.Sleep(10 * time.Second)
			return someResult(), ctx.Err()
		}}
		r := serve(t, &Server{Handler: f, Queue: queued(t, "c1")})
		synctest.Wait()
		fails = false
		r.do(with(request("ADD", "c1"), "CNI_IFNAME", "eth1")).wantOK(t)
		synctest.Wait()
		f.want(t, "DEL c1", "end DEL c1", "ADD c1", "end ADD c1", "DEL c1", "end DEL c1")
	})
}

// What a shim that could not connect has left is found, although the daemon was
// there.
func TestS20QueuedLater(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := &fake{}
		dir := queued(t)
		r := serve(t, &Server{Handler: f, Queue: dir})
		synctest.Wait()
		exchange(t.Context(), r.Client, "POST", wire.PathReady, nil).wantOK(t)
		enqueue(t, dir, request("DEL", "c1"))
		time.Sleep(longestPause)
		synctest.Wait()
		f.want(t, "DEL c1")
	})
}

// G11: damaged files are set aside, and what is no DEL is not done.
func TestS20Damaged(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var book logBook
		dir := queued(t, "c1", "c2")
		names, err := filepath.Glob(dir + "/*.json")
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(names[0], []byte("{"), 0o600); err != nil {
			t.Fatal(err)
		}
		enqueue(t, dir, request("ADD", "c3"))
		f := &fake{}
		r := serve(t, &Server{Handler: f, Queue: dir, Logger: book.logger()})
		synctest.Wait()
		exchange(t.Context(), r.Client, "POST", wire.PathReady, nil).wantOK(t)
		if calls := f.said(); len(calls) != 1 || !strings.HasPrefix(calls[0], "DEL c") {
			t.Errorf("calls %q", calls)
		}
		if !strings.Contains(book.String(), "damaged") || !strings.Contains(book.String(), "not for a queue") {
			t.Errorf("log %s", book.String())
		}
	})
}

// A queue that cannot be read keeps the daemon from being ready, and says why,
// until it can.
func TestS20Unreadable(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		dir := queued(t, "c1")
		if err := os.Chmod(dir, 0o777); err != nil {
			t.Fatal(err)
		}
		f := &fake{}
		r := serve(t, &Server{Handler: f, Queue: dir})
		synctest.Wait()
		exchange(t.Context(), r.Client, "POST", wire.PathReady, nil).want(t, 503, 11, "others may write to the directory")
		r.do(request("ADD", "c2")).want(t, 503, 11, "starting")
		if err := os.Chmod(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		synctest.Wait()
		f.want(t, "DEL c1")
		exchange(t.Context(), r.Client, "POST", wire.PathReady, nil).wantOK(t)
	})
}

// A daemon that is told to stop while it starts does what it has begun, and
// leaves the rest for the next.
func TestS20StoppedWhileStarting(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		dir := queued(t, "c1", "c2", "c3")
		f := &fake{del: func(context.Context, *skel.CmdArgs) error {
			time.Sleep(time.Second)
			return nil
		}}
		r := serve(t, &Server{Handler: f, Queue: dir, MaxInFlight: 2})
		synctest.Wait()
		start := time.Now()
		r.stop()
		r.ended(time.Second, start)
		if n := left(t, dir); n != 1 {
			t.Errorf("%d left", n)
		}
	})
}
