package thick

import (
	"context"
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
	"github.com/metacni/metacni/internal/nodetest"
)

// queued returns a queue with the DELs of the containers.
func queued(t *testing.T, ids ...string) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "queue")
	daemon := &queue.Reader{Queue: queue.In(dir)}
	_, _, err := daemon.List(t.Context())
	daemon.Close()
	nodetest.OK(t, err)
	for _, id := range ids {
		enqueue(t, dir, request("DEL", id))
	}
	return dir
}

func enqueue(t *testing.T, dir string, m wire.Request) {
	t.Helper()
	nodetest.OK(t, queue.In(dir).Put(t.Context(), m, func() (bool, error) { return false, nil }))
}

// left returns how many are in the queue.
func left(t *testing.T, dir string) int {
	t.Helper()
	names, err := filepath.Glob(dir + "/*.json")
	nodetest.OK(t, err)
	return len(names)
}

// A DEL of the runtime does not wait for one of the queue that hangs, whatever
// attachment of the container that is for: it takes its place.
func TestDelTakesThePlaceOfAQueuedOne(t *testing.T) {
	t.Parallel()
	for _, ifName := range []string{"eth0", "eth1"} {
		synctest.Test(t, func(t *testing.T) {
			first := true
			f := &fake{del: func(ctx context.Context, a *skel.CmdArgs) error {
				if first {
					first = false
					return untilEnd(ctx, a)
				}
				return nil
			}}
			dir := queued(t, "c1")
			r := serve(t, &Server{Commands: f.commands(), Queue: dir})
			synctest.Wait()
			start := time.Now()
			r.do(with(request("DEL", "c1"), "CNI_IFNAME", ifName)).wantOK(t)
			if d := time.Since(start); d != 0 {
				t.Errorf("it waited %v", d)
			}
			f.want(t, "DEL c1", "end DEL c1", "DEL c1", "end DEL c1")
			time.Sleep(firstPause)
			synctest.Wait()
			if ifName == "eth0" {
				f.want(t)
			} else {
				f.want(t, "DEL c1", "end DEL c1")
			}
			if left(t, dir) != 0 {
				t.Errorf("%d left", left(t, dir))
			}
		})
	}
}

// A DEL that fails stays, and is tried again with growing pauses; the daemon
// is ready all the same, but for an ADD that it would remove.
func TestFailedQueuedDelIsTriedAgain(t *testing.T) {
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
		r := serve(t, &Server{Commands: f.commands(), Queue: dir, Logger: book.logger()})
		synctest.Wait()
		exchange(t.Context(), r.Client, "POST", wire.PathReady, nil).wantOK(t)
		verbose := func() string {
			a := r.get(wire.PathReady + "?verbose")
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
		r.do(request("ADD", "c1")).want(t, 503, 11, "an earlier DEL of the attachment is still queued")
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

// A DEL of the runtime pays for the one in the queue: its file has gone when the
// DEL is answered, so that no daemon, this one or the next, does it to the
// attachment that has the name afterwards.
func TestDelOfTheRuntimePaysForTheQueuedOne(t *testing.T) {
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
		r := serve(t, &Server{Commands: f.commands(), Queue: dir})
		synctest.Wait()
		r.do(request("DEL", "c1")).want(t, 500, 101, "stuck")
		r.do(request("ADD", "c1")).want(t, 503, 11, "is still queued")
		fails = false
		r.do(request("DEL", "c1")).wantOK(t)
		if left(t, dir) != 0 {
			t.Errorf("%d left", left(t, dir))
		}
		r.do(request("ADD", "c1")).wantOK(t)
		r.stop()
		<-r.done
		f.said()
		serve(t, &Server{Commands: f.commands(), Queue: dir})
		time.Sleep(time.Hour)
		f.want(t)
		// One that is queued after it is another.
		enqueue(t, dir, request("DEL", "c1"))
		time.Sleep(longestPause)
		synctest.Wait()
		f.want(t, "DEL c1", "end DEL c1")
	})
}

// A DEL whose file cannot be removed is not done: as long as the file is there,
// the attachment cannot be added.
func TestDelThatStaysInTheQueueIsNotDone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := &fake{del: func(context.Context, *skel.CmdArgs) error { return types.NewError(101, "stuck", "") }}
		dir := queued(t, "c1")
		r := serve(t, &Server{Commands: f.commands(), Queue: dir})
		synctest.Wait() // tried, and not again before a second is over
		file, err := filepath.Glob(dir + "/*.json")
		nodetest.OK(t, err)
		nodetest.OK(t, os.Remove(file[0]))
		nodetest.OK(t, os.Mkdir(file[0], 0o700)) // which cannot be unlinked
		f.del = nil
		r.do(request("DEL", "c1")).want(t, 500, 5, "detached, but the queued DEL cannot be removed")
		r.do(request("ADD", "c1")).want(t, 503, 11, "is still queued")
		nodetest.OK(t, os.Remove(file[0]))
		r.do(request("DEL", "c1")).wantOK(t)
		r.do(request("ADD", "c1")).wantOK(t)
	})
}

