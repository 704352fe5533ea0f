package thick

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"

	"github.com/metacni/metacni/delegate/thick/wire"
	"github.com/metacni/metacni/internal/nodetest"
	"github.com/metacni/metacni/internal/peer"
	"github.com/metacni/metacni/status"
)

// raw connects to r, and returns what it reads until the end there.
func (r *rig) raw() (net.Conn, func() string) {
	r.t.Helper()
	c := r.connect()
	all := make(chan string, 1)
	go func() {
		data, _ := io.ReadAll(c)
		all <- string(data)
	}()
	return c, func() string { return <-all }
}

const post100 = "POST /cni HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n"

// What is no request, or does not come to its end, costs its connection alone.
func TestBadInput(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		head  string
		each  string // one a second, after head
		after time.Duration
		want  string
	}{
		"not HTTP":    {"hello\r\n\r\n", "", 0, "HTTP/1.1 400 "},
		"huge header": {"POST /cni HTTP/1.1\r\nHost: x\r\nX: " + strings.Repeat("x", 40<<10) + "\r\n\r\n", "", 0, "HTTP/1.1 431 "},
		"silence":     {"", "", readHeaderTimeout, ""},
		"slow header": {"POST /cni HTTP/1.1\r\nHost: x\r\nX-Slow: ", "x", readHeaderTimeout, ""},
		"slow body":   {post100, "x", readTimeout, "HTTP/1.1 400 "},
		"slow chunks": {"POST /cni HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n", "1\r\nx\r\n", readTimeout, "HTTP/1.1 400 "},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				f := &fake{}
				r := serve(t, &Server{Commands: f.commands()})
				c, all := r.raw()
				start := time.Now()
				var writer sync.WaitGroup
				defer writer.Wait()
				writer.Go(func() {
					_, err := io.WriteString(c, tt.head)
					for err == nil && tt.each != "" {
						time.Sleep(time.Second)
						_, err = io.WriteString(c, tt.each)
					}
				})
				got := all()
				if !strings.HasPrefix(got, tt.want) || tt.want == "" && got != "" {
					t.Errorf("answer %q, want %q", got, tt.want)
				}
				// The server lingers for half a second, for its answer to be read.
				if d := time.Since(start); d < tt.after || d > tt.after+time.Second {
					t.Errorf("after %v, want %v", d, tt.after)
				}
				r.do(request("ADD", "c1")).wantOK(t)
				f.want(t, "ADD c1")
			})
		})
	}
}

// The time for a request to come is not the one of its operation, whose client is still
// watched when that is over.
func TestOperationMayTakeLongerThanReadingItsRequest(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := &fake{add: func(ctx context.Context, a *skel.CmdArgs) (types.Result, error) {
			select {
			case <-time.After(6 * readTimeout):
				return someResult(), nil
			case <-ctx.Done():
				return nil, context.Cause(ctx)
			}
		}}
		r := serve(t, &Server{Commands: f.commands()})
		start := time.Now()
		r.do(request("ADD", "c1")).wantOK(t)
		nodetest.Equal(t, "after", time.Since(start), 6*readTimeout)
		f.want(t, "ADD c1", "end ADD c1")

		c := r.connect()
		send(t, c, request("ADD", "c1"))
		time.Sleep(3 * readTimeout)
		f.want(t, "ADD c1")
		_ = c.Close()
		synctest.Wait()
		f.want(t, "end ADD c1")
		r.idle()
	})
}

