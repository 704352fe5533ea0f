package resident_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
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
	for why, reserve := range map[string]func(n *node) *node{
		"it has left": func(n *node) *node { // it has gone
			n.StateDir = n.t.TempDir()
			d := simple("10", "a")
			d.DrainTimeout = patience
			n.start().serve(d).stop()
			n.await("10-a gone", 1)
			return n
		},
		"has not connected": func(n *node) *node { return restarted(n.t, "a").start() }, // it was there before a restart
		"": func(n *node) *node { // from the start
			n.Reserve, n.Orphan = []string{"a"}, -1
			return n.start()
		},
	} {
		t.Run(why, func(t *testing.T) {
			t.Parallel()
			n := reserve(newNode(t))
			below, x := fakes("a"), fakes("a")
			iv, a := n.invoker(below), attach("c1", "a")
			_, err := iv.Add(t.Context(), a)
			nodetest.Fails(t, err, 11, "not connected")
			nodetest.Equal(t, "undone", errors.Is(err, delegate.ErrNotUndone), false) // what was not run
			if why != "" {
				nodetest.Says(t, n.Plugins()[0].Err, why)
				nodetest.Equal(t, "types", n.Plugins()[0].Types, []string{"a"})
				nodetest.Says(t, err, "remove "+filepath.Join(n.StateDir, "a"))
			}
			over, cancel := context.WithCancel(t.Context())
			cancel()
			for _, err := range []error{iv.Del(over, delegate.Attached{Attachment: a}), iv.GC(over, a.Network, nil)} {
				nodetest.Code(t, err, 11)
			}
			n.serve(newPlugin("20", "another", x, "a"))
			nodetest.OK(t, n.del("a", below))
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
	for _, orphan := range []time.Duration{0, time.Hour, -1} {
		n := newNode(t)
		n.Orphan = orphan
		n.start()
		n.serve(newPlugin("10", "d", fakes("a", "b"), "a", "b")).stop()
		n.await("10-d gone", 1)
		kept, lost := n.del("a", fakes("a")), n.del("b", fakes("a"))
		if orphan >= 0 {
			nodetest.Code(t, kept, 11)
			nodetest.Code(t, lost, 11)
			continue
		}
		nodetest.OK(t, kept)
		nodetest.Code(t, lost, 7)
		nodetest.Is(t, lost, delegate.ErrPluginNotFound)
		nodetest.Equal(t, "plugins", n.states(), nil)
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
	ctx, stop := context.WithCancel(t.Context())
	watched := later(func() error {
		for ctx.Err() == nil {
			if path, err := x.FindInPath("a", nil); path != own || err != nil || len(n.Plugins()) != 1 {
				return fmt.Errorf("path %q, %w, plugins %q", path, err, n.states())
			}
		}
		return nil
	})
	for i := range 20 {
		r.stop()
		n.await("10-a gone", i+1)
		r = n.serve(d, i+2)
	}
	stop()
	nodetest.OK(t, <-watched)
}

// restarted returns a host with the StateDir of another one, which was stopped
// after a resident had served a type.
func restarted(t testing.TB, typ string) *node {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "resident")
	n := newNode(t)
	n.StateDir = dir
	n.start()
	n.serve(simple("10", typ))
	nodetest.OK(t, n.Stop(t.Context()))
	n = newNode(t)
	n.StateDir = dir
	return n
}

// del removes an attachment by a type, as an Invoker does.
func (n *node) del(typ string, below *delegatetest.Exec) error {
	return n.invoker(below).Del(n.t.Context(), delegate.Attached{Attachment: attach("c1", typ)})
}

// A type is released when its note is removed, also while the host runs, and
// when the host starts while no attachment uses it.
func TestTypesAreReleased(t *testing.T) {
	t.Parallel()
	type list = []delegate.Attached
	listing := func(as list, err error) func(n *node) error {
		return func(n *node) error {
			n.Attachments = func(context.Context) (list, error) { return as, err }
			return nil
		}
	}
	remove := func(n *node) error { return os.Remove(filepath.Join(n.StateDir, "a")) }
	for name, tt := range map[string]struct {
		early, late func(n *node) error // before the start and after it
		kept        bool
		noted       int
	}{
		"not":                         {kept: true, noted: 1},
		"not while one is attached":   {early: listing(list{{Attachment: attach("c1", "a")}}, nil), kept: true, noted: 1},
		"not when that is not known":  {early: listing(nil, errors.New("no")), kept: true, noted: 1},
		"not when one is unreadable":  {early: listing(list{{Attachment: delegate.Attachment{ContainerID: "c1", IfName: "eth0"}}}, nil), kept: true, noted: 1},
		"not when all notes are gone": {late: func(n *node) error { return os.Rename(n.StateDir, n.StateDir+".away") }, kept: true},
		"when nothing is attached":    {early: listing(nil, nil)},
		"when its part is gone":       {early: listing(list{{Attachment: attach("c1", "a", "b"), Gone: []int{0}}}, nil)},
		"when its file is removed":    {early: remove},
		"when that happens later":     {late: remove},
		"when orphans are not wanted": {early: func(n *node) error { n.Orphan = -1; return nil }},
		"when its time is up":         {early: func(n *node) error { n.Orphan = 1; return nil }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n, below := restarted(t, "a"), fakes("a")
			if tt.early != nil {
				nodetest.OK(t, tt.early(n))
			}
			n.start()
			if tt.late != nil {
				nodetest.Code(t, n.del("a", below), 11)
				nodetest.OK(t, tt.late(n))
			}
			err := n.del("a", below)
			noted, _ := os.ReadDir(n.StateDir)
			nodetest.Equal(t, "notes", len(noted), tt.noted)
			if tt.kept {
				nodetest.Code(t, err, 11)
				return
			}
			nodetest.OK(t, err)
			nodetest.Equal(t, "the Exec below", below.Trace(), []string{"DEL a eth0"})
			nodetest.Equal(t, "plugins", n.states(), nil)
		})
	}
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
		nodetest.OK(t, n.del("a", below))
		nodetest.OK(t, n.del("c", below))
		nodetest.Code(t, n.del("b", below), 11)
		nodetest.Equal(t, "the Exec below", below.Trace(), nil)
		if noted {
			nodetest.OK(t, os.Remove(filepath.Join(n.StateDir, "b")))
		} else {
			n.serve(simple("20", "b"))
		}
		nodetest.OK(t, n.del("b", below))
		nodetest.Equal(t, "the Exec below", len(below.Trace()) > 0, noted)
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
	nodetest.Code(t, n.del("a", fakes("a")), 11)
	s := n.Plugins()[0]
	nodetest.Equal(t, "state", s.State, resident.Gone)
	nodetest.OK(t, s.Err)
}

// A resident that comes back needs no room on the disk: its note is not written again. One whose types
// cannot be noted is refused. Another may take over some of the types, and the others stay reserved.
func TestNotes(t *testing.T) {
	t.Parallel()
	n := restarted(t, "a")
	before, err := os.Stat(filepath.Join(n.StateDir, "a"))
	nodetest.OK(t, err)
	nodetest.OK(t, os.WriteFile(filepath.Join(n.StateDir, "c"), nil, 0o600))
	nodetest.OK(t, os.Mkdir(filepath.Join(n.StateDir, "b"), 0o700)) // in place of the file
	n.start()
	n.serve(newPlugin("20", "new", fakes("a"), "a"))
	after, err := os.Stat(filepath.Join(n.StateDir, "a"))
	nodetest.OK(t, err)
	nodetest.Equal(t, "the note stays", os.SameFile(before, after), true)
	nodetest.Equal(t, "got", n.states(), []string{". gone", "20-new ready"})
	nodetest.Equal(t, "got", n.Plugins()[0].Types, []string{"b", "c"})
	n.connect(simple("30", "b"))
	nodetest.Says(t, n.await("30-b refused", 1).Err, "noting its types")
}
