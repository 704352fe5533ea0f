package thick

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
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

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/lifecycle"
	"github.com/metacni/metacni/delegate/plugin"
	"github.com/metacni/metacni/delegate/thick/internal/queue"
	"github.com/metacni/metacni/delegate/thick/wire"
	"github.com/metacni/metacni/internal/durable"
	nodetest "github.com/metacni/metacni/internal/test/node"
	"github.com/metacni/metacni/netconf"
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
	if queued, err := queue.In(dir).Put(t.Context(), m, func() bool { return false }); !queued || err != nil {
		t.Fatal(queued, err)
	}
}

// files returns the files of the DELs in the queue.
func files(t *testing.T, dir string) []string {
	t.Helper()
	names, err := filepath.Glob(dir + "/*.json")
	nodetest.OK(t, err)
	return names
}

// left returns how many are in the queue.
func left(t *testing.T, dir string) int {
	t.Helper()
	return len(files(t, dir))
}

// stuck is a DEL that fails.
func stuck(context.Context, *skel.CmdArgs) error { return types.NewError(101, "stuck", "") }

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

// A DEL of the runtime does not wait for one of the queue that hangs, whatever
// attachment of the container that is for: it takes its place.
func TestDelTakesThePlaceOfAQueuedOne(t *testing.T) {
	t.Parallel()
	for ifName, after := range map[string][]string{"eth0": nil, "eth1": {"DEL c1", "end DEL c1"}} {
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
			r := serve(t, &Server{Plugin: f.plugin(), Queue: dir})
			start := time.Now()
			r.do(with(request("DEL", "c1"), "CNI_IFNAME", ifName)).wantOK(t)
			nodetest.Equal(t, "it waited", time.Since(start), 0)
			f.want(t, "DEL c1", "end DEL c1", "DEL c1", "end DEL c1")
			time.Sleep(firstPause)
			synctest.Wait()
			f.want(t, after...)
			nodetest.Equal(t, "left", left(t, dir), 0)
		})
	}
}

// A DEL that fails stays, and is tried again with growing pauses; the daemon
// is ready all the same, but for an ADD that it would remove. It takes the place of nothing newer.
func TestFailedQueuedDelIsTriedAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var book nodetest.Log
		var tries []time.Duration
		start := time.Now()
		works := false
		f := &fake{add: takes(10 * time.Second), del: func(ctx context.Context, a *skel.CmdArgs) error {
			tries = append(tries, time.Since(start)/time.Second)
			if works {
				return nil
			}
			return stuck(ctx, a)
		}}
		dir := queued(t, "c1")
		r := serve(t, &Server{Plugin: f.plugin(), Queue: dir, Logger: logTo(&book)})
		verbose := func() string {
			a := r.get(wire.PathReady + "?verbose")
			a.wantOK(t)
			return a.body
		}
		if got := verbose(); !strings.Contains(got, `{"name":"queue","ok":true,"error":"`) || !strings.Contains(got, "stuck") {
			t.Errorf("with one that is stuck: %s", got)
		}
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		nodetest.Equal(t, "tried at", tries, []time.Duration{0, 1, 3, 7, 15, 31, 63})
		nodetest.Equal(t, "left", left(t, dir), 1)
		nodetest.Equal(t, "logged", book.Count("stuck"), 1)
		r.do(request("ADD", "c2")).wantOK(t)
		r.do(with(request("ADD", "c1"), "CNI_IFNAME", "eth1")).wantOK(t) // while the DEL is to be tried
		// An ADD that it would remove waits for it, and has it tried soon.
		works = true
		r.do(request("ADD", "c1")).want(t, 503, 11, "an earlier DEL of the attachment is still queued")
		time.Sleep(firstPause)
		synctest.Wait()
		nodetest.Equal(t, "left", left(t, dir), 0)
		nodetest.Equal(t, "errors", strings.Contains(verbose(), "error"), false)
		r.do(request("ADD", "c1")).wantOK(t)
		n := len(tries)
		time.Sleep(time.Hour)
		synctest.Wait()
		nodetest.Equal(t, "tries", len(tries), n)
	})
}

