package thick

import (
	"context"
	"fmt"
	"slices"
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
)

// Operations of one container run one by one, in the order in which they
// came; those of others do not wait for them.
func TestOperationsOfAContainerRunInOrder(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		slow := func(context.Context, *skel.CmdArgs) error {
			time.Sleep(time.Second)
			return nil
		}
		f := &fake{check: slow, del: slow, add: func(context.Context, *skel.CmdArgs) (types.Result, error) {
			time.Sleep(time.Second)
			return someResult(), nil
		}}
		attach := func(*wire.Attributes) Commands { return f.commands() }
		r := serve(t, &Server{Commands: f.commands(), Attach: attach})
		var waits []func() answer
		for _, verb := range []string{"ADD", "CHECK", "ADD"} {
			waits = append(waits, r.begin(request(verb, "c1")))
			synctest.Wait()
		}
		attached := make(chan answer, 1)
		go func() {
			attached <- r.attach(with(request("ADD", "c1"), "CNI_IFNAME", "net1"))
		}()
		synctest.Wait()
		// Of another container, and of none.
		start := time.Now()
		r.do(request("CHECK", "c2")).wantOK(t)
		r.do(request("GC", "c1")).wantOK(t)
		if d := time.Since(start); d != time.Second {
			t.Errorf("waited %v", d)
		}
		for _, wait := range waits {
			wait().wantOK(t)
		}
		(<-attached).wantOK(t)
		if d := time.Since(start); d != 4*time.Second {
			t.Errorf("took %v", d)
		}
		got := slices.DeleteFunc(f.said(), func(s string) bool { return !strings.HasSuffix(s, "c1") })
		nodetest.Equal(t, "calls", got, []string{"ADD c1", "end ADD c1", "CHECK c1", "end CHECK c1", "ADD c1", "end ADD c1", "ADD c1", "end ADD c1"})
		r.idle()
	})
}

// A DEL takes the place of all that came before it for its
// container, the waiting included, after it was undone.
func TestDelCancelsEarlierOperations(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := &fake{add: func(ctx context.Context, _ *skel.CmdArgs) (types.Result, error) {
			<-ctx.Done()
			time.Sleep(3 * time.Second) // undoing
			return nil, types.NewError(101, "killed", "")
		}, del: func(context.Context, *skel.CmdArgs) error { return nil }}
		// All the ADDs that may be are there already: a DEL needs none of their places.
		r := serve(t, &Server{Commands: f.commands(), MaxInFlight: 1, MaxQueued: 3})
		add := r.begin(request("ADD", "c1"))
		synctest.Wait()
		queued := r.begin(request("CHECK", "c1"))
		synctest.Wait()
		other := r.begin(request("ADD", "c2"))
		synctest.Wait()
		start := time.Now()
		first, second := r.begin(request("DEL", "c1")), r.begin(request("DEL", "c1"))
		synctest.Wait()
		after := r.begin(request("CHECK", "c1"))
		add().want(t, 500, 11, "ADD c1 eth0: cancelled by DEL: killed")
		// It must not be tried again, as a 503 would be.
		queued().want(t, 500, 11, "CHECK c1 eth0: cancelled by DEL")
		first().wantOK(t)
		second().wantOK(t)
		if d := time.Since(start); d != 3*time.Second {
			t.Errorf("waited %v", d)
		}
		r.do(request("DEL", "c2")).wantOK(t)
		other().want(t, 500, 11, "cancelled by DEL")
		after().wantOK(t)
		calls := f.said()
		for id, want := range map[string][]string{
			"c1": {"ADD c1", "end ADD c1", "DEL c1", "end DEL c1", "DEL c1", "end DEL c1", "CHECK c1"},
			"c2": {"ADD c2", "end ADD c2", "DEL c2", "end DEL c2"},
		} {
			got := slices.DeleteFunc(slices.Clone(calls), func(s string) bool { return !strings.HasSuffix(s, id) })
			nodetest.Equal(t, "calls", got, want)
		}
		r.idle()
	})
}

