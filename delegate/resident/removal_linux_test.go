package resident_test

import (
	"context"
	"encoding/json"
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/resident"
)

// Calls fail with code 11, execute nothing, and do not reach the Exec below,
// until the resident is back and has been told the attachments.
func TestTypesAreReservedForAResidentThatHasGone(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.Attachments = func(context.Context) ([]delegate.Attached, error) {
		return []delegate.Attached{{Attachment: attach(t, "c1", "a"), Result: json.RawMessage(`{"cniVersion":"1.1.0"}`)}}, nil
	}
	n.start()
	below := fakes("a")
	d := simple("10", "a")
	d.DrainTimeout = patience
	known := told(d)
	r := n.serve(d)
	<-known
	r.stop()
	s := n.await("10-a gone", 1)
	if s.Err == nil || s.Err.Error() != "it has left" {
		t.Errorf("gone for %v", s.Err)
	}
	if d := cmp.Diff([]string{"10-a gone"}, n.states()); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	iv := n.invoker(below)
	a := attach(t, "c1", "a")
	_, err := iv.Add(t.Context(), a)
	wantCode(t, err, 11)
	var left *delegate.UndoError
	if errors.As(err, &left) || !errors.Is(err, resident.ErrGone) {
		t.Errorf("what was not run is undone: %v", err)
	}
	err = iv.Del(t.Context(), delegate.Attached{Attachment: a})
	wantCode(t, err, 11)
	if calls := below.Trace(); len(calls) > 0 {
		t.Errorf("the Exec below: %q", calls)
	}
	n.serve(d, 2)
	if got := come(t, known, "what is attached"); len(got) != 1 {
		t.Errorf("%+v", got)
	}
	ok(t, iv.Del(t.Context(), delegate.Attached{Attachment: a}))
}

func TestAnotherResidentMayTakeOverReservedTypes(t *testing.T) {
	t.Parallel()
	n := newNode(t).start()
	r := n.serve(newPlugin("10", "old", fakes("x", "y"), "x", "y"))
	r.stop()
	n.await("10-old gone", 1)
	n.serve(newPlugin("20", "new", fakes("x"), "x"))
	_, err := n.exec(t.Context(), "x", "DEL", "c1")
	ok(t, err)
	_, err = n.exec(t.Context(), "y", "DEL", "c1")
	wantCode(t, err, 11)
	n.serve(newPlugin("20", "new2", fakes("y"), "y"))
	if d := cmp.Diff([]string{"20-new ready", "20-new2 ready"}, n.states()); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

// After Orphan the Exec below is called. A plugin that it does not find is an
// ordinary error.
func TestOrphanReleasesTypes(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		orphan time.Duration
		kept   bool
	}{
		"for ever": {0, true}, "an hour": {time.Hour, true}, "at once": {-1, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t)
			n.Orphan = tt.orphan
			n.start()
			n.serve(newPlugin("10", "d", fakes("a", "b"), "a", "b")).stop()
			n.await("10-d gone", 1)
			below := fakes("a")
			iv := n.invoker(below)
			_, err := iv.Add(t.Context(), attach(t, "c1", "a"))
			lost := iv.Del(t.Context(), delegate.Attached{Attachment: attach(t, "c1", "b")})
			if tt.kept {
				wantCode(t, err, 11)
				wantCode(t, lost, 11)
				return
			}
			ok(t, err)
			wantCode(t, lost, 7)
			if !errors.Is(lost, delegate.ErrPluginNotFound) || len(n.Plugins()) > 0 {
				t.Errorf("err = %v, plugins %q", lost, n.states())
			}
		})
	}
}

func TestReserveAppliesFromTheStart(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.Reserve, n.Orphan = []string{"a"}, -1
	n.start()
	below := fakes("a")
	iv := n.invoker(below)
	_, err := iv.Add(t.Context(), attach(t, "c1", "a"))
	wantCode(t, err, 11)
	r := n.serve(simple("10", "a"))
	done, err := iv.Add(t.Context(), attach(t, "c1", "a"))
	ok(t, err)
	r.stop()
	n.await("10-a gone", 1)
	wantCode(t, iv.Del(t.Context(), done), 11)
	if calls := below.Trace(); len(calls) > 0 {
		t.Errorf("the Exec below: %q", calls)
	}
}

// While a resident leaves and comes back, its type is reserved at every moment.
func TestTypesAreReservedWithoutAGap(t *testing.T) {
	t.Parallel()
	n := newNode(t).start()
	d := simple("10", "a")
	r := n.serve(d)
	x := n.Exec(fakes("a"))
	own, err := x.FindInPath("a", nil)
	ok(t, err)
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			default:
			}
			if path, err := x.FindInPath("a", nil); path != own || err != nil {
				t.Errorf("path %q, %v", path, err)
				return
			}
			if len(n.Plugins()) != 1 {
				t.Errorf("plugins %q", n.states())
				return
			}
		}
	}()
	for i := range 20 {
		r.stop()
		n.await("10-a gone", i+1)
		r = n.serve(d, i+2)
	}
	close(stop)
	<-stopped
}
