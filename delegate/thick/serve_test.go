package thick

import (
	"context"
	"encoding/json"
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

	"github.com/metacni/metacni/delegate/plugin"
	"github.com/metacni/metacni/delegate/thick/wire"
	"github.com/metacni/metacni/internal/peer"
	nodetest "github.com/metacni/metacni/internal/test/node"
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
				r := serve(t, &Server{Plugin: f.plugin()})
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
		f := &fake{add: func(ctx context.Context, _ *skel.CmdArgs) error {
			select {
			case <-time.After(6 * readTimeout):
				return nil
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}}
		r := serve(t, &Server{Plugin: f.plugin()})
		start := time.Now()
		r.do(request("ADD", "c1")).wantOK(t)
		nodetest.Equal(t, "after", time.Since(start), 6*readTimeout)
		f.want(t, "ADD c1", "end ADD c1")

		c := r.connect()
		send(t, c, request("ADD", "c1"))
		time.Sleep(3 * readTimeout)
		f.want(t, "ADD c1")
		_ = c.Close()
		r.idle()
		f.want(t, "end ADD c1")
	})
}

// Who may not connect gets nothing, whatever it asks, and is seen.
func TestStrangers(t *testing.T) {
	t.Parallel()
	own := uint32(os.Geteuid()) //nolint:gosec // no ID is negative
	as := func(uid int) func(net.Conn) (int, bool) {
		return func(net.Conn) (int, bool) { return uid, uid >= 0 }
	}
	for name, tt := range map[string]struct {
		allow []uint32
		peer  func(net.Conn) (int, bool)
		ok    bool
	}{
		"root":                   {nil, as(0), true},
		"this user":              {nil, me, true},
		"another":                {nil, as(int(own) + 1), false},
		"unknown, though listed": {[]uint32{1<<32 - 1}, as(-1), false},
		"listed":                 {[]uint32{7, 65534}, as(65534), true},
		"not listed":             {[]uint32{own + 1}, me, false},
		"nobody":                 {[]uint32{}, as(0), false},
		"a pipe":                 {nil, peer.UID, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var seen nodetest.Notes[Event]
				f := &fake{}
				other := http.HandlerFunc(func(http.ResponseWriter, *http.Request) { f.Note("a page") })
				r := newRig(t, &Server{Plugin: f.plugin(), AllowUIDs: tt.allow, Observer: seen.Note, Other: other})
				r.service().peer = tt.peer
				r.run(r.l)
				for _, path := range []string{wire.PathCNI, wire.PathAttach, wire.PathHealth, wire.PathReady, pathInfo, "/metrics"} {
					a := exchange(t.Context(), r.Client, "POST", path, encoded(request("ADD", "c1")))
					synctest.Wait()
					if !tt.ok {
						a.want(t, 403, 999, "may not connect")
					} else if a.status == http.StatusForbidden {
						t.Errorf("%s: %s", path, a.body)
					}
				}
				if tt.ok {
					f.want(t, "ADD c1", "a page")
					return
				}
				f.want(t)
				all := seen.Taken()
				if len(all) != 6 || all[0].Status != 403 || all[0].Path != wire.PathCNI || all[5].Path != "" || all[0].Command != "" || all[0].Err == nil {
					t.Errorf("events %+v", all)
				}
			})
		})
	}
}

// As many as hang at once, and as many as wait for them, are bounded.
func TestPluginsThatHangAreBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := &fake{add: untilEnd}
		r := serve(t, &Server{Plugin: f.plugin(), MaxInFlight: 4})
		for i := range 400 {
			r.begin(request("ADD", fmt.Sprint("c", i)))
		}
		time.Sleep(29 * time.Second)
		nodetest.Equal(t, "load", r.Loads()["add"], Load{maxInFlight, maxWaiting})
		time.Sleep(5 * time.Second)
		nodetest.Equal(t, "load", r.Loads()["add"], Load{maxInFlight, 0})
		time.Sleep(time.Minute + 30*time.Second)
		r.idle()
	})
}

// A client that asks and never reads an answer loses its connection, whatever it
// asks for.
func TestClientThatNeverReadsIsCutOff(t *testing.T) {
	t.Parallel()
	for _, path := range []string{wire.PathHealth, wire.PathAttach, "/metrics"} {
		synctest.Test(t, func(t *testing.T) {
			page := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				_, _ = io.WriteString(w, strings.Repeat("x", 1<<20))
			})
			r := serve(t, &Server{Plugin: (&fake{}).plugin(), Other: page})
			c := r.connect()
			_, err := io.WriteString(c, "GET "+path+" HTTP/1.1\r\nHost: daemon\r\n\r\n")
			nodetest.OK(t, err)
			time.Sleep(writeTimeout + time.Second)
			n, err := io.Copy(io.Discard, c)
			nodetest.OK(t, err)
			nodetest.Equal(t, "bytes later", n, 0)
		})
	}
}

