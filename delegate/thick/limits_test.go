package thick

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"

	"github.com/metacni/metacni/delegate/thick/wire"
	"github.com/metacni/metacni/internal/nodetest"
	"github.com/metacni/metacni/status"
)

// addAfter is an ADD that waits for g.
func addAfter(g gate) func(context.Context, *skel.CmdArgs) (types.Result, error) {
	return func(ctx context.Context, _ *skel.CmdArgs) (types.Result, error) { return someResult(), g.wait(ctx) }
}

// A flood of ADDs is bounded, in what runs and in what waits, and keeps
// neither DELs nor probes from being served at once.
func TestFloodOfAddsIsBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const inFlight, queued, flood = 4, 20, 100
		g := make(gate)
		var running, most atomic.Int32
		f := &fake{add: func(ctx context.Context, _ *skel.CmdArgs) (types.Result, error) {
			if n := running.Add(1); n > most.Load() {
				most.Store(n)
			}
			defer running.Add(-1)
			return someResult(), g.wait(ctx)
		}}
		r := serve(t, &Server{Commands: f.commands(), MaxInFlight: inFlight, MaxQueued: queued})
		var waits []func() answer
		for i := range flood {
			waits = append(waits, r.begin(request("ADD", fmt.Sprint("c", i))))
			synctest.Wait() // so that they come in order
		}
		if s := r.Stats(); s.Add != (Load{inFlight, queued}) || s.Del != (Load{}) {
			t.Errorf("%+v", s)
		}
		for i, wait := range waits[inFlight+queued:] {
			wait().want(t, 503, 11, fmt.Sprintf("ADD c%d eth0: too many requests are waiting", inFlight+queued+i))
		}
		sameJSON(t, strings.Replace(fixture(t, "answer-full.json"), "8f0c", "c99", 1), waits[flood-1]().body)
		start := time.Now()
		for i := range flood {
			r.do(request("DEL", fmt.Sprint("d", i))).wantOK(t)
		}
		r.do(request("GC", "")).wantOK(t)
		r.do(request("STATUS", "")).wantOK(t)
		for _, path := range []string{wire.PathHealth, wire.PathReady, wire.PathInfo} {
			r.get(path).wantOK(t)
		}
		if d := time.Since(start); d != 0 {
			t.Errorf("waited %v", d)
		}
		close(g)
		for _, wait := range waits[:inFlight+queued] {
			wait().wantOK(t)
		}
		if n := most.Load(); n != inFlight {
			t.Errorf("%d ran at once", n)
		}
		r.idle()
	})
}

// A client that asks and never reads an answer loses its connection, whatever it
// asks for.
func TestClientThatNeverReadsIsCutOff(t *testing.T) {
	t.Parallel()
	for _, path := range []string{wire.PathHealth, wire.PathReady, wire.PathInfo, wire.PathAttach, "/metrics"} {
		t.Run(path, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				page := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
					_, _ = io.WriteString(w, strings.Repeat("x", 1<<20))
				})
				r := serve(t, &Server{Commands: (&fake{}).commands(), Other: page})
				c := r.connect()
				if _, err := io.WriteString(c, "GET "+path+" HTTP/1.1\r\nHost: daemon\r\n\r\n"); err != nil {
					t.Fatal(err)
				}
				time.Sleep(writeTimeout + time.Second)
				if n, err := io.Copy(io.Discard, c); n != 0 || err != nil {
					t.Errorf("%d bytes later, %v", n, err)
				}
			})
		})
	}
}