// A DEL that somebody has taken out of the queue while it waited for its turn is
// not done: another daemon may have done it, and added the attachment again.
func TestDelTakenOutWhileItWaitsIsNotDone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := &fake{add: func(context.Context, *skel.CmdArgs) (types.Result, error) {
			time.Sleep(time.Minute / 3)
			return someResult(), nil
		}}
		dir := queued(t)
		r := serve(t, &Server{Commands: f.commands(), Queue: dir})
		synctest.Wait()
		enqueue(t, dir, request("DEL", "c1"))
		time.Sleep(longestPause - time.Second)
		add := r.begin(with(request("ADD", "c1"), "CNI_IFNAME", "eth1"))
		time.Sleep(2 * time.Second) // it waits for the container
		file, err := filepath.Glob(dir + "/*.json")
		nodetest.OK(t, err)
		nodetest.OK(t, os.Remove(file[0]))
		add().wantOK(t)
		synctest.Wait()
		f.want(t, "ADD c1", "end ADD c1")
	})
}

// A DEL that the server refuses, and always would, is set aside and told of. It
// is not tried again.
func TestDelThatIsRefusedForGoodIsSetAside(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var book logBook
		var seen events
		dir := queued(t)
		enqueue(t, dir, with(request("DEL", "c1"), "CNI_ARGS", "notapair"))
		f := &fake{}
		r := serve(t, &Server{Commands: f.commands(), Queue: dir, Logger: book.logger(), Observer: seen.observe})
		time.Sleep(time.Hour)
		f.want(t)
		all := seen.taken()
		if len(all) != 1 || all[0].Status != 400 || all[0].ContainerID != "c1" || !all[0].Replayed {
			t.Errorf("%+v", all)
		}
		if aside, err := filepath.Glob(dir + "/*.corrupt"); left(t, dir) != 0 || len(aside) != 1 || err != nil {
			t.Errorf("%d left, set aside %q", left(t, dir), aside)
		}
		a := r.get(wire.PathReady + "?verbose")
		a.wantOK(t)
		for _, text := range []string{a.body, book.String()} {
			if !strings.Contains(text, "damaged") || !strings.Contains(text, ".corrupt") {
				t.Errorf("it does not say so: %s", text)
			}
		}
		if !strings.Contains(book.String(), "notapair") {
			t.Errorf("it does not say why: %s", book.String())
		}
		r.do(request("ADD", "c1")).wantOK(t)
	})
}

// What an operator has taken out of the queue is owed no more, and what comes
// into it later is done.
func TestQueuedDelRemovedByHandIsNotDone(t *testing.T) {
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
		r := serve(t, &Server{Commands: f.commands(), Queue: dir})
		synctest.Wait()
		names, err := filepath.Glob(dir + "/*.json")
		if err != nil || len(names) != 2 {
			t.Fatalf("%q, %v", names, err)
		}
		for _, name := range names {
			nodetest.OK(t, os.Remove(name))
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
func TestQueuedDelCancelsNothing(t *testing.T) {
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
		r := serve(t, &Server{Commands: f.commands(), Queue: queued(t, "c1")})
		synctest.Wait()
		fails = false
		r.do(with(request("ADD", "c1"), "CNI_IFNAME", "eth1")).wantOK(t)
		synctest.Wait()
		f.want(t, "DEL c1", "end DEL c1", "ADD c1", "end ADD c1", "DEL c1", "end DEL c1")
	})
}

// Damaged files are set aside, and what is no DEL is not done.
func TestDamagedFilesOfTheQueueAreSetAside(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var book logBook
		dir := queued(t, "c1", "c2")
		names, err := filepath.Glob(dir + "/*.json")
		nodetest.OK(t, err)
		nodetest.OK(t, os.WriteFile(names[0], []byte("{"), 0o600))
		enqueue(t, dir, request("ADD", "c3"))
		f := &fake{}
		r := serve(t, &Server{Commands: f.commands(), Queue: dir, Logger: book.logger()})
		synctest.Wait()
		exchange(t.Context(), r.Client, "POST", wire.PathReady, nil).wantOK(t)
		if calls := f.said(); len(calls) != 1 || !strings.HasPrefix(calls[0], "DEL c") {
			t.Errorf("calls %q", calls)
		}
		if !strings.Contains(book.String(), "damaged") || !strings.Contains(book.String(), "cannot be queued") {
			t.Errorf("log %s", book.String())
		}
	})
}

// An ADD that finds a DEL which a shim has queued meanwhile has it done at once.
func TestAddHasAQueuedDelDoneAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := &fake{}
		dir := queued(t)
		r := serve(t, &Server{Commands: f.commands(), Queue: dir})
		synctest.Wait()
		enqueue(t, dir, request("DEL", "c1"))
		r.do(request("ADD", "c1")).want(t, 503, 11, "is still queued")
		synctest.Wait()
		r.do(request("ADD", "c1")).wantOK(t)
		f.want(t, "DEL c1", "ADD c1")
	})
}
