package thick

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"

	"github.com/metacni/metacni/delegate/thick/wire"
	"github.com/metacni/metacni/internal/nodetest"
)

// ended checks that Serve has returned, without an error.
func (r *rig) ended(after time.Duration, since time.Time) {
	r.t.Helper()
	<-r.done
	if d := time.Since(since); d != after {
		r.t.Errorf("Serve ended after %v, want %v", d, after)
	}
	if r.err != nil {
		r.t.Error(r.err)
	}
	r.wantNoLoad()
}

// When the time to drain is over, a DEL comes too late as well: nothing would end
// one that hangs, and the daemon would wait for it.
func TestNothingIsAcceptedOnceTheRestIsCancelled(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := &fake{del: untilEnd, gc: untilEnd, add: func(ctx context.Context, _ *skel.CmdArgs) (types.Result, error) {
			<-ctx.Done()
			time.Sleep(4 * time.Second)
			return nil, types.NewError(101, "killed", "")
		}}
		r := serve(t, &Server{Commands: f.commands()})
		add := r.begin(request("ADD", "c1"))
		synctest.Wait()
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
		f := &fake{add: addAfter(g)}
		r := serve(t, &Server{Commands: f.commands(), MaxInFlight: 1, Attach: func(*wire.Attributes) Commands { return f.commands() }})
		add := r.begin(request("ADD", "c1"))
		synctest.Wait()
		byLane, byContainer := r.begin(request("ADD", "c2")), r.begin(request("CHECK", "c1"))
		synctest.Wait()
		start := time.Now()
		r.stop()
		synctest.Wait()
		for _, verb := range []string{"ADD", "CHECK"} {
			r.do(request(verb, "c3")).want(t, 503, 11, "the daemon is stopping")
			r.attach(request(verb, "c3")).want(t, 503, 11, "the daemon is stopping")
		}
		r.do(request("STATUS", "")).want(t, 503, 50, "the daemon is stopping")
		exchange(t.Context(), r.Client, "POST", wire.PathReady, nil).want(t, 503, 11, "not ready: daemon: the daemon is stopping")
		for _, verb := range []string{"DEL", "GC"} {
			a := r.do(request(verb, "c4"))
			a.wantOK(t)
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
		if _, err := r.l.dial(t.Context()); !errors.Is(err, net.ErrClosed) {
			t.Errorf("dial: %v", err)
		}
	})
}

