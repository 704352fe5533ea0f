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

	"github.com/google/go-cmp/cmp"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/delegatetest"
	"github.com/metacni/metacni/internal/nodetest"
	"github.com/metacni/metacni/status"
)

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
	var undo *delegate.UndoError
	if !errors.As(err, &undo) || len(left) != 1 || left[0].Network.Name() != "blue" {
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
