package delegate_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/google/go-cmp/cmp"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/delegatetest"
	"github.com/metacni/metacni/internal/nodetest"
	"github.com/metacni/metacni/status"
)

// Undoing goes on past failures, and says both what failed and what is left.
func TestUndoGoesOnPastFailures(t *testing.T) {
	t.Parallel()
	x := fakes("a", "b", "c")
	x.Plugins["b"] = delegatetest.FailOn("DEL", 11, "b is stuck", x.Plugins["b"])
	x.Plugins["c"] = delegatetest.FailOn("ADD", 105, "no device", delegatetest.FailOn("DEL", 5, "c is stuck", x.Plugins["c"]))
	_, err := invoker(x).Add(t.Context(), attach(network(t, "1.0.0", "blue", "a", "b", "c")))
	if !errors.Is(err, delegate.ErrNotUndone) || status.Code(err) != 105 {
		t.Errorf("err = %v", err)
	}
	text := fmt.Sprint(err)
	if c, b := strings.Index(text, "c is stuck"), strings.Index(text, "b is stuck"); c < 0 || b < c || strings.Index(text, "no device") > c {
		t.Errorf("not in the order of the work: %v", err)
	}
	nodetest.Equal(t, "calls", x.Trace(), []string{"ADD a eth0", "ADD b eth0", "ADD c eth0", "DEL c eth0", "DEL b eth0", "DEL a eth0"})
	nodetest.Equal(t, "calls", x.Live(), []string{"b c1 eth0", "c c1 eth0"})
}

// What went wrong in undoing does not decide the code.
func TestCauseDecidesTheCodeOfAFailedUndo(t *testing.T) {
	t.Parallel()
	stuck := types.NewError(types.ErrTryAgainLater, "stuck", "")
	for _, tt := range []struct {
		name  string
		cause error
		code  uint
	}{
		{"coded", types.NewError(107, "no device", ""), 107},
		{"end of a context", fmt.Errorf("moving a route: %w", context.Canceled), 11},
		{"no code", errors.New("moving a route"), 999},
		{"joined", errors.Join(errors.New("x"), &delegate.Error{Err: types.NewError(109, "y", "")}), 109},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			x := fakes("a")
			x.Plugins["a"] = failing("DEL", stuck)
			err := invoker(x).Undo(t.Context(), []delegate.Attached{added(attach(network(t, "1.0.0", "blue", "a")), "")}, tt.cause)
			if got := status.Code(err); got != tt.code {
				t.Errorf("code %d, want %d: %v", got, tt.code, err)
			}
			if !errors.Is(err, tt.cause) || !errors.Is(err, stuck) {
				t.Errorf("%v has lost an error", err)
			}
		})
	}
}

func TestUndoReturnsTheCause(t *testing.T) {
	t.Parallel()
	cause := errors.New("cannot write")
	as := []delegate.Attached{added(attach(network(t, "1.0.0", "blue", "a")), `{"cniVersion":"1.0.0"}`), added(attach(network(t, "1.0.0", "red", "b")), `{"cniVersion":"1.0.0"}`)}
	x := fakes("a", "b")
	if err := invoker(x).Undo(t.Context(), as, cause); err != cause {
		t.Errorf("err = %v", err)
	}
	nodetest.Equal(t, "calls", x.Trace(), []string{"DEL b eth0", "DEL a eth0"})
	if err := invoker(x).Undo(t.Context(), as, nil); err != nil {
		t.Errorf("undone without a cause: %v", err)
	}
	x.Plugins["a"] = delegatetest.FailOn("DEL", 5, "stuck", x.Plugins["a"])
	if err := invoker(x).Undo(t.Context(), as, nil); status.Code(err) != 5 || !strings.Contains(err.Error(), "stuck") {
		t.Errorf("not undone without a cause: %v", err)
	}
}

// A plugin that was never started has done nothing, so there is nothing to undo.
func TestPluginThatNeverRanIsNotUndone(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	x := fakes("a", "b")
	x.Plugins["a"] = func(ctx context.Context, c delegatetest.Call) ([]byte, error) {
		cancel() // after the work is done: the ADD of a has succeeded
		return delegatetest.Result(nil)(ctx, c)
	}
	_, err := invoker(x).Add(ctx, attach(network(t, "1.0.0", "blue", "a", "b")))
	if !errors.Is(err, context.Canceled) || status.Code(err) != 11 {
		t.Errorf("err = %v", err)
	}
	nodetest.Equal(t, "calls", x.Trace(), []string{"ADD a eth0", "DEL a eth0"})
}

