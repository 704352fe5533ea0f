package resident_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/delegatetest"
	"github.com/metacni/metacni/delegate/resident"
	nodetest "github.com/metacni/metacni/internal/test/node"
)

// Calls of a reserved type fail with code 11, execute nothing, and do not reach the Exec
// below, until the resident is there and has been told the attachments.
func TestReservedTypesAreServedByTheirResidentOnly(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		reserve func(t *testing.T) *node // starts a host
		why     string                   // of Plugins
	}{
		"it has gone": {func(t *testing.T) *node {
			t.Helper()
			n := newNode(t)
			n.StateDir = t.TempDir()
			d := simple("10", "a")
			d.DrainTimeout = patience
			n.start().serve(d).stop()
			n.await("10-a gone", 1)
			return n
		}, "it has left"},
		"it was there before a restart": {func(t *testing.T) *node { t.Helper(); return restarted(t, fakes("a"), "a").start() }, "has not connected"},
		"from the start": {func(t *testing.T) *node {
			t.Helper()
			n := newNode(t)
			n.Reserve, n.Orphan = []string{"a"}, -1
			return n.start()
		}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := tt.reserve(t)
			if tt.why != "" {
				nodetest.Says(t, n.Plugins()[0].Err, tt.why)
				nodetest.Equal(t, "types", n.Plugins()[0].Types, []string{"a"})
			}
			below, x := fakes("a"), fakes("a")
			iv, a := n.invoker(below), attach("c1", "a")
			_, err := iv.Add(t.Context(), a)
			nodetest.Code(t, err, 11)
			if errors.Is(err, delegate.ErrNotUndone) || !strings.Contains(err.Error(), "not connected") {
				t.Errorf("what was not run is undone: %v", err)
			}
			if advice := "remove " + filepath.Join(n.StateDir, "a"); tt.why != "" && !strings.Contains(err.Error(), advice) {
				t.Errorf("%v does not say: %s", err, advice)
			}
			over, cancel := context.WithCancel(t.Context())
			cancel()
			for _, err := range []error{iv.Del(over, delegate.Attached{Attachment: a}), iv.GC(over, a.Network, nil)} {
				nodetest.Code(t, err, 11)
			}
			n.serve(newPlugin("20", "another", x, "a"))
			nodetest.OK(t, iv.Del(t.Context(), delegate.Attached{Attachment: a}))
			nodetest.Equal(t, "calls", x.Trace(), []string{"DEL a eth0"})
			nodetest.Equal(t, "the Exec below", below.Trace(), nil)
			nodetest.Equal(t, "plugins", n.states(), []string{"20-another ready"})
		})
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
			_, err := iv.Add(t.Context(), attach("c1", "a"))
			lost := iv.Del(t.Context(), delegate.Attached{Attachment: attach("c1", "b")})
			if tt.kept {
				nodetest.Code(t, err, 11)
				nodetest.Code(t, lost, 11)
				return
			}
			nodetest.OK(t, err)
			nodetest.Code(t, lost, 7)
			if !errors.Is(lost, delegate.ErrPluginNotFound) || len(n.Plugins()) > 0 {
				t.Errorf("err = %v, plugins %q", lost, n.states())
			}
		})
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
	nodetest.OK(t, err)
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

// restarted returns a host with the StateDir of another one, which was stopped
// after a resident had served a type.
func restarted(t *testing.T, x *delegatetest.Exec, typ string) *node {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "resident")
	n := newNode(t)
	n.StateDir = dir
	n.start()
	n.serve(newPlugin("10", typ, x))
	nodetest.OK(t, n.Stop(t.Context()))
	n = newNode(t)
	n.StateDir = dir
	return n
}

// A type is released when its note is removed, also while the host runs, and
// when the host starts while no attachment uses it.
func TestTypesAreReleased(t *testing.T) {
	t.Parallel()
	listing := func(as []delegate.Attached, err error) func(context.Context) ([]delegate.Attached, error) {
		return func(context.Context) ([]delegate.Attached, error) { return as, err }
	}
	needed := []delegate.Attached{{Attachment: attach("c1", "a")}}
	for name, tt := range map[string]struct {
		attachments func(context.Context) ([]delegate.Attached, error)
		early, late func(n *node) error // before the start and after it
		away        bool                // the directory
		kept        bool
	}{
		"not":                         {kept: true},
		"not while one is attached":   {attachments: listing(needed, nil), kept: true},
		"not when that is not known":  {attachments: listing(nil, errors.New("no")), kept: true},
		"not when one is unreadable":  {attachments: listing([]delegate.Attached{{Attachment: delegate.Attachment{ContainerID: "c1", IfName: "eth0"}}}, nil), kept: true},
		"not when all notes are gone": {late: func(n *node) error { return os.Rename(n.StateDir, n.StateDir+".away") }, away: true, kept: true},
		"when nothing is attached":    {attachments: listing(nil, nil)},
		"when its part is gone":       {attachments: listing([]delegate.Attached{{Attachment: attach("c1", "a", "b"), Gone: []int{0}}}, nil)},
		"when its file is removed":    {early: func(n *node) error { return os.Remove(filepath.Join(n.StateDir, "a")) }},
		"when that happens later":     {late: func(n *node) error { return os.Remove(filepath.Join(n.StateDir, "a")) }},
		"when orphans are not wanted": {early: func(n *node) error { n.Orphan = -1; return nil }},
		"when its time is up":         {early: func(n *node) error { n.Orphan = 1; return nil }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := restarted(t, fakes("a"), "a")
			n.Attachments = tt.attachments
			if tt.early != nil {
				nodetest.OK(t, tt.early(n))
			}
			n.start()
			if tt.late != nil {
				nodetest.Code(t, n.invoker(fakes("a")).Del(t.Context(), delegate.Attached{Attachment: attach("c1", "a")}), 11)
				nodetest.OK(t, tt.late(n))
			}
			below := fakes("a")
			err := n.invoker(below).Del(t.Context(), delegate.Attached{Attachment: attach("c1", "a")})
			if noted, _ := os.ReadDir(n.StateDir); len(noted) > 0 != (tt.kept && !tt.away) {
				t.Errorf("noted: %v", noted)
			}
			if tt.kept {
				nodetest.Code(t, err, 11)
			} else if err != nil || len(below.Trace()) != 1 || len(n.Plugins()) > 0 {
				t.Errorf("err = %v, plugins %q", err, n.states())
			}
		})
	}
}