// A daemon that is told to stop serves every ADD that it has taken on, those too
// that wait for their turn, as long as its time to drain lasts. The others are
// told to come again, and nothing has been done for them.
func TestAddsTakenOnAreServedWhileDraining(t *testing.T) {
	t.Parallel()
	for limit, want := range map[time.Duration]int{25 * time.Second: 12, 3500 * time.Millisecond: 6} {
		synctest.Test(t, func(t *testing.T) {
			f := &fake{add: func(ctx context.Context, _ *skel.CmdArgs) (types.Result, error) {
				time.Sleep(time.Second)
				return someResult(), ctx.Err()
			}}
			r := serve(t, &Server{Commands: f.commands(), MaxInFlight: 2, DrainTimeout: limit})
			var adds []func() answer
			for i := range 12 {
				adds = append(adds, r.begin(request("ADD", fmt.Sprint("c", i))))
			}
			synctest.Wait()
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
			if served != want {
				t.Errorf("%d served in %v, want %d", served, limit, want)
			}
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
		f := &fake{add: func(ctx context.Context, _ *skel.CmdArgs) (types.Result, error) {
			time.Sleep(34 * time.Second)
			return someResult(), nil
		}, del: func(context.Context, *skel.CmdArgs) error {
			time.Sleep(9 * time.Second)
			return nil
		}}
		r := serve(t, &Server{Commands: f.commands()})
		ctx, cancel := context.WithCancel(t.Context())
		add := r.beginUntil(ctx, request("ADD", "c1"))
		synctest.Wait()
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
		r := serve(t, &Server{Commands: f.commands()})
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

// The successor has the socket only once nothing is in flight, and what
// connects until then is served.
func TestHandOverBeginsOnceNothingIsInFlight(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := make(gate)
		f := &fake{add: addAfter(g)}
		r := newRig(t, local(&Server{Commands: f.commands()}))
		var wg sync.WaitGroup
		r.run(handingOver{r.l, func() error {
			r.wantNoLoad()
			// It still serves.
			r.do(request("DEL", "c2")).wantOK(t)
			r.do(request("ADD", "c2")).want(t, 503, 11, "stopping")
			// The last that connects is served after it, and then there are no more.
			c := r.connect()
			wg.Go(func() {
				time.Sleep(2 * time.Second)
				exchange(t.Context(), clientOf(func(context.Context) (net.Conn, error) { return c, nil }), "POST", wire.PathCNI, encoded(request("DEL", "c3"))).wantOK(t)
			})
			return r.l.Close()
		}})
		add := r.begin(request("ADD", "c1"))
		synctest.Wait()
		start := time.Now()
		r.stop()
		synctest.Wait()
		f.want(t, "ADD c1")
		close(g)
		add().wantOK(t)
		r.ended(2*time.Second, start)
		wg.Wait()
		f.want(t, "end ADD c1", "DEL c2", "DEL c3")
	})
}

// A handler that ignores its context does not keep Serve for ever: the successor has the socket
// all the same, and what connects until then gets an answer.
func TestHandOverDoesNotWaitForWhatIsStuck(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := make(gate)
		f := &fake{add: func(context.Context, *skel.CmdArgs) (types.Result, error) {
			<-g
			return someResult(), nil
		}}
		r := newRig(t, local(&Server{Commands: f.commands()}))
		handedOver := false
		served := make(chan error, 1)
		ctx, stop := context.WithCancel(t.Context())
		go func() {
			served <- r.Serve(ctx, handingOver{r.l, func() error {
				handedOver = true
				r.do(request("DEL", "c2")).want(t, 503, 11, "stopping") // the next daemon gets it again
				return r.l.Close()
			}})
		}()
		add := r.begin(request("ADD", "c1"))
		synctest.Wait()
		stop()
		nodetest.Is(t, <-served, errStuck)
		if !handedOver {
			t.Error("not handed over")
		}
		close(g)
		add()
	})
}

// A listener whose handOver does not end Accept is closed.
func TestListenerThatDoesNotEndIsClosed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, local(bare()))
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
		f := &fake{add: func(context.Context, *skel.CmdArgs) (types.Result, error) {
			time.Sleep(time.Second)
			return someResult(), nil
		}}
		s := local(&Server{Commands: f.commands()})
		l := newInMemory()
		served := make(chan error, 1)
		go func() { served <- s.Serve(t.Context(), l) }()
		added := make(chan answer, 1)
		go func() {
			added <- exchange(t.Context(), clientOf(l.dial), "POST", wire.PathCNI, encoded(request("ADD", "c1")))
		}()
		synctest.Wait()
		_ = l.Close()
		(<-added).wantOK(t)
		nodetest.Is(t, <-served, net.ErrClosed)
	})
}

func TestServeRefuses(t *testing.T) {
	t.Parallel()
	l := newInMemory()
	nodetest.Says(t, (&Server{}).Serve(t.Context(), l), "has no Add")
	if _, err := l.Accept(); err == nil {
		t.Error("the listener is open")
	}
	synctest.Test(t, func(t *testing.T) {
		r := serve(t, bare())
		synctest.Wait()
		nodetest.Says(t, r.Serve(t.Context(), newInMemory()), "once")
		r.do(request("ADD", "c1")).wantOK(t)
	})
}

// A daemon that stops keeps no connection for a next request.
func TestDrainingKeepsNoConnection(t *testing.T) {
	t.Parallel()
	s := bare()
	for _, want := range []string{"", "close"} {
		w := httptest.NewRecorder()
		s.service().ServeHTTP(w, httptest.NewRequestWithContext(context.WithValue(t.Context(), callerKey{}, caller{0, true}), http.MethodGet, wire.PathHealth, nil))
		nodetest.Equal(t, "Connection", w.Header().Get("Connection"), want)
		s.service().flight.advance(draining)
	}
}
