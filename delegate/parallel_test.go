package delegate_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/delegatetest"
	nodetest "github.com/metacni/metacni/internal/test/node"
	"github.com/metacni/metacni/status"
)

// crew are the plugins of the attachments that these tests make: net0 and on.
var crew = [][]string{{"a0", "a1"}, {"b0", "b1"}, {"c0"}, {"d0", "d1"}}

// crewed returns the attachments, and an Exec with their plugins.
func crewed(tb testing.TB) ([]delegate.Attachment, *delegatetest.Exec) {
	tb.Helper()
	var as []delegate.Attachment
	x := fakes()
	for i, plugins := range crew {
		a := attach(network(tb, "1.1.0", fmt.Sprint("blue", i), plugins...))
		a.IfName = fmt.Sprint("net", i)
		as = append(as, a)
		for _, p := range plugins {
			x.Plugins[p] = delegatetest.Result(result(a.IfName))
		}
	}
	return as, x
}

// A stage makes every call of a fake wait until it is the one to go on. Which
// that is are the choices of explore.
type stage struct {
	deaf bool // plugins do not listen to the end of their context

	mu      sync.Mutex               // protects what follows
	waiting map[string]chan struct{} // by call
	calls   []string                 // that have begun
	most    int                      // that were under way at once
	passed  []string                 // in this order
	begun   []int                    // how many calls when each of passed went on
}

func (s *stage) script(_ int, c delegatetest.Invocation, p delegatetest.Fake) delegatetest.Fake {
	return func(ctx context.Context, _ delegatetest.Invocation) ([]byte, error) {
		on := make(chan struct{})
		s.mu.Lock()
		s.calls = append(s.calls, c.String())
		s.waiting[c.String()] = on
		s.most = max(s.most, len(s.waiting))
		s.mu.Unlock()
		over := ctx.Done()
		if s.deaf {
			over = nil
		}
		select {
		case <-on:
			return p(ctx, c)
		case <-over:
			s.mu.Lock()
			defer s.mu.Unlock()
			delete(s.waiting, c.String())
			return nil, errors.New("signal: killed")
		}
	}
}

// goOn lets the call go on that pick chooses of those that wait, if there are
// any.
func (s *stage) goOn(pick func(calls []string) int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	calls := slices.Sorted(maps.Keys(s.waiting))
	if len(calls) == 0 {
		return false
	}
	c := calls[pick(calls)]
	close(s.waiting[c])
	delete(s.waiting, c)
	s.passed = append(s.passed, c)
	s.begun = append(s.begun, len(s.calls))
	return true
}

// explore does do as often as there are orders in which the calls of a command
// that wait at the same time can go on. do is given a stage of its own, and a
// function that makes calls go on until what it was given returns.
func explore(t *testing.T, command string, deaf bool, do func(s *stage, perform func(func(context.Context)))) (orders int) {
	t.Helper()
	var choices, options []int
	for {
		orders++
		s := &stage{deaf: deaf, waiting: make(map[string]chan struct{})}
		next := 0
		pick := func(calls []string) int {
			if slices.ContainsFunc(calls, func(c string) bool { return !strings.HasPrefix(c, command) }) {
				return orders % len(calls)
			}
			if next == len(choices) {
				choices, options = append(choices, 0), append(options, len(calls))
			}
			next++
			return choices[next-1]
		}
		do(s, func(f func(context.Context)) {
			synctest.Test(t, func(t *testing.T) {
				over := make(chan struct{})
				go func() {
					defer close(over)
					f(t.Context())
				}()
				for {
					synctest.Wait()
					if !s.goOn(pick) {
						<-over
						return
					}
				}
			})
		})
		if t.Failed() {
			t.Fatalf("in this order: %q", s.passed)
		}
		for len(choices) > 0 && choices[len(choices)-1]+1 == options[len(choices)-1] {
			choices, options = choices[:len(choices)-1], options[:len(choices)-1]
		}
		if len(choices) == 0 {
			return orders
		}
		choices[len(choices)-1]++
	}
}

