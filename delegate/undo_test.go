package delegate_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"slices"
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

// Undoing has a budget of its own once the caller's context has ended. It is shared: no
// hanging plugin uses up the others' part, and when several are undone at once each has a
// longer turn than it would have one after another. In a bubble: the times are exact and
// nobody waits for them.
func TestUndoBudgetIsShared(t *testing.T) {
	t.Parallel()
	const ms = time.Millisecond
	hang := delegatetest.HangOn("DEL", delegatetest.Result(nil))
	// Each has the same part of 3 s, half of which is for killing, but at most a second.
	for _, tt := range []struct {
		name     string
		parallel int  // networks of one plugin each, or 0: one network of all
		alive    bool // the caller's context, while undoing
		del      []delegatetest.Plugin
		took     time.Duration
		left     []string
	}{
		{"one hangs", 0, false, []delegatetest.Plugin{slow(0), slow(200 * ms), slow(200 * ms), slow(0), slow(0), hang}, 650 * ms, []string{"p5"}},
		{"two hang", 0, false, []delegatetest.Plugin{slow(0), slow(200 * ms), slow(200 * ms), slow(0), hang, hang}, 925 * ms, []string{"p4", "p5"}},
		{"all hang", 0, false, slices.Repeat([]delegatetest.Plugin{hang}, 6), 2323 * ms, []string{"p0", "p1", "p2", "p3", "p4", "p5"}},
		{"slow ones have longer while the caller waits", 0, true, []delegatetest.Plugin{slow(0), slow(0), slow(0), slow(3000 * ms), slow(0), slow(3000 * ms)}, 6000 * ms, nil},
		{"but not forever", 0, true, []delegatetest.Plugin{slow(0), hang, slow(0), slow(0), slow(0), slow(0)}, 14 * time.Second, []string{"p1"}},
		{"slow ones beside each other", 8, false, slices.Repeat([]delegatetest.Plugin{slow(700 * ms)}, 9), 1400 * ms, nil},
		// It has half of the time, less the half for killing, and the first takes longer meanwhile.
		{"one hangs beside others", 8, false, []delegatetest.Plugin{slow(900 * ms), slow(0), slow(0), slow(0), hang, slow(0), slow(0), slow(0), slow(0)}, 900 * ms, []string{"p4"}},
		{"all hang beside each other", 8, false, slices.Repeat([]delegatetest.Plugin{hang}, 9), 2 * time.Second, []string{"p0", "p1", "p2", "p3", "p4", "p5", "p6", "p7", "p8"}},
		// It has a fifth, less the half for killing. In the other place five go by, and in its
		// own the three that are left.
		{"one of two places is blocked", 2, false, append(slices.Repeat([]delegatetest.Plugin{slow(250 * ms)}, 8), hang), 1250 * ms, []string{"p8"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			x := fakes()
			types := make([]string, len(tt.del))
			var as []delegate.Attachment
			for i, p := range tt.del {
				types[i] = fmt.Sprint("p", i)
				x.Plugins[types[i]] = p
				a := attach(network(t, "1.0.0", fmt.Sprint("blue", i), types[i]))
				a.IfName = fmt.Sprint("net", i)
				as = append(as, a)
			}
			if tt.parallel == 0 {
				as = []delegate.Attachment{attach(network(t, "1.0.0", "blue", types...))}
			}
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				iv := invoker(x)
				iv.Parallel, iv.UndoTimeout = tt.parallel, 3*time.Second
				done, err := iv.AddAll(ctx, as)
				nodetest.OK(t, err)
				if !tt.alive {
					cancel()
				}
				start := time.Now()
				err = iv.Undo(ctx, done, coded(105, "no device"))
				nodetest.Equal(t, "took", time.Since(start).Round(ms), tt.took)
				nodetest.Code(t, err, 105)
				for _, want := range []error{delegate.ErrNotUndone, context.DeadlineExceeded} {
					if errors.Is(err, want) != (tt.left != nil) {
						t.Errorf("err = %v", err)
					}
				}
			})
			var left []string
			for _, alive := range x.Live() {
				left = append(left, strings.Fields(alive)[0])
			}
			nodetest.Equal(t, "left behind", left, tt.left)
			wantUndone(t, x.Trace())
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
		nodetest.OK(t, do())
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
