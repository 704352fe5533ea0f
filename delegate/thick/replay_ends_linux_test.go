package thick

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"

	"github.com/metacni/metacni/delegate/thick/wire"
)

// A daemon that is told to stop lets the queued DEL that is running finish. It
// does not cancel it.
func TestStopDoesNotCancelAQueuedDel(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		dir := queued(t, "c1")
		f := &fake{del: func(ctx context.Context, _ *skel.CmdArgs) error {
			time.Sleep(time.Second)
			return context.Cause(ctx)
		}}
		r := serve(t, &Server{Commands: f.commands(), Queue: dir})
		synctest.Wait()
		start := time.Now()
		r.stop()
		r.ended(time.Second, start)
		if n := left(t, dir); n != 0 {
			t.Errorf("%d left", n)
		}
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

// A DEL that an operator has taken out of the queue blocks no ADD, even while
// another DEL in the queue still fails.
func TestRemovedDelBlocksNothingBesideOneThatFails(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := &fake{del: func(context.Context, *skel.CmdArgs) error { return types.NewError(101, "stuck", "") }}
		dir := queued(t, "stays")
		before, err := filepath.Glob(dir + "/*.json")
		ok(t, err)
		enqueue(t, dir, request("DEL", "removed"))
		r := serve(t, &Server{Commands: f.commands(), Queue: dir})
		synctest.Wait()
		r.do(request("ADD", "removed")).want(t, 503, 11, "is still queued")
		all, err := filepath.Glob(dir + "/*.json")
		ok(t, err)
		for _, name := range all {
			if name != before[0] {
				ok(t, os.Remove(name))
			}
		}
		time.Sleep(longestPause)
		synctest.Wait()
		r.do(request("ADD", "removed")).wantOK(t)
		r.do(request("ADD", "stays")).want(t, 503, 11, "is still queued")
	})
}

// A daemon that is told to stop does what it has begun, and leaves the rest for
// the next.
func TestStoppedWithAQueue(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		dir := queued(t, "c1", "c2", "c3")
		f := &fake{del: func(context.Context, *skel.CmdArgs) error {
			time.Sleep(time.Second)
			return nil
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
		ok(t, os.Chmod(dir, 0o777))
		f := &fake{}
		r := serve(t, &Server{Commands: f.commands(), Queue: dir})
		synctest.Wait()
		const why = "other users may write to the directory"
		exchange(t.Context(), r.Client, "POST", wire.PathReady, nil).want(t, 503, 11, why)
		r.do(request("ADD", "c2")).want(t, 503, 11, why)
		r.do(request("STATUS", "")).want(t, 500, 50, why)
		r.do(request("DEL", "c2")).wantOK(t)
		f.want(t, "DEL c2")
		ok(t, os.Chmod(dir, 0o700))
		r.do(request("ADD", "c2")).wantOK(t)
		time.Sleep(time.Second)
		synctest.Wait()
		exchange(t.Context(), r.Client, "POST", wire.PathReady, nil).wantOK(t)
		f.want(t, "ADD c2", "DEL c1")
	})
}