// wantOrder fails unless the calls keep what order there is: of the plugins of
// each attachment, and of the ADDs of the first attachment and all others; all
// DELs come after all ADDs.
func wantOrder(t *testing.T, calls []string) {
	t.Helper()
	at := func(command string, i, j int) int {
		return slices.Index(calls, fmt.Sprintf("%s %s net%d", command, crew[i][j], i))
	}
	before := func(command string, i, j, i2, j2 int) {
		if one, two := at(command, i, j), at(command, i2, j2); two >= 0 && one > two || one < 0 && two >= 0 && command == "ADD" {
			t.Errorf("%s %s is not before %s: %q", command, crew[i][j], crew[i2][j2], calls)
		}
	}
	for i, plugins := range crew {
		for j := range plugins {
			if j > 0 {
				before("ADD", i, j-1, i, j)
				before("DEL", i, j, i, j-1)
			}
			if i > 0 {
				before("ADD", 0, len(crew[0])-1, i, j)
			}
		}
	}
	adds, dels := 0, 0
	for i, c := range calls {
		if strings.HasPrefix(c, "ADD") {
			adds = i
		} else if dels == 0 {
			dels = i
		}
	}
	if dels > 0 && adds > dels {
		t.Errorf("an ADD after a DEL: %q", calls)
	}
}

// wantUndone fails unless each plugin that was run had one DEL, and no other.
func wantUndone(t *testing.T, calls []string) {
	t.Helper()
	of := func(command string) (list []string) {
		for _, c := range calls {
			if name, ok := strings.CutPrefix(c, command); ok {
				list = append(list, name)
			}
		}
		slices.Sort(list)
		return list
	}
	nodetest.Equal(t, "DELs", of("DEL"), of("ADD"))
}

// sequentially is what an AddAll comes to in which these plugins fail, without
// Parallel.
func sequentially(t *testing.T, failing ...string) (trace []string, err error) {
	t.Helper()
	as, x := crewed(t)
	fail(x, failing...)
	_, err = invoker(x).AddAll(t.Context(), as)
	return x.Trace(), err
}

// fail has the ADDs of plugins fail, each with a code of its own.
func fail(x *delegatetest.Exec, plugins ...string) {
	for _, p := range plugins {
		x.Plugins[p] = delegatetest.FailOn("ADD", 100+uint(p[0]-'a'), p+" has no device", x.Plugins[p])
	}
}

// In whatever order plugins come to their ends, and wherever one or two of them
// fail: nothing is left, every plugin that was run is undone and no other, what
// order there is is kept, and the error is that of doing one after another.
func TestParallelAddIsUndone(t *testing.T) {
	t.Parallel()
	all := slices.Concat(crew...)
	var cases [][]string
	for i, p := range all {
		cases = append(cases, []string{p})
		for _, q := range all[i+1:] {
			if p[0] != 'a' && q[0] != p[0] {
				cases = append(cases, []string{p, q})
			}
		}
	}
	for _, failing := range cases {
		for _, parallel := range []int{0, 1, 2, 8} {
			for _, deaf := range []bool{false, true} {
				t.Run(fmt.Sprintf("%s of %d deaf %v", strings.Join(failing, " and "), parallel, deaf), func(t *testing.T) {
					t.Parallel()
					trace, want := sequentially(t, failing...)
					orders := explore(t, "ADD", deaf, func(s *stage, perform func(func(context.Context))) {
						as, x := crewed(t)
						x.Script = s.script
						fail(x, failing...)
						iv := invoker(x)
						iv.Parallel = parallel
						perform(func(ctx context.Context) {
							done, err := iv.AddAll(ctx, as)
							if done != nil || fmt.Sprint(err) != want.Error() || status.Code(err) != status.Code(want) {
								t.Errorf("%v, %v; want %v", done, err, want)
							}
						})
						nodetest.Equal(t, "left behind", x.Live(), nil)
						wantOrder(t, s.calls)
						wantUndone(t, s.calls)
						if s.most > max(1, parallel) {
							t.Errorf("%d at once", s.most)
						}
						if d := cmp.Diff(trace, x.Trace()); d != "" && parallel < 2 {
							t.Errorf("trace (-want +got):\n%s", d)
						}
						wantNoneBegun(t, s, failing)
					})
					nodetest.Equal(t, fmt.Sprintf("%d orders", orders), orders > 1, parallel > 1 && failing[0][0] != 'a')
				})
			}
		}
	}
}

// wantNoneBegun fails if an ADD was begun of an attachment after one of which a
// plugin had failed.
func wantNoneBegun(t *testing.T, s *stage, failing []string) {
	t.Helper()
	for i, c := range s.passed {
		name := strings.Fields(c)[1]
		if !strings.HasPrefix(c, "ADD") || !slices.Contains(failing, name) {
			continue
		}
		for _, later := range s.calls[s.begun[i]:] {
			if strings.HasPrefix(later, "ADD") && strings.Fields(later)[1][0] > name[0] {
				t.Errorf("%s was begun after %s had failed: %q", later, name, s.calls)
			}
		}
	}
}