// A DEL of the runtime pays for the one in the queue: its file has gone when the
// DEL is answered, so that no daemon, this one or the next, does it to the
// attachment that has the name afterwards.
func TestDelOfTheRuntimePaysForTheQueuedOne(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := &fake{del: stuck}
		dir := queued(t, "c1")
		r := serve(t, &Server{Plugin: f.plugin(), Queue: dir})
		r.do(request("DEL", "c1")).want(t, 500, 101, "stuck")
		r.do(request("ADD", "c1")).want(t, 503, 11, "is still queued")
		f.del = nil
		r.do(request("DEL", "c1")).wantOK(t)
		nodetest.Equal(t, "left", left(t, dir), 0)
		r.do(request("ADD", "c1")).wantOK(t)
		r.stop()
		<-r.done
		f.Taken()
		serve(t, &Server{Plugin: f.plugin(), Queue: dir})
		time.Sleep(time.Hour)
		f.want(t)
		// One that is queued after it is another.
		enqueue(t, dir, request("DEL", "c1"))
		time.Sleep(longestPause)
		synctest.Wait()
		f.want(t, "DEL c1")
	})
}

// A DEL whose file cannot be removed is not done: as long as the file is there,
// the attachment cannot be added.
func TestDelThatStaysInTheQueueIsNotDone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := &fake{del: stuck}
		dir := queued(t, "c1")
		r := serve(t, &Server{Plugin: f.plugin(), Queue: dir}) // tried, and not again before a second is over
		file := files(t, dir)[0]
		nodetest.OK(t, errors.Join(os.Remove(file), os.Mkdir(file, 0o700))) // which cannot be unlinked
		f.del = nil
		r.do(request("DEL", "c1")).want(t, 500, 5, "detached, but the queued DEL cannot be removed")
		r.do(request("ADD", "c1")).want(t, 503, 11, "is still queued")
		nodetest.OK(t, os.Remove(file))
		r.do(request("DEL", "c1")).wantOK(t)
		r.do(request("ADD", "c1")).wantOK(t)
	})
}

// A DEL that the server refuses, and always would, is set aside and told of. It
// is not tried again.
func TestDelThatIsRefusedForGoodIsSetAside(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var book nodetest.Log
		var seen nodetest.Notes[Event]
		dir := queued(t)
		enqueue(t, dir, with(request("DEL", "c1"), "CNI_ARGS", "notapair"))
		enqueue(t, dir, request("ADD", "c3"))
		f := &fake{}
		r := serve(t, &Server{Plugin: f.plugin(), Queue: dir, Logger: logTo(&book), Observer: seen.Note})
		time.Sleep(time.Hour)
		f.want(t)
		all := seen.Taken()
		if len(all) != 2 || all[0].Status != 400 || all[1].Status != 400 || !all[0].Replayed {
			t.Errorf("%+v", all)
		}
		aside, err := filepath.Glob(dir + "/*.corrupt")
		nodetest.OK(t, err)
		nodetest.Equal(t, "left and set aside", []int{left(t, dir), len(aside)}, []int{0, 2})
		a := r.get(wire.PathReady + "?verbose")
		a.wantOK(t)
		nodetest.Contains(t, "page", a.body, "damaged", ".corrupt")
		nodetest.Contains(t, "log", book.String(), "damaged", ".corrupt", "notapair", "ADD cannot be queued")
		r.do(request("ADD", "c1")).wantOK(t)
	})
}

// An ADD that finds a DEL which a shim has queued meanwhile has it done at once.
func TestAddHasAQueuedDelDoneAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := &fake{}
		var waits nodetest.Notes[string]
		dir := queued(t)
		r := serve(t, &Server{Plugin: f.plugin(), Queue: dir, System: func() plugin.System {
			return plugin.System{Stages: func(ctx context.Context, s delegate.Stage, e delegate.Event) (context.Context, func(error)) {
				return ctx, func(err error) { waits.Note(fmt.Sprint(s, " ", e.Command, ": ", err)) }
			}}
		}})
		enqueue(t, dir, request("DEL", "c1"))
		r.do(request("ADD", "c1")).want(t, 503, 11, "is still queued")
		synctest.Wait()
		nodetest.Equal(t, "stages", waits.Taken(), []string{fmt.Sprint("queue ADD: ", errQueued), "queue DEL: <nil>", "command DEL: <nil>"})
		r.do(request("ADD", "c1")).wantOK(t)
		f.want(t, "DEL c1", "ADD c1")
	})
}

