package delegate_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/delegatetest"
	"github.com/metacni/metacni/internal/nodetest"
	"github.com/metacni/metacni/status"
)

// An ADD that fails ends those after it, which say why to the Observer alone,
// and waits for those before it, as it would have done for them one by one.
func TestParallelFailureWaitsForThoseBefore(t *testing.T) {
	t.Parallel()
	as, x := crewed(t)
	x.Plugins["b0"] = delegatetest.SlowOn("ADD", 5*time.Second, x.Plugins["b0"])
	x.Plugins["d0"] = delegatetest.HangOn("ADD", x.Plugins["d0"])
	fail(x, "c0")
	x.Plugins["c0"] = delegatetest.SlowOn("ADD", time.Second, x.Plugins["c0"])
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var ended error
		iv := invoker(x)
		iv.Parallel = 8
		iv.Observer = observe(func(e invocation) {
			mu.Lock()
			defer mu.Unlock()
			if e.Plugin == "d0" && e.Command == "ADD" {
				ended = e.err
			}
		})
		start := time.Now()
		_, err := iv.AddAll(t.Context(), as)
		if took := time.Since(start); took != 5*time.Second {
			t.Errorf("took %v", took)
		}
		if status.Code(err) != 102 || errors.Is(err, context.Canceled) {
			t.Errorf("err = %v", err)
		}
		if !errors.Is(ended, context.Canceled) || !strings.Contains(fmt.Sprint(ended), "an earlier network failed") {
			t.Errorf("d0: %v", ended)
		}
	})
	if left := x.Live(); len(left) > 0 {
		t.Errorf("left behind: %q", left)
	}
	wantUndone(t, x.Trace())
}

// One that hangs until the end of the context is the one that is named, with
// code 11, though others that come after it in the plan fail earlier.
func TestParallelAddThatHangsEndsInTime(t *testing.T) {
	t.Parallel()
	for _, failing := range [][]string{nil, {"c0"}, {"c0", "d1"}} {
		as, x := crewed(t)
		x.Plugins["b1"] = delegatetest.HangOn("ADD", x.Plugins["b1"])
		fail(x, failing...)
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			iv := invoker(x)
			iv.Parallel = 8
			start := time.Now()
			_, err := iv.AddAll(ctx, as)
			var e *delegate.Error
			if !errors.As(err, &e) || e.Plugin != "b1" || !errors.Is(err, context.DeadlineExceeded) || status.Code(err) != 11 {
				t.Errorf("err = %v", err)
			}
			if took := time.Since(start); took != time.Minute {
				t.Errorf("took %v", took)
			}
		})
		if left := x.Live(); len(left) > 0 {
			t.Errorf("left behind: %q", left)
		}
		wantUndone(t, x.Trace())
	}
}

// A DEL that hangs keeps no other waiting.
func TestParallelDelThatHangsEndsInTime(t *testing.T) {
	t.Parallel()
	as, x := crewed(t)
	x.Plugins["c0"] = delegatetest.HangOn("DEL", x.Plugins["c0"])
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		iv := invoker(x)
		iv.Parallel = 2
		done, err := iv.AddAll(ctx, as)
		nodetest.OK(t, err)
		if err := iv.DelAll(ctx, done); !errors.Is(err, context.DeadlineExceeded) || status.Code(err) != 11 {
			t.Errorf("err = %v", err)
		}
	})
	nodetest.Equal(t, "alive", x.Live(), []string{"c0 c1 net2"})
}