// What a DEL comes too late for has succeeded, and is removed by it.
func TestDelAfterTheAddSucceeded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := &fake{add: func(ctx context.Context, _ *skel.CmdArgs) (types.Result, error) {
			<-ctx.Done() // it has done all it had to
			return someResult(), nil
		}}
		r := serve(t, &Server{Commands: f.commands()})
		add := r.begin(request("ADD", "c1"))
		synctest.Wait()
		r.do(request("DEL", "c1")).wantOK(t)
		add().wantOK(t)
		f.want(t, "ADD c1", "end ADD c1", "DEL c1")
	})
}

// A DEL of one more network cancels operations of its interface only.
func TestDetachCancelsOperationsOfItsInterfaceOnly(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := &fake{add: addUntilEnd, check: untilEnd}
		r := serve(t, &Server{Commands: f.commands(), Attach: func(*wire.Attributes) Commands { return f.commands() }, Timeouts: Timeouts{Check: time.Second}})
		more := func(verb, ifname string) func() answer {
			c := make(chan answer, 1)
			go func() {
				c <- r.attach(with(request(verb, "c1"), "CNI_IFNAME", ifname))
			}()
			synctest.Wait()
			return func() answer { return <-c }
		}
		check := r.begin(request("CHECK", "c1")) // runs on, until its time is up
		synctest.Wait()
		one, two := more("ADD", "net1"), more("ADD", "net2")
		detached := more("DEL", "net1")
		one().want(t, 500, 11, "cancelled by DEL")
		check().want(t, 500, 11, "operation timed out")
		synctest.Wait()
		// The DEL of the container takes all.
		del := r.begin(request("DEL", "c1"))
		two().want(t, 500, 11, "cancelled by DEL")
		detached().wantOK(t)
		del().wantOK(t)
		r.idle()
	})
}

// Whatever comes in whatever order, a container has one operation at a
// time, and nothing is left held.
func TestRacingOperationsOfAContainerRunOneAtATime(t *testing.T) {
	t.Parallel()
	const n = 200
	var holders [4]atomic.Int32
	busy := func(ctx context.Context, a *skel.CmdArgs) error {
		h := &holders[a.ContainerID[1]-'0']
		if h.Add(1) != 1 {
			t.Error("two at once in " + a.ContainerID)
		}
		defer h.Add(-1)
		if len(a.Netns)%3 == 0 {
			<-ctx.Done()
			return ctx.Err()
		}
		return nil
	}
	f := &fake{check: busy, del: func(context.Context, *skel.CmdArgs) error { return nil }, add: func(ctx context.Context, a *skel.CmdArgs) (types.Result, error) {
		return someResult(), busy(ctx, a)
	}}
	s := &Server{Commands: f.commands(), MaxInFlight: 3, MaxQueued: n}
	sv := s.service()
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			verb := []string{"ADD", "CHECK", "DEL", "ADD"}[i%4]
			m := with(request(verb, fmt.Sprint("c", i/4%4)), "CNI_NETNS", strings.Repeat("x", 1+i%7))
			m.DeadlineMs = 20
			o, err := decode(wire.PathCNI, &m, nil, nil)
			if err != nil {
				t.Error(err)
				return
			}
			if i%5 == 0 {
				go cancel()
			}
			op := heard(o)
			delivered := 0
			op.deliver = func([]byte) error {
				delivered++
				return nil
			}
			if err := sv.operate(ctx, op); (err == nil) != (delivered == 1) {
				t.Errorf("%s: delivered %d times, %v", verb, delivered, err)
			}
		})
	}
	wg.Wait()
	if st := s.Stats(); st != (Stats{}) || sv.containers.Len() != 0 || len(sv.flight.ops.all()) != 0 {
		t.Errorf("left: %+v", st)
	}
}