// Who may not connect gets nothing, whatever it asks, and is seen.
func TestStrangers(t *testing.T) {
	t.Parallel()
	own := uint32(os.Geteuid()) //nolint:gosec // no ID is negative
	type peerFunc = func(net.Conn) (int, bool)
	as := func(uid int, ok bool) peerFunc {
		return func(net.Conn) (int, bool) { return uid, ok }
	}
	for name, tt := range map[string]struct {
		allow []uint32
		peer  peerFunc
		ok    bool
	}{
		"root":                   {nil, as(0, true), true},
		"this user":              {nil, me, true},
		"another":                {nil, as(65534, true), false},
		"unknown":                {nil, as(-1, false), false},
		"unknown, though listed": {[]uint32{1<<32 - 1}, as(-1, false), false},
		"listed":                 {[]uint32{7, 65534}, as(65534, true), true},
		"not listed":             {[]uint32{own + 1}, me, false},
		"nobody":                 {[]uint32{}, as(0, true), false},
		"a pipe":                 {nil, peer.UID, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var seen nodetest.Notes[Event]
				f := &fake{}
				other := http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
					if !tt.ok {
						t.Error("a stranger got through")
					}
				})
				r := serveAs(t, &Server{Commands: f.commands(), AllowUIDs: tt.allow, Observer: seen.Note, Other: other}, tt.peer)
				for _, path := range []string{wire.PathCNI, wire.PathAttach, wire.PathHealth, wire.PathReady, pathInfo, "/metrics"} {
					a := exchange(t.Context(), r.Client, "POST", path, encoded(request("ADD", "c1")))
					synctest.Wait()
					if tt.ok == (a.status == http.StatusForbidden) {
						t.Errorf("%s: %d %s, %v", path, a.status, a.body, a.err)
					}
					if !tt.ok {
						a.want(t, 403, 999, "may not connect")
					}
				}
				nodetest.Equal(t, "calls", tt.ok, len(f.Taken()) == 1)
				all := seen.Taken()
				if tt.ok {
					return
				}
				if len(all) != 6 || all[0].Status != 403 || all[0].Path != wire.PathCNI || all[5].Path != "" || all[0].Command != "" || all[0].Err == nil {
					t.Errorf("events %+v", all)
				}
			})
		})
	}
}

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
		r := serve(t, limited(&Server{Commands: f.commands(), MaxInFlight: inFlight}, queued))
		var waits []func() answer
		for i := range flood {
			waits = append(waits, r.begin(request("ADD", fmt.Sprint("c", i))))
			synctest.Wait() // so that they come in order
		}
		if s := r.Loads(); s["add"] != (Load{inFlight, queued}) || s["del"] != (Load{}) {
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
		for _, path := range []string{wire.PathHealth, wire.PathReady, pathInfo} {
			r.get(path).wantOK(t)
		}
		nodetest.Equal(t, "waited", time.Since(start), 0)
		close(g)
		for _, wait := range waits[:inFlight+queued] {
			wait().wantOK(t)
		}
		nodetest.Equal(t, "ran at once", most.Load(), inFlight)
		r.idle()
	})
}

// A client that asks and never reads an answer loses its connection, whatever it
// asks for.
func TestClientThatNeverReadsIsCutOff(t *testing.T) {
	t.Parallel()
	for _, path := range []string{wire.PathHealth, wire.PathReady, pathInfo, wire.PathAttach, "/metrics"} {
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
		r := serve(t, limited(&Server{Commands: f.commands(), MaxInFlight: 2}, 1))
		dels := []func() answer{r.begin(request("DEL", "c1")), r.begin(request("GC", ""))}
		synctest.Wait()
		dels = append(dels, r.begin(request("DEL", "c2")))
		synctest.Wait()
		nodetest.Equal(t, "load", r.Loads()["del"], Load{2, 1})
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
		nodetest.Equal(t, "waited", time.Since(start), time.Second)
		for _, wait := range asked {
			wait().want(t, 500, 50, "operation timed out")
		}
		nodetest.Equal(t, "waited", time.Since(start), 2*time.Second)
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
		var seen nodetest.Notes[Event]
		f := &fake{add: addAfter(g)}
		r := serve(t, &Server{Commands: f.commands(), MaxInFlight: 1, Observer: seen.Note})
		first := r.begin(request("ADD", "c1"))
		synctest.Wait()
		start := time.Now()
		byLane, byContainer := r.begin(request("ADD", "c2")), r.begin(request("ADD", "c1"))
		byLane().want(t, 503, 11, "timed out in the queue")
		byContainer().want(t, 503, 11, "timed out in the queue")
		nodetest.Equal(t, "waited", time.Since(start), 30*time.Second)
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
		for _, ev := range seen.Taken() {
			got[ev.Status]++
		}
		nodetest.Equal(t, "got", got, map[int]int{200: 1, 503: 3, 499: 1})
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
		o, err := sv.decode(wire.PathCNI, &m, nil)
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