// slow is a DEL that takes d of its turn.
func slow(d time.Duration) delegatetest.Plugin {
	return func(ctx context.Context, c delegatetest.Call) ([]byte, error) {
		if c.Command != "DEL" {
			return delegatetest.Result(nil)(ctx, c)
		}
		select {
		case <-time.After(d):
			return nil, nil
		case <-ctx.Done():
			return nil, errors.New("signal: killed")
		}
	}
}

// Undoing has a budget of its own once the caller's context has ended, and one
// hanging plugin does not use up the others' part of it. In a bubble: the
// times are exact and nobody waits for them.
func TestUndoBudgetIsShared(t *testing.T) {
	t.Parallel()
	hang := delegatetest.HangOn("DEL", delegatetest.Result(nil))
	tests := []struct {
		name   string
		del    [6]delegatetest.Plugin
		ended  bool // the caller's context, before undoing
		within time.Duration
		left   []string
	}{
		{
			"one hangs",
			[6]delegatetest.Plugin{slow(0), slow(300 * time.Millisecond), slow(300 * time.Millisecond), slow(0), slow(0), hang},
			true,
			3 * time.Second,
			[]string{"p5 c1 eth0"},
		},
		{
			"two hang",
			[6]delegatetest.Plugin{slow(0), slow(200 * time.Millisecond), slow(200 * time.Millisecond), slow(0), hang, hang},
			true,
			3 * time.Second,
			[]string{"p4 c1 eth0", "p5 c1 eth0"},
		},
		{
			"all hang",
			[6]delegatetest.Plugin{hang, hang, hang, hang, hang, hang},
			true,
			3 * time.Second,
			[]string{"p0 c1 eth0", "p1 c1 eth0", "p2 c1 eth0", "p3 c1 eth0", "p4 c1 eth0", "p5 c1 eth0"},
		},
		{
			"slow ones have longer while the caller waits",
			[6]delegatetest.Plugin{slow(0), slow(0), slow(0), slow(3 * time.Second), slow(0), slow(3 * time.Second)},
			false,
			6 * time.Second, nil,
		},
		{
			"but not forever",
			[6]delegatetest.Plugin{slow(0), hang, slow(0), slow(0), slow(0), slow(0)},
			false,
			30 * time.Second,
			[]string{"p1 c1 eth0"},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			x := fakes()
			var names []string
			for i, p := range tt.del {
				names = append(names, fmt.Sprint("p", i))
				x.Plugins[names[i]] = p
			}
			x.Plugins["last"] = delegatetest.FailOn("ADD", 105, "no device", delegatetest.Result(nil))
			n := network(t, "1.0.0", "blue", names...)
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				iv := invoker(x)
				iv.UndoTimeout = 3 * time.Second
				done, err := iv.Add(ctx, attach(n))
				nodetest.OK(t, err)
				if tt.ended {
					cancel()
				}
				start := time.Now()
				err = iv.Undo(ctx, []delegate.Attached{done}, types.NewError(105, "no device", ""))
				if took := time.Since(start); took > tt.within {
					t.Errorf("undoing took %v, more than %v", took, tt.within)
				}
				if errors.Is(err, delegate.ErrNotUndone) != (tt.left != nil) || status.Code(err) != 105 {
					t.Errorf("err = %v", err)
				}
				if tt.left != nil && !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("undo: %v", err)
				}
			})
			nodetest.Equal(t, "left behind", x.Live(), tt.left)
			if got := len(x.Calls()); got != 12 {
				t.Errorf("%d calls, want 12: %q", got, x.Trace())
			}
		})
	}
}

// A caller that gives up while undoing goes on shortens what is left of it.
func TestUndoIsShortenedByTheCallersEnd(t *testing.T) {
	t.Parallel()
	x := fakes("a", "b", "c")
	x.Plugins["c"] = delegatetest.HangOn("DEL", delegatetest.Result(nil))
	as := []delegate.Attached{added(attach(network(t, "1.0.0", "blue", "a", "b", "c")), "")}
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 4*time.Second)
		defer cancel()
		start := time.Now()
		err := invoker(x).Undo(ctx, as, errors.New("no"))
		// 4 s until the caller's end, then a third of 10 s but for the last
		// second, which is for killing.
		if took, want := time.Since(start), 4*time.Second+10*time.Second/3-time.Second; took != want {
			t.Errorf("took %v, want %v (%v)", took, want, err)
		}
		if !strings.Contains(fmt.Sprint(err), "its share of the undo timeout has passed") || strings.Contains(fmt.Sprint(err), "\n") {
			t.Errorf("err = %v", err)
		}
	})
	nodetest.Equal(t, "calls", x.Trace(), []string{"DEL c eth0", "DEL b eth0", "DEL a eth0"})
}