// What had timed out in the queue has done nothing.
func TestRequestWithoutATurnInTimeDidNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := make(gate)
		var seen nodetest.Notes[Event]
		f := &fake{add: g.wait}
		r := serve(t, limited(&Server{Plugin: f.plugin(), MaxInFlight: 1, Observer: seen.Note}, 3))
		first := r.begin(request("ADD", "c1"))
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
	sv := (&Server{Plugin: f.plugin()}).service()
	m := request("ADD", "c1")
	for range 50 {
		op, err := understood(sv.Server, &m, nil)
		nodetest.OK(t, err)
		op.Start = op.Start.Add(-time.Hour)
		err = sv.operate(t.Context(), op)
		if httpStatus(err) != http.StatusServiceUnavailable || status.Code(err) != 11 {
			t.Errorf("err = %v", err)
		}
	}
	f.want(t)
}

// When the time to drain is over, a DEL comes too late as well: nothing would end
// one that hangs, and the daemon would wait for it.
func TestNothingIsAcceptedOnceTheRestIsCancelled(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := &fake{del: untilEnd, gc: untilEnd, add: func(ctx context.Context, _ *skel.CmdArgs) error {
			<-ctx.Done()
			time.Sleep(4 * time.Second)
			return types.NewError(101, "killed", "")
		}}
		r := serve(t, &Server{Plugin: f.plugin()})
		add := r.begin(request("ADD", "c1"))
		start := time.Now()
		r.stop()
		time.Sleep(26 * time.Second)
		for _, verb := range []string{"DEL", "GC"} {
			r.do(request(verb, "c2")).want(t, 503, 11, "the daemon is stopping")
		}
		add().want(t, 500, 11, "ADD c1 eth0: the daemon is stopping: killed")
		r.ended(29*time.Second, start)
	})
}

// While it drains a daemon takes on no ADD, says that nothing was done, and does
// each DEL and GC. What it has taken on before goes on.
func TestDrainingAcceptsOnlyDelAndGC(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := make(gate)
		f := &fake{add: g.wait}
		r := serve(t, &Server{Plugin: f.plugin(), MaxInFlight: 1, Attach: func(*wire.Attributes) plugin.Plugin { return f.plugin() }})
		add := r.begin(request("ADD", "c1"))
		byLane, byContainer := r.begin(request("ADD", "c2")), r.begin(request("CHECK", "c1"))
		start := time.Now()
		r.stop()
		synctest.Wait()
		for _, verb := range []string{"ADD", "CHECK"} {
			r.do(request(verb, "c3")).want(t, 503, 11, "the daemon is stopping")
			r.attach(request(verb, "c3")).want(t, 503, 11, "the daemon is stopping")
		}
		r.do(request("STATUS", "")).want(t, 503, 50, "the daemon is stopping")
		r.get(wire.PathReady).want(t, 503, 11, "not ready: daemon: the daemon is stopping")
		for _, verb := range []string{"DEL", "GC"} {
			r.do(request(verb, "c4")).wantOK(t)
			r.attach(request(verb, "c4")).wantOK(t)
		}
		r.get(wire.PathHealth).wantOK(t)
		nodetest.Equal(t, "waited", time.Since(start), 0)
		// A DEL of the container that is worked on ends that.
		r.do(request("DEL", "c1")).wantOK(t)
		add().want(t, 500, 11, "cancelled by DEL")
		byContainer().want(t, 500, 11, "cancelled by DEL")
		close(g)
		byLane().wantOK(t)
		r.ended(0, start)
		_, err := r.l.dial(t.Context())
		nodetest.Is(t, err, net.ErrClosed)
	})
}