// The other types stay reserved.
func TestAnotherResidentMayTakeOverSomeOfTheTypes(t *testing.T) {
	t.Parallel()
	n := restarted(t, fakes("a"), "a")
	nodetest.OK(t, os.WriteFile(filepath.Join(n.StateDir, "b"), []byte("10-a"), 0o600))
	n.start()
	n.serve(newPlugin("20", "new", fakes("a"), "a"))
	nodetest.Equal(t, "got", n.states(), []string{". gone", "20-new ready"})
	nodetest.Equal(t, "got", n.Plugins()[0].Types, []string{"b"})
}

// A resident that comes back without a type has not given it up: what is attached by it stays its
// own, until somebody removes the note, or another resident serves the type.
func TestTypeStaysReservedWhenItsResidentComesBackWithoutIt(t *testing.T) {
	t.Parallel()
	for _, noted := range []bool{false, true} {
		n := newNode(t)
		if noted {
			n.StateDir = t.TempDir()
		}
		n.start()
		n.serve(newPlugin("10", "d", fakes("a", "b", "c"), "a", "b", "c")).stop()
		n.await("10-d gone", 1)
		n.serve(newPlugin("10", "d", fakes("a"), "a"), 2).stop()
		n.await("10-d gone", 2)
		n.serve(newPlugin("10", "d", fakes("a", "c"), "a", "c"), 3)
		nodetest.Equal(t, "plugins", n.states(), []string{". gone", "10-d ready"})
		nodetest.Equal(t, "types", n.Plugins()[0].Types, []string{"b"})
		below := fakes("a", "b", "c")
		del := func(typ string) error {
			return n.invoker(below).Del(t.Context(), delegate.Attached{Attachment: attach("c1", typ)})
		}
		nodetest.OK(t, del("a"))
		nodetest.OK(t, del("c"))
		nodetest.Code(t, del("b"), 11)
		nodetest.Equal(t, "the Exec below", below.Trace(), nil)
		if noted {
			nodetest.OK(t, os.Remove(filepath.Join(n.StateDir, "b")))
		} else {
			n.serve(newPlugin("20", "e", fakes("b"), "b"))
		}
		nodetest.OK(t, del("b"))
		nodetest.Equal(t, "the Exec below", len(below.Trace()) > 0, noted)
	}
}

// A resident whose types were noted before may come back.
func TestResidentIsRefusedWhenItsTypesCannotBeNoted(t *testing.T) {
	t.Parallel()
	n := restarted(t, fakes("a"), "a")
	nodetest.OK(t, os.Mkdir(filepath.Join(n.StateDir, "b"), 0o700)) // in place of the file
	n.start()
	n.serve(simple("10", "a"))
	n.connect(simple("20", "b"))
	if s := n.await("20-b refused", 1); !strings.Contains(s.Err.Error(), "noting its types") {
		t.Errorf("err = %v", s.Err)
	}
}

// A resident that comes back needs no room on the disk: its note is not written again.
func TestNoteOfAResidentThatComesBackStays(t *testing.T) {
	t.Parallel()
	n := restarted(t, fakes("a"), "a")
	before, err := os.Stat(filepath.Join(n.StateDir, "a"))
	nodetest.OK(t, err)
	n.start()
	n.serve(newPlugin("10", "a", fakes("a")))
	after, err := os.Stat(filepath.Join(n.StateDir, "a"))
	nodetest.OK(t, err)
	if !os.SameFile(before, after) {
		t.Error("the note was written again")
	}
}

func TestStartFailsWithAnUnusableStateDir(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.StateDir = n.socket
	nodetest.Says(t, n.Start(t.Context()), "start "+n.socket)
}

// Afterwards calls of their types fail with code 11, whatever Orphan is.
func TestTypesAreReservedAfterStop(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.Orphan, n.StateDir = -1, t.TempDir()
	n.start()
	a := n.serve(simple("10", "a"))
	nodetest.OK(t, n.Stop(t.Context()))
	nodetest.Is(t, nodetest.Come(t, a.err, "the end"), resident.ErrLost)
	_, err := n.invoker(fakes("a")).Add(t.Context(), attach("c1", "a"))
	nodetest.Code(t, err, 11)
	if s := n.Plugins()[0]; s.State != resident.Gone || s.Err != nil {
		t.Errorf("%s: %v", text(s), s.Err)
	}
}