// A plugin that an Exec says it has not run is not asked to undo anything, with
// whatever code that comes; those before it are. The Exec's words stay.
func TestNotRunIsNotUndone(t *testing.T) {
	t.Parallel()
	x := fakes("a", "b", "c")
	away := types.NewError(11, "b is away", "")
	x.Plugins["b"] = failing("ADD", fmt.Errorf("%w: %w", delegate.ErrNotRun, away))
	_, err := invoker(x).Add(t.Context(), attach(network(t, "1.1.0", "blue", "a", "b", "c")))
	nodetest.Equal(t, "calls", x.Trace(), []string{"ADD a eth0", "ADD b eth0", "DEL a eth0"})
	if status.Code(err) != 11 || !errors.Is(err, away) || !errors.Is(err, delegate.ErrNotRun) || errors.Is(err, delegate.ErrNotUndone) {
		t.Errorf("err = %v", err)
	}
}

// marked returns a plugin that says in its result that it has run.
func marked(name string) delegatetest.Plugin {
	return func(ctx context.Context, c delegatetest.Call) ([]byte, error) {
		if c.Command == "ADD" {
			return []byte(`{"cniVersion":"1.1.0","last":"` + name + `"}`), nil
		}
		return delegatetest.Result(nil)(ctx, c)
	}
}

func crewOf(names ...string) *delegatetest.Exec {
	x := fakes()
	for _, name := range names {
		x.Plugins[name] = marked(name)
	}
	return x
}

// prevOf returns the "last" in what a plugin was given as prevResult.
func prevOf(t *testing.T, c delegatetest.Call) string {
	t.Helper()
	var prev struct {
		Last string `json:"last"`
	}
	if raw := stdin(t, c)["prevResult"]; raw != nil {
		nodetest.OK(t, json.Unmarshal(raw, &prev))
	}
	return prev.Last
}

// notes collects what a Note is told, a line each.
type noted []string

func (n *noted) note(i int, a delegate.Attached) error {
	var last struct {
		Last string `json:"last"`
	}
	_ = json.Unmarshal(a.Result, &last)
	line := fmt.Sprintf("%d %s %v", i, last.Last, a.Gone)
	if a.Added {
		line += " added"
	}
	*n = append(*n, line)
	return nil
}

// A Note hears of every plugin that has been added, undone and removed, before
// the next one runs, with the last result. An attachment is added once the last
// plugin has succeeded.
func TestNotesTellEveryStep(t *testing.T) {
	t.Parallel()
	as := []delegate.Attachment{attach(network(t, "1.1.0", "blue", "a", "b")), attach(network(t, "1.1.0", "red", "c"))}
	x := crewOf("a", "b", "c")
	iv := invoker(x)
	var got noted
	done, err := iv.AddAll(t.Context(), as, got.note)
	nodetest.OK(t, err)
	nodetest.OK(t, iv.DelAll(t.Context(), done, got.note))
	x.Plugins["c"] = delegatetest.FailOn("ADD", 100, "no device", x.Plugins["c"])
	if left, err := iv.AddAll(t.Context(), as, got.note); left != nil || status.Code(err) != 100 {
		t.Fatalf("%v, %v", left, err)
	}
	want := noted{
		"0 a []", "0 b [] added", "1 c [] added",
		"1 c [0] added", "0 b [1] added", "0 b [0 1] added",
		"0 a []", "0 b [] added",
		"1  [0]", "0 b [1] added", "0 b [0 1] added",
	}
	nodetest.Equal(t, "calls", got, want)
}