// DELs of the queue take no turn and no place from those of the runtime, get the
// configuration that all get, and have as long as any other, each from its own
// beginning.
func TestQueuedDelsTakeNoTurnFromOthers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var running, most atomic.Int32
		var seen nodetest.Notes[Event]
		f := &fake{del: func(ctx context.Context, a *skel.CmdArgs) error {
			if !strings.Contains(string(a.StdinData), `"binDir":"/host"`) {
				t.Errorf("without the override: %s", a.StdinData)
			}
			if strings.HasPrefix(a.ContainerID, "hung") {
				end, _ := ctx.Deadline()
				nodetest.Equal(t, "deadline", time.Until(end), 110*time.Second)
				most.Store(max(most.Load(), running.Add(1)))
				defer running.Add(-1)
				return untilEnd(ctx, a)
			}
			time.Sleep(20 * time.Second)
			return nil
		}}
		r := serve(t, limited(&Server{
			Plugin: f.plugin(), Queue: queued(t, ids("hung", 9)...), MaxInFlight: 4, Override: []byte(`{"binDir":"/host"}`),
			Observer: seen.Note,
		}, 4))
		var live []func() answer
		for i := range 8 { // all that may run and wait
			live = append(live, r.begin(request("DEL", fmt.Sprint("c", i))))
		}
		nodetest.Equal(t, "load", r.Loads()["del"], Load{InFlight: 6, Queued: 4})
		start := time.Now()
		for _, del := range live {
			del().wantOK(t)
		}
		nodetest.Equal(t, "DELs of the runtime took", time.Since(start), 40*time.Second)
		time.Sleep(10 * time.Minute)
		nodetest.Equal(t, "at once", most.Load(), 9)
		tried := map[string]bool{}
		for _, e := range seen.Taken() {
			if e.Replayed {
				tried[e.ContainerID] = true
				if e.UID != -1 || e.Command != "DEL" || e.Status != 500 {
					t.Errorf("%+v", e)
				}
			}
		}
		nodetest.Equal(t, fmt.Sprintf("tried %v", tried), len(tried), 9)
	})
}

// A DEL that comes after many that hang has its turn, and at once if an ADD waits for it.
func TestQueuedDelsThatHangKeepNoOtherFromItsTurn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := &fake{del: hung}
		dir := queued(t, ids("hung", 40)...)
		r := serve(t, &Server{Plugin: f.plugin(), Queue: dir, MaxInFlight: 2})
		time.Sleep(41*110*time.Second + 30*time.Second) // all of them have failed, and none ends now
		enqueue(t, dir, request("DEL", "new"))
		enqueue(t, dir, request("DEL", "new-and-wanted"))
		r.do(request("ADD", "new-and-wanted")).want(t, 503, 11, "is still queued")
		time.Sleep(20 * time.Second)
		nodetest.Equal(t, "left", left(t, dir), 40)
		calls := f.Taken()
		for _, id := range []string{"new", "new-and-wanted"} {
			nodetest.Equal(t, id+" was done", slices.Contains(calls, "end DEL "+id), true)
		}
		r.do(request("ADD", "new-and-wanted")).wantOK(t)
	})
}