// A daemon that is told to stop serves every ADD that it has taken on, those too
// that wait for their turn, as long as its time to drain lasts. The others are
// told to come again, and nothing has been done for them.
func TestAddsTakenOnAreServedWhileDraining(t *testing.T) {
	t.Parallel()
	for limit, want := range map[time.Duration]int{25 * time.Second: 12, 3500 * time.Millisecond: 6} {
		synctest.Test(t, func(t *testing.T) {
			f := &fake{add: takes(time.Second)}
			r := serve(t, &Server{Plugin: f.plugin(), MaxInFlight: 2, DrainTimeout: limit})
			var adds []func() answer
			for i := range 12 {
				adds = append(adds, r.begin(request("ADD", fmt.Sprint("c", i))))
			}
			r.stop()
			served := 0
			for _, add := range adds {
				switch a := add(); a.status {
				case http.StatusOK:
					served++
				case http.StatusServiceUnavailable:
					a.want(t, 503, 11, "the daemon is stopping")
				default: // it ran when the time was over, and is undone
					a.want(t, 500, 11, "the daemon is stopping")
				}
			}
			nodetest.Equal(t, "served in "+limit.String(), served, want)
			<-r.done
			if n := len(f.Taken()) / 2; n > want+2 {
				t.Errorf("%d were begun", n)
			}
		})
	}
}

// An ADD that succeeds although its time is over, for a client that has
// gone, is undone before the daemon ends.
func TestDrainingWaitsForTheUndo(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := &fake{add: func(context.Context, *skel.CmdArgs) error {
			time.Sleep(34 * time.Second)
			return nil
		}, del: takes(9 * time.Second)}
		r := serve(t, &Server{Plugin: f.plugin()})
		ctx, cancel := context.WithCancel(t.Context())
		add := r.beginUntil(ctx, request("ADD", "c1"))
		start := time.Now()
		r.stop()
		cancel()
		add()
		r.ended(43*time.Second, start)
		f.want(t, "ADD c1", "end ADD c1", "DEL c1", "end DEL c1")
	})
}

// Clients that say nothing do not keep it either, and what they say
// late is heard.
func TestSilentConnectionsAreServedUntilTheirTimeIsOver(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := &fake{}
		r := serve(t, &Server{Plugin: f.plugin()})
		r.connect() // and says nothing
		late := r.connect()
		kept := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return r.l.dial(ctx) }}}
		exchange(t.Context(), kept, "GET", wire.PathHealth, nil).wantOK(t)
		synctest.Wait()
		start := time.Now()
		r.stop()
		time.Sleep(2 * time.Second)
		c := clientOf(func(context.Context) (net.Conn, error) { return late, nil })
		exchange(t.Context(), c, "POST", wire.PathCNI, encoded(request("DEL", "c1"))).wantOK(t)
		f.want(t, "DEL c1")
		r.ended(readHeaderTimeout, start)
	})
}

// A handingOver is a listener whose handOver is do.
type handingOver struct {
	*inMemory

	do func() error
}

func (l handingOver) handOver(context.Context) error { return l.do() }

func (handingOver) lost() error { return nil }

// The successor has the socket only once nothing is in flight, and what
// connects until then is served.
func TestHandOverBeginsOnceNothingIsInFlight(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := make(gate)
		f := &fake{add: g.wait}
		r := newRig(t, &Server{Plugin: f.plugin()})
		var last func() answer
		r.run(handingOver{r.l, func() error {
			r.wantNoLoad()
			// It still serves.
			r.do(request("DEL", "c2")).wantOK(t)
			r.do(request("ADD", "c2")).want(t, 503, 11, "stopping")
			// The last that connects is served after it, and then there are no more.
			c := r.connect()
			later := clientOf(func(context.Context) (net.Conn, error) { time.Sleep(2 * time.Second); return c, nil })
			last = begun(func() answer {
				return exchange(t.Context(), later, "POST", wire.PathCNI, encoded(request("DEL", "c3")))
			})
			return r.l.Close()
		}})
		add := r.begin(request("ADD", "c1"))
		start := time.Now()
		r.stop()
		synctest.Wait()
		f.want(t, "ADD c1")
		close(g)
		add().wantOK(t)
		r.ended(2*time.Second, start)
		last().wantOK(t)
		f.want(t, "end ADD c1", "DEL c2", "DEL c3")
	})
}

// A handler that ignores its context does not keep Serve for ever: the successor has the socket
// all the same, and what connects until then gets an answer.
func TestHandOverDoesNotWaitForWhatIsStuck(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := make(chan struct{})
		f := &fake{add: func(context.Context, *skel.CmdArgs) error {
			<-g
			return nil
		}}
		r := newRig(t, &Server{Plugin: f.plugin()})
		r.fails = errStuck
		handedOver := false
		r.run(handingOver{r.l, func() error {
			handedOver = true
			r.do(request("DEL", "c2")).want(t, 503, 11, "stopping") // the next daemon gets it again
			return r.l.Close()
		}})
		add := r.begin(request("ADD", "c1"))
		r.stop()
		<-r.done
		nodetest.Equal(t, "handed over", handedOver, true)
		close(g)
		add()
	})
}