// DELs have a bound of their own, and STATUSes.
func TestDelsAndStatusesHaveLimitsOfTheirOwn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := make(gate)
		block := func(ctx context.Context, _ *skel.CmdArgs) error { return g.wait(ctx) }
		f := &fake{del: block, gc: block, status: block}
		r := serve(t, &Server{Commands: f.commands(), MaxInFlight: 2, MaxQueued: 1})
		dels := []func() answer{r.begin(request("DEL", "c1")), r.begin(request("GC", ""))}
		synctest.Wait()
		dels = append(dels, r.begin(request("DEL", "c2")))
		synctest.Wait()
		if s := r.Stats(); s.Del != (Load{2, 1}) {
			t.Errorf("%+v", s)
		}
		r.do(request("GC", "")).want(t, 503, 11, "too many")
		r.do(request("ADD", "c3")).wantOK(t)
		var asked []func() answer
		for range statusInFlight {
			asked = append(asked, r.begin(request("STATUS", "")))
			synctest.Wait()
		}
		start := time.Now()
		hurried := request("STATUS", "")
		hurried.DeadlineMs = 1000
		waits := r.begin(hurried)
		synctest.Wait()
		r.do(request("STATUS", "")).want(t, 503, 50, "too many")
		waits().want(t, 503, 50, "operation timed out") // waiting is of it
		if d := time.Since(start); d != time.Second {
			t.Errorf("waited %v", d)
		}
		for _, wait := range asked {
			wait().want(t, 500, 50, "operation timed out")
		}
		if d := time.Since(start); d != 2*time.Second {
			t.Errorf("waited %v", d)
		}
		close(g)
		for _, wait := range dels {
			wait().wantOK(t)
		}
		r.idle()
	})
}

// What had timed out in the queue has done nothing.
func TestRequestWithoutATurnInTimeDidNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := make(gate)
		var seen events
		f := &fake{add: addAfter(g)}
		r := serve(t, &Server{Commands: f.commands(), MaxInFlight: 1, Observer: seen.observe})
		first := r.begin(request("ADD", "c1"))
		synctest.Wait()
		start := time.Now()
		byLane, byContainer := r.begin(request("ADD", "c2")), r.begin(request("ADD", "c1"))
		byLane().want(t, 503, 11, "timed out in the queue")
		byContainer().want(t, 503, 11, "timed out in the queue")
		if d := time.Since(start); d != 30*time.Second {
			t.Errorf("waited %v", d)
		}
		hurried := request("ADD", "c2")
		hurried.DeadlineMs = 1000
		r.do(hurried).want(t, 503, 11, "operation timed out")
		// One that goes while it waits is not run.
		ctx, cancel := context.WithCancel(t.Context())
		gone := r.beginUntil(ctx, request("ADD", "c2"))
		synctest.Wait()
		cancel()
		gone()
		synctest.Wait()
		f.want(t, "ADD c1")
		close(g)
		first().wantOK(t)
		r.idle()
		f.want(t, "end ADD c1")
		got := map[int]int{}
		for _, ev := range seen.taken() {
			got[ev.Status]++
		}
		nodetest.Equal(t, "got", got, map[int]int{200: 1, 503: 3, 499: 1})
	})
}

// A limiter gives its turns in the order in which they were asked for, and loses
// none to those that give up.
func TestLane(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(1, 3)
		take := func(ctx context.Context) chan error {
			if !l.admit() {
				t.Fatal("no place")
			}
			c := make(chan error, 1)
			go func() { c <- l.wait(ctx, l.lineUp(0)) }()
			synctest.Wait()
			return c
		}
		ctx, cancel := context.WithCancelCause(t.Context())
		a, b, c, d := take(t.Context()), take(ctx), take(t.Context()), take(ctx)
		if l.admit() {
			t.Error("a fifth place")
		}
		if err := <-a; err != nil {
			t.Error(err)
		}
		// It gets its turn as it gives up: whichever it takes, it is not lost.
		l.mu.Lock()
		cancel(errGone)
		l.next()
		l.mu.Unlock()
		if err := <-b; err == nil {
			l.release()
		}
		if err := <-c; err != nil {
			t.Error(err)
		}
		if err := <-d; err != errGone {
			t.Error(err)
		}
		l.release()
		for range 4 {
			l.leave()
		}
		if l.load() != (Load{}) || len(l.waiting) != 0 {
			t.Errorf("%+v, %d wait", l.load(), len(l.waiting))
		}
	})
}

// An operation whose time is over when it gets its turn has none: it can be
// said that nothing was done.
func TestRequestWhoseDeadlinePassedBeforeItsTurnDidNothing(t *testing.T) {
	t.Parallel()
	f := &fake{}
	sv := (&Server{Commands: f.commands()}).service()
	m := request("ADD", "c1")
	for range 50 {
		o, err := decode(wire.PathCNI, &m, nil, nil)
		nodetest.OK(t, err)
		op := heard(o)
		op.start = op.start.Add(-time.Hour)
		err = sv.operate(t.Context(), op)
		if httpStatus(err) != http.StatusServiceUnavailable || status.Code(err) != 11 {
			t.Errorf("err = %v", err)
		}
	}
	f.want(t)
}