// A daemon that is told to stop does the DELs that it has begun and leaves the rest for
// the next. Serve returns only after the queue is written: a DEL that was done is no
// longer in it.
func TestStoppedWithAQueue(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		ids      []string
		del      func(context.Context, *skel.CmdArgs) error
		observer func(Event)
		left     int
	}{
		"while DELs run":            {ids("c", 3), takes(time.Second), nil, 1}, // they are not cancelled
		"between a DEL and its end": {ids("c", 1), nil, func(Event) { time.Sleep(time.Second) }, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				dir := queued(t, tt.ids...)
				r := serve(t, &Server{Plugin: (&fake{del: tt.del}).plugin(), Queue: dir, MaxInFlight: 4, Observer: tt.observer})
				start := time.Now()
				r.stop()
				r.ended(time.Second, start)
				nodetest.Equal(t, "DELs left", left(t, dir), tt.left)
			})
		})
	}
}

// Of two servers with one queue the second does no queued DEL and accepts no ADD, and
// says why, until the first has ended. It serves everything else.
func TestSecondServerOfAQueueWaitsForTheFirst(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var book nodetest.Log
		dir := queued(t)
		first := serve(t, &Server{Plugin: (&fake{}).plugin(), Queue: dir})
		f := &fake{}
		second := serve(t, &Server{Plugin: f.plugin(), Queue: dir, Logger: logTo(&book)})
		enqueue(t, dir, request("DEL", "c1"))
		second.do(request("ADD", "c2")).want(t, 503, 11, "another daemon reads this directory")
		second.get(wire.PathReady).want(t, 503, 11, "another daemon reads this directory")
		second.do(request("DEL", "c3")).wantOK(t)
		time.Sleep(10 * firstPause)
		f.want(t, "DEL c3")
		nodetest.Equal(t, "logged", book.Count("another daemon"), 1)
		first.do(request("ADD", "c2")).wantOK(t)
		first.stop()
		<-first.done
		time.Sleep(firstPause)
		synctest.Wait()
		second.do(request("ADD", "c2")).wantOK(t)
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
				n := nodetest.New(t, "blue")
				p := plugin.Plugin{StateDir: n.Path("state"), Networks: func(context.Context, *plugin.Call) ([]netconf.Network, error) {
					return []netconf.Network{nodetest.Network("blue", "blue")}, nil
				}}
				args := skel.CmdArgs{ContainerID: "c1", IfName: "eth0", StdinData: []byte(podsConf)}
				do := func(commands ...delegate.Command) {
					for _, command := range commands {
						nodetest.OK(t, p.Do(t.Context(), plugin.System{Exec: n.Exec, Stdout: io.Discard}, command, args))
					}
				}
				do("ADD")
				records, err := (&lifecycle.Manager{Dir: p.StateDir}).Container(t.Context(), "c1")
				nodetest.OK(t, err)
				del := request("DEL", "c1")
				if del.Recorded = records[0].Created; !tt.recorded {
					do("DEL")
					del.Recorded, del.Unrecorded = time.Time{}, time.Now()
				}
				dir := queued(t)
				enqueue(t, dir, del)
				// Another program shares the records, and does not know the queue.
				again := func() {
					time.Sleep(time.Millisecond)
					do("DEL", "ADD")
				}
				served := p
				if tt.during {
					served.Del = func(ctx context.Context, c *plugin.Call) error {
						again()
						return c.Del(ctx)
					}
				} else {
					again()
				}
				serve(t, &Server{Plugin: served, System: func() plugin.System { return plugin.System{Exec: n.Exec} }, Queue: dir})
				time.Sleep(time.Hour)
				nodetest.Equal(t, "alive", n.Exec.Live(), []string{"blue c1 eth0"})
				nodetest.Equal(t, "left", left(t, dir), 0)
			})
		})
	}
}

