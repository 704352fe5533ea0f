package thick

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containernetworking/cni/pkg/skel"

	"github.com/metacni/metacni/delegate/delegatetest"
	"github.com/metacni/metacni/delegate/thick/wire"
	"github.com/metacni/metacni/internal/durable"
)

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
		ok(t, r.CheckReady(t.Context()))
		r.do(request("STATUS", "")).wantOK(t)
		obstacle := filepath.Join(dir, durable.TempPrefix+"try") // as a full disk is
		ok(t, os.Mkdir(obstacle, 0o700))
		exchange(t.Context(), r.Client, "GET", wire.PathReady, nil).want(t, 503, 11, dir)
		r.do(request("STATUS", "")).want(t, 500, 50, dir)
		r.do(request("ADD", "c1")).wantOK(t)
		ok(t, os.Remove(obstacle))
		ok(t, r.CheckReady(t.Context()))
		ok(t, os.RemoveAll(dir))
		ok(t, r.CheckReady(t.Context()))
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
		ok(t, os.Remove(mark))
		ok(t, os.Mkdir(mark, 0o700))
		r := serve(t, &Server{Commands: (&fake{}).commands(), Queue: dir})
		synctest.Wait()
		exchange(t.Context(), r.Client, "GET", wire.PathReady, nil).want(t, 503, 11, mark)
		r.do(request("STATUS", "")).want(t, 500, 50, mark)
		r.do(request("ADD", "c1")).wantOK(t)
		ok(t, os.Remove(mark))
		time.Sleep(2 * firstPause)
		synctest.Wait()
		ok(t, r.CheckReady(t.Context()))
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
					ok(t, err)
				}
				add()
				records, err := m.Container(t.Context(), "c1")
				if err != nil || len(records) != 1 {
					t.Fatal(records, err)
				}
				del := request("DEL", "c1")
				if del.Recorded = records[0].Created; !tt.recorded {
					ok(t, m.Del(t.Context(), args))
					del.Recorded, del.Unrecorded = time.Time{}, time.Now()
				}
				dir := queued(t)
				enqueue(t, dir, del)
				// Another program shares the records, and does not know the queue.
				again := func() {
					time.Sleep(time.Millisecond)
					ok(t, m.Del(t.Context(), args))
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