// The time for undoing is shared among as many as are undone at once: a plugin
// has a longer turn than it would have one after another, and nobody's is taken
// by those that hang.
func TestParallelUndoBudgetIsShared(t *testing.T) {
	t.Parallel()
	hang := delegatetest.HangOn("DEL", delegatetest.Result(nil))
	const ms = time.Millisecond
	for _, tt := range []struct {
		name     string
		parallel int
		del      [9]delegatetest.Plugin // of one network each
		took     time.Duration
		left     []string
	}{
		{
			"slow ones beside each other", 8,
			[9]delegatetest.Plugin{slow(700 * ms), slow(700 * ms), slow(700 * ms), slow(700 * ms), slow(700 * ms), slow(700 * ms), slow(700 * ms), slow(700 * ms), slow(700 * ms)},
			1400 * ms, nil,
		},
		{
			"one hangs", 8,
			[9]delegatetest.Plugin{slow(900 * ms), slow(0), slow(0), slow(0), hang, slow(0), slow(0), slow(0), slow(0)},
			// It has half of the time, of which half is for killing: less than the
			// first network takes meanwhile.
			900 * ms,
			[]string{"p4 c1 net4"},
		},
		{
			"all hang", 8,
			[9]delegatetest.Plugin{hang, hang, hang, hang, hang, hang, hang, hang, hang},
			2000 * ms,
			[]string{"p0", "p1", "p2", "p3", "p4", "p5", "p6", "p7", "p8"},
		},
		{
			"one of two places is blocked", 2,
			[9]delegatetest.Plugin{slow(250 * ms), slow(250 * ms), slow(250 * ms), slow(250 * ms), slow(250 * ms), slow(250 * ms), slow(250 * ms), slow(250 * ms), hang},
			// It has a fifth, less the half for killing. In the other place five go
			// by, and in its own the three that are left.
			1250 * ms,
			[]string{"p8 c1 net8"},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			x := fakes()
			var as []delegate.Attachment
			for i, p := range tt.del {
				typ := fmt.Sprint("p", i)
				x.Plugins[typ] = p
				a := attach(network(t, "1.0.0", fmt.Sprint("blue", i), typ))
				a.IfName = fmt.Sprint("net", i)
				as = append(as, a)
			}
			for i, p := range tt.left {
				if len(p) == 2 {
					tt.left[i] = fmt.Sprintf("%s c1 net%s", p, p[1:])
				}
			}
			synctest.Test(t, func(t *testing.T) {
				iv := invoker(x)
				iv.Parallel, iv.UndoTimeout = tt.parallel, 3*time.Second
				ctx, cancel := context.WithCancel(t.Context())
				done, err := iv.AddAll(ctx, as)
				nodetest.OK(t, err)
				cancel()
				start := time.Now()
				err = iv.Undo(ctx, done, types.NewError(105, "no device", ""))
				if took := time.Since(start); took != tt.took {
					t.Errorf("took %v, want %v", took, tt.took)
				}
				var undo *delegate.UndoError
				if status.Code(err) != 105 || errors.As(err, &undo) != (tt.left != nil) {
					t.Errorf("err = %v", err)
				}
			})
			nodetest.Equal(t, "left behind", x.Live(), tt.left)
			wantUndone(t, x.Trace())
		})
	}
}

// Whatever is to be undone, however many at once and whichever plugins hang, each
// has its turn, which is no shorter than one after another, and the limit holds.
func TestParallelUndoEndsInTime(t *testing.T) {
	t.Parallel()
	const limit = 3 * time.Second
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 0))
		x := fakes()
		x.Plugins["quick"] = delegatetest.Result(nil)
		x.Plugins["slow"] = slow(time.Duration(r.IntN(300)) * time.Millisecond)
		var mu sync.Mutex
		shortest := limit
		// It has to be killed, when the grace period is over: as in a turn of up
		// to two seconds, the second half.
		x.Plugins["hang"] = func(ctx context.Context, _ delegatetest.Call) ([]byte, error) {
			start := time.Now()
			<-ctx.Done()
			half := time.Since(start)
			<-time.After(min(time.Second, half))
			mu.Lock()
			defer mu.Unlock()
			shortest = min(shortest, 2*half)
			return nil, errors.New("signal: killed")
		}
		var done []delegate.Attached
		plugins := 0
		for i := range 1 + r.IntN(9) {
			var types []string
			for range 1 + r.IntN(3) {
				types = append(types, []string{"quick", "slow", "hang", "hang"}[r.IntN(4)])
			}
			plugins += len(types)
			a := attach(network(t, "1.0.0", fmt.Sprint("blue", i), types...))
			a.IfName = fmt.Sprint("net", i)
			done = append(done, added(a, ""))
		}
		synctest.Test(t, func(t *testing.T) {
			iv := invoker(x)
			iv.Parallel, iv.UndoTimeout = r.IntN(10), limit
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			start := time.Now()
			err := iv.Undo(ctx, done, nil)
			if took := time.Since(start); took > limit+time.Microsecond { // shares are rounded
				t.Errorf("seed %d: took %v, %d at once: %v", seed, took, iv.Parallel, x.Trace())
			}
			if err != nil && !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("seed %d: %v", seed, err)
			}
		})
		if calls := x.Trace(); len(calls) != plugins {
			t.Errorf("seed %d: %d of %d plugins had their turn: %q", seed, len(calls), plugins, calls)
		}
		if least := limit / time.Duration(plugins); shortest < least-time.Microsecond {
			t.Errorf("seed %d: a turn of %v, and one after another it would be %v", seed, shortest, least)
		}
	}
}