// Plugins that hang hold up only their own pods, whatever they do: the other operations wait for
// two seconds at most.
func TestPluginsThatHangHoldUpNobodyElse(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		hangs := func(ctx context.Context, a *skel.CmdArgs) error {
			if a.ContainerID == "" {
				return untilEnd(ctx, a)
			}
			return hung(ctx, a)
		}
		f := &fake{add: hangs, check: hangs, del: hangs, gc: hangs}
		r := serve(t, &Server{
			Plugin: f.plugin(), MaxInFlight: 4, Queue: queued(t, append(ids("hung-queued", 20), "q")...),
			Attach: func(*wire.Attributes) plugin.Plugin { return f.plugin() },
		})
		var waits []func() answer
		for verb, n := range map[string]int{"DEL": 100, "GC": 10, "ADD": 2, "CHECK": 1} {
			for i := range n {
				waits = append(waits, r.begin(request(verb, fmt.Sprint("hung", verb, i))))
			}
		}
		for _, id := range ids("hung-attached", 3) {
			waits = append(waits, begun(func() answer { return r.attach(request("ADD", id)) }))
		}
		start := time.Now()
		r.do(request("ADD", "c1")).wantOK(t)
		r.attach(with(request("ADD", "c1"), "CNI_IFNAME", "net1")).wantOK(t)
		r.do(request("CHECK", "c1")).wantOK(t)
		r.do(request("DEL", "c1")).wantOK(t)
		if waited := time.Since(start); waited > 2*time.Second {
			t.Errorf("waited %v", waited)
		}
		time.Sleep(20 * time.Second)
		r.do(request("ADD", "q")).wantOK(t) // its queued DEL was done
		synctest.Wait()
		nodetest.Equal(t, "load", r.Loads(), map[string]Load{"add": {6, 0}, "del": {120, 0}, "gc": {10, 0}, "status": {}})
		for _, wait := range waits {
			wait().want(t, 500, 11, "operation timed out")
		}
	})
}

// An old DEL takes the place of nothing that is newer. If somebody has taken it out of the queue
// while it waited for its turn, it is not done: another daemon may have done it, and added the
// attachment again.
func TestQueuedDelWaitsForItsTurn(t *testing.T) {
	t.Parallel()
	for _, taken := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			f := &fake{add: takes(time.Minute / 3)}
			dir := queued(t)
			r := serve(t, &Server{Plugin: f.plugin(), Queue: dir})
			enqueue(t, dir, request("DEL", "c1"))
			time.Sleep(longestPause - time.Second)
			add := r.begin(with(request("ADD", "c1"), "CNI_IFNAME", "eth1"))
			time.Sleep(2 * time.Second) // it waits for the container
			want := []string{"ADD c1", "end ADD c1"}
			if taken {
				nodetest.OK(t, os.Remove(files(t, dir)[0]))
			} else {
				want = append(want, "DEL c1")
			}
			add().wantOK(t)
			synctest.Wait()
			f.want(t, want...)
		})
	}
}

// While the queue cannot be read, or shims cannot write to it, or this server cannot be its reader, it is not
// ready, and says why. DELs are served. So is an ADD, unless nobody knows what must not be added.
func TestQueueThatCannotBeUsed(t *testing.T) {
	t.Parallel()
	for obstacle, why := range map[string]string{"": "other users may write to it", durable.TempPrefix + "try": "", ".reader": ""} {
		t.Run(obstacle+why, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				dir := queued(t, "c1")
				path := filepath.Join(dir, obstacle)
				if obstacle != "" {
					nodetest.OK(t, errors.Join(os.RemoveAll(path), os.Mkdir(path, 0o700)))
				} else {
					nodetest.OK(t, os.Chmod(dir, 0o777))
				}
				f := &fake{}
				r := serve(t, &Server{Plugin: f.plugin(), Queue: dir})
				r.get(wire.PathReady).want(t, 503, 11, cmp.Or(why, dir))
				r.do(request("STATUS", "")).want(t, 500, 50, cmp.Or(why, dir))
				r.do(request("DEL", "c2")).wantOK(t)
				if a := r.do(request("ADD", "c2")); why == "" {
					a.wantOK(t)
					nodetest.OK(t, os.RemoveAll(path))
				} else {
					a.want(t, 503, 11, why)
					nodetest.Equal(t, "done", f.of("c1"), nil)
					nodetest.OK(t, os.Chmod(dir, 0o700))
				}
				time.Sleep(2 * firstPause)
				synctest.Wait()
				nodetest.OK(t, r.CheckReady(t.Context()))
				nodetest.Equal(t, "done", f.of("c1"), []string{"DEL c1"})
			})
		})
	}
}