// A listener whose handOver does not end Accept is closed.
func TestListenerThatDoesNotEndIsClosed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, bare())
		r.run(handingOver{r.l, func() error { return nil }})
		synctest.Wait()
		start := time.Now()
		r.stop()
		r.ended(handOverTimeout, start)
	})
}

// When the listener fails, Serve drains and says why.
func TestListenerFails(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := &fake{add: takes(time.Second)}
		r := serve(t, &Server{Plugin: f.plugin()})
		r.fails = net.ErrClosed
		add := r.begin(request("ADD", "c1"))
		_ = r.l.Close()
		add().wantOK(t)
	})
}

func TestServeRefuses(t *testing.T) {
	t.Parallel()
	for _, odd := range []string{`null`, `[]`, `{}{}`} {
		l := newInMemory()
		nodetest.Says(t, (&Server{Plugin: (&fake{}).plugin(), Override: json.RawMessage(odd)}).Serve(t.Context(), l), "Override is not a JSON object")
		_, err := l.Accept()
		nodetest.Is(t, err, net.ErrClosed)
	}
	synctest.Test(t, func(t *testing.T) {
		r := serve(t, bare())
		nodetest.Says(t, r.Serve(t.Context(), newInMemory()), "once")
		r.do(request("ADD", "c1")).wantOK(t)
	})
}

// Clients that only connect leave descriptors for the commands, which come in their turn, and so do clients
// of other pages. A command that hangs has no place of theirs. A connection is not kept for a next request.
func TestStrangersAreFew(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := &fake{add: untilEnd}
		pages := make(gate)
		defer close(pages)
		r := newRig(t, &Server{Plugin: f.plugin(), Other: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { _ = pages.wait(r.Context(), nil) })})
		r.service().strangers.places = make(chan struct{}, 4)
		r.service().others = make(chan struct{}, 2)
		r.run(r.l)
		for range 10 {
			begun(func() answer { return r.get("/metrics") })
		}
		add := r.begin(request("ADD", "c1"))
		r.get(wire.PathHealth).wantOK(t)
		for range 10 {
			begun(func() (a answer) { _, a.err = r.l.dial(t.Context()); return a })
		}
		start := time.Now()
		c := r.connect()
		send(t, c, request("DEL", "c1"))
		_, err := io.Copy(io.Discard, c) // until the server closes it
		nodetest.OK(t, err)
		nodetest.Equal(t, "waited", time.Since(start), 5*readHeaderTimeout)
		add().want(t, 500, 11, "cancelled by DEL")
		f.want(t, "ADD c1", "end ADD c1", "DEL c1")
	})
}

// Of each kind of operation, what runs and what waits is bounded. A flood of one keeps neither
// the others nor the pages from being served at once.
func TestFloodOfAKindIsBounded(t *testing.T) {
	t.Parallel()
	for kind, verb := range map[string]string{"add": "ADD", "del": "DEL", "gc": "GC", "status": "STATUS"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				const inFlight, queued, flood = statusInFlight, 20, 30
				g := make(gate)
				var running, most atomic.Int32
				f := &fake{}
				methods := map[string]*func(context.Context, *skel.CmdArgs) error{"ADD": &f.add, "DEL": &f.del, "GC": &f.gc, "STATUS": &f.status}
				*methods[verb] = func(ctx context.Context, a *skel.CmdArgs) error {
					most.Store(max(most.Load(), running.Add(1)))
					defer running.Add(-1)
					return g.wait(ctx, a)
				}
				r := serve(t, limited(&Server{Plugin: f.plugin(), MaxInFlight: inFlight}, queued))
				var waits []func() answer
				for i := range flood {
					waits = append(waits, r.begin(request(verb, fmt.Sprint("c", i))))
				}
				loads := map[string]Load{"add": {}, "del": {}, "gc": {}, "status": {}}
				loads[kind] = Load{inFlight, queued}
				nodetest.Equal(t, "loads", r.Loads(), loads)
				code := uint(11)
				if verb == "STATUS" {
					code = 50
				}
				for _, wait := range waits[inFlight+queued:] {
					wait().want(t, 503, code, ": too many requests are waiting")
				}
				if verb == "ADD" {
					sameJSON(t, strings.Replace(fixture(t, "answer-full.json"), "8f0c", "c29", 1), waits[flood-1]().body)
				}
				start := time.Now()
				for _, other := range []string{"ADD", "CHECK", "DEL", "GC", "STATUS"} {
					if other != verb && (other != "CHECK" || verb != "ADD") {
						r.do(request(other, "d")).wantOK(t)
					}
				}
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
		})
	}
}