// Results are in the order of the plan, in whatever order they come.
func TestParallelAddInPlanOrder(t *testing.T) {
	t.Parallel()
	for parallel, want := range map[int]int{0: 1, 1: 1, 2: 12, 8: 30} {
		t.Run(fmt.Sprint(parallel), func(t *testing.T) {
			t.Parallel()
			orders := explore(t, "ADD", false, func(s *stage, perform func(func(context.Context))) {
				as, x := crewed(t)
				x.Script = s.script
				var mu sync.Mutex
				events := 0
				iv := invoker(x)
				iv.Parallel = parallel
				iv.Observer = observe(func(delegate.Error) {
					mu.Lock()
					defer mu.Unlock()
					events++
				})
				perform(func(ctx context.Context) {
					done, err := iv.AddAll(ctx, as)
					if err != nil || len(done) != len(as) {
						t.Errorf("%v, %v", done, err)
						return
					}
					for i, a := range done {
						if a.IfName != as[i].IfName || !strings.Contains(string(a.Result), fmt.Sprintf("%q", a.IfName)) {
							t.Errorf("%d is %s: %s", i, a.IfName, a.Result)
						}
					}
				})
				wantOrder(t, s.calls)
				next := slices.Sorted(slices.Values(s.calls[2 : 2+max(1, min(parallel, 3))]))
				nodetest.Equal(t, "after the first network", next, []string{"ADD b0 net1", "ADD c0 net2", "ADD d0 net3"}[:len(next)])
				if events != len(s.calls) || s.most > max(1, parallel) {
					t.Errorf("%d events of %d calls, %d at once", events, len(s.calls), s.most)
				}
			})
			nodetest.Equal(t, "orders", orders, want)
		})
	}
}

// DEL tries every plugin, and says what failed in the order of the work as it
// is one after another, in whatever order that happens.
func TestParallelDelGoesOnPastFailures(t *testing.T) {
	t.Parallel()
	for parallel, want := range map[int]int{0: 1, 1: 1, 2: 12, 8: 30} {
		t.Run(fmt.Sprint(parallel), func(t *testing.T) {
			t.Parallel()
			orders := explore(t, "DEL", false, func(s *stage, perform func(func(context.Context))) {
				as, x := crewed(t)
				as = as[1:] // with the first it would be twenty times as many orders
				iv := invoker(x)
				iv.Parallel = parallel
				done, err := iv.AddAll(t.Context(), as)
				nodetest.OK(t, err)
				x.Script = s.script
				for _, p := range []string{"b0", "c0", "d0", "d1"} {
					x.Plugins[p] = delegatetest.FailOn("DEL", 100, p+" is stuck", x.Plugins[p])
				}
				perform(func(ctx context.Context) { err = iv.DelAll(ctx, done) })
				var got []string
				for line := range strings.Lines(fmt.Sprint(err)) {
					_, plugin, _ := strings.Cut(line, "plugin \"")
					got = append(got, plugin[:2])
				}
				nodetest.Equal(t, "errors", got, []string{"d1", "d0", "c0", "b0"})
				wantOrder(t, s.calls)
				if len(s.calls) != 5 || s.most > max(1, parallel) {
					t.Errorf("calls %q, %d at once", s.calls, s.most)
				}
			})
			nodetest.Equal(t, "orders", orders, want)
		})
	}
}

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
		iv.Observer = observe(func(e delegate.Error) {
			mu.Lock()
			defer mu.Unlock()
			if e.Plugin == "d0" && e.Command == "ADD" {
				ended = e.Err
			}
		})
		start := time.Now()
		_, err := iv.AddAll(t.Context(), as)
		nodetest.Equal(t, "took", time.Since(start), 5*time.Second)
		if status.Code(err) != 102 || errors.Is(err, context.Canceled) {
			t.Errorf("err = %v", err)
		}
		if !errors.Is(ended, context.Canceled) || !strings.Contains(fmt.Sprint(ended), "an earlier network failed") {
			t.Errorf("d0: %v", ended)
		}
	})
	nodetest.Equal(t, "left behind", x.Live(), nil)
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
			nodetest.Equal(t, "took", time.Since(start), time.Minute)
		})
		nodetest.Equal(t, "left behind", x.Live(), nil)
		wantUndone(t, x.Trace())
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
		x.Plugins["hang"] = func(ctx context.Context, _ delegatetest.Invocation) ([]byte, error) {
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
		nodetest.Equal(t, fmt.Sprintf("seed %d", seed), len(x.Trace()), plugins)
		if least := limit / time.Duration(plugins); shortest < least-time.Microsecond {
			t.Errorf("seed %d: a turn of %v, and one after another it would be %v", seed, shortest, least)
		}
	}
}