// A DEL goes on past a Note that fails, and says so.
func TestFailedNoteOfADelIsSaid(t *testing.T) {
	t.Parallel()
	full := errors.New("disk full")
	x := crewOf("a", "b")
	as := []delegate.Attached{added(attach(network(t, "1.1.0", "blue", "a", "b")), `{"cniVersion":"1.1.0"}`)}
	err := invoker(x).DelAll(t.Context(), as, func(int, delegate.Attached) error { return full })
	if diff := cmp.Diff([]string{"DEL b eth0", "DEL a eth0"}, x.Trace()); diff != "" || !errors.Is(err, full) {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
}

// Notes of attachments that are worked on at once do not overlap.
func TestNotesDoNotOverlap(t *testing.T) {
	t.Parallel()
	iv := invoker(crewOf("a", "b"))
	iv.Parallel = 8
	var as []delegate.Attachment
	for i := range 16 {
		as = append(as, attach(network(t, "1.1.0", fmt.Sprint("net", i), "a", "b")))
	}
	total := 0 // the race detector looks at it as well
	var busy atomic.Bool
	count := func(int, delegate.Attached) error {
		if !busy.CompareAndSwap(false, true) {
			t.Error("two at once")
		}
		total++
		runtime.Gosched()
		busy.Store(false)
		return nil
	}
	done, err := iv.AddAll(t.Context(), as, count)
	if err := errors.Join(err, iv.DelAll(t.Context(), done, count)); err != nil || total != 64 {
		t.Errorf("%d notes, %v", total, err)
	}
}

// What a caller hands in to be removed is not changed: its notes are told what
// is gone.
func TestDelAllLeavesItsArgumentAlone(t *testing.T) {
	t.Parallel()
	iv := invoker(crewOf("a", "b"))
	as := []delegate.Attached{added(attach(network(t, "1.1.0", "blue", "a", "b")), `{"cniVersion":"1.1.0"}`)}
	as[0].Gone = make([]int, 0, 8)
	all := as[0].Gone[:cap(as[0].Gone)]
	for name, do := range map[string]func() error{
		"Del":    func() error { return iv.Del(t.Context(), as[0]) },
		"DelAll": func() error { return iv.DelAll(t.Context(), as) },
		"Undo":   func() error { return iv.Undo(t.Context(), as, nil) },
	} {
		if err := do(); err != nil {
			t.Error(err)
		}
		if len(as[0].Gone) > 0 || all[0] != 0 || all[1] != 0 {
			t.Errorf("%s: gone %v of %v", name, as[0].Gone, all)
		}
	}
}

// What cannot be written down must not be there: a Note that fails, fails the
// ADD, and what ran is undone with the results it had.
func TestFailedNoteIsUndone(t *testing.T) {
	t.Parallel()
	full := errors.New("disk full")
	for at := range 3 {
		x := crewOf("a", "b", "c")
		n := 0
		left, err := invoker(x).AddAll(t.Context(), []delegate.Attachment{attach(network(t, "1.1.0", "blue", "a", "b", "c"))},
			func(int, delegate.Attached) error {
				if n++; n == at+1 {
					return full
				}
				return nil
			})
		if !errors.Is(err, full) || left != nil || len(x.Live()) > 0 {
			t.Errorf("at %d: left %v, alive %q, %v", at, left, x.Live(), err)
		}
	}
}

// When undoing fails, what is left is returned, and DEL of it runs what is left,
// with the last result, and nothing else.
func TestFailedUndoReturnsWhatIsLeft(t *testing.T) {
	t.Parallel()
	x := crewOf("a", "b", "c", "d", "e")
	good := x.Plugins["b"]
	x.Plugins["b"] = delegatetest.FailOn("DEL", 5, "b is stuck", good)
	x.Plugins["d"] = delegatetest.FailOn("ADD", 100, "no device", x.Plugins["d"])
	iv := invoker(x)
	left, err := iv.AddAll(t.Context(), []delegate.Attachment{
		attach(network(t, "1.1.0", "blue", "a", "b", "c")), attach(network(t, "1.1.0", "red", "d", "e")),
	})
	if !errors.Is(err, delegate.ErrNotUndone) || len(left) != 1 || left[0].Network.Name() != "blue" {
		t.Fatalf("left %v, %v", left, err)
	}
	nodetest.Equal(t, "gone", left[0].Gone, []int{0, 2})
	x.Plugins["b"] = good
	before := len(x.Calls())
	if err := iv.DelAll(t.Context(), left); err != nil || len(x.Live()) > 0 {
		t.Errorf("alive %q, %v", x.Live(), err)
	}
	later := x.Calls()[before:]
	if len(later) != 1 || later[0].Plugin != "b" || prevOf(t, later[0]) != "c" {
		t.Errorf("later DEL ran %v", later)
	}
}

// A panic of an Exec, one after another or on a goroutine, is an error like any
// other: the ADD is undone, the DEL goes on.
func TestPanicIsAnError(t *testing.T) {
	t.Parallel()
	for _, parallel := range []int{0, 4} {
		for _, command := range []string{"ADD", "DEL"} {
			x := crewOf("a", "b", "c")
			good := x.Plugins["c"]
			x.Plugins["c"] = func(ctx context.Context, c delegatetest.Call) ([]byte, error) {
				if c.Command == command {
					panic("index out of range")
				}
				return good(ctx, c)
			}
			iv := invoker(x)
			iv.Parallel = parallel
			as := []delegate.Attachment{attach(network(t, "1.1.0", "blue", "a")), attach(network(t, "1.1.0", "green", "b")), attach(network(t, "1.1.0", "red", "c"))}
			done, err := iv.AddAll(t.Context(), as)
			if command == "DEL" {
				err = iv.DelAll(t.Context(), done)
			}
			if err == nil || !strings.Contains(err.Error(), "panic: index out of range") {
				t.Errorf("%s with %d at once: %v", command, parallel, err)
			}
			for _, alive := range x.Live() {
				if !strings.HasPrefix(alive, "c ") {
					t.Errorf("%s with %d at once: left %q", command, parallel, alive)
				}
			}
		}
	}
}
