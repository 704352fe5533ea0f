package resident_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/delegatetest"
	"github.com/metacni/metacni/delegate/resident"
)

// restarted returns a host with the StateDir of another one, which was stopped
// after a resident had served a type.
func restarted(t *testing.T, x *delegatetest.Exec, typ string) *node {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "resident")
	n := newNode(t)
	n.StateDir = dir
	n.start()
	n.serve(newPlugin("10", typ, x))
	ok(t, n.Stop(t.Context()))
	n = newNode(t)
	n.StateDir = dir
	return n
}

// Nothing runs in place of the resident, and a DEL waits for it.
func TestTypesAreReservedAfterARestart(t *testing.T) {
	t.Parallel()
	x, below := fakes("a"), fakes("a")
	n := restarted(t, x, "a")
	n.ReturnTimeout = patience
	n.start()
	if d := cmp.Diff([]string{"10-a gone"}, n.states()); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	if s := n.Plugins()[0]; s.Source != resident.External || !strings.Contains(s.Err.Error(), "has not connected") {
		t.Errorf("%+v", s)
	}
	iv, a := n.invoker(below), attach(t, "c1", "a")
	_, err := iv.Add(t.Context(), a)
	wantCode(t, err, 11)
	if want := "remove " + filepath.Join(n.StateDir, "a"); !strings.Contains(err.Error(), want) {
		t.Errorf("%v does not say: %s", err, want)
	}
	over, cancel := context.WithCancel(t.Context())
	cancel()
	for _, err := range []error{iv.Del(over, delegate.Attached{Attachment: a}), iv.GC(over, a.Network, nil)} {
		wantCode(t, err, 11)
		if !errors.Is(err, context.Canceled) {
			t.Errorf("err = %v", err)
		}
	}
	waiting := make(chan error)
	go func() { waiting <- iv.Del(t.Context(), delegate.Attached{Attachment: a}) }()
	n.serve(newPlugin("10", "a", x))
	ok(t, come(t, waiting, "the DEL"))
	if d := cmp.Diff([]string{"DEL a eth0"}, x.Trace()); d != "" || len(below.Trace()) > 0 {
		t.Errorf("the Exec below: %q (-want +got):\n%s", below.Trace(), d)
	}
}

// A type is released when its note is removed, also while the host runs, and
// when the host starts while no attachment uses it.
func TestTypesAreReleased(t *testing.T) {
	t.Parallel()
	listing := func(as []delegate.Attached, err error) func(context.Context) ([]delegate.Attached, error) {
		return func(context.Context) ([]delegate.Attached, error) { return as, err }
	}
	needed := []delegate.Attached{{Attachment: attach(t, "c1", "a")}}
	for name, tt := range map[string]struct {
		attachments func(context.Context) ([]delegate.Attached, error)
		early, late func(n *node) error // before the start and after it
		kept        bool
	}{
		"not":                         {kept: true},
		"not while one is attached":   {attachments: listing(needed, nil), kept: true},
		"not when that is not known":  {attachments: listing(nil, errors.New("no")), kept: true},
		"not when its file is foul":   {attachments: listing(nil, nil), early: func(n *node) error { return os.WriteFile(filepath.Join(n.StateDir, "a"), []byte("{"), 0o600) }, kept: true},
		"when nothing is attached":    {attachments: listing(nil, nil)},
		"when its part is gone":       {attachments: listing([]delegate.Attached{{Attachment: attach(t, "c1", "a", "b"), Gone: []int{0}}}, nil)},
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
				ok(t, tt.early(n))
			}
			n.start()
			if tt.late != nil {
				wantCode(t, n.invoker(fakes("a")).Del(t.Context(), delegate.Attached{Attachment: attach(t, "c1", "a")}), 11)
				ok(t, tt.late(n))
			}
			below := fakes("a")
			err := n.invoker(below).Del(t.Context(), delegate.Attached{Attachment: attach(t, "c1", "a")})
			if noted, _ := os.ReadDir(n.StateDir); len(noted) > 0 != tt.kept {
				t.Errorf("noted: %v", noted)
			}
			if tt.kept {
				wantCode(t, err, 11)
			} else if err != nil || len(below.Trace()) != 1 || len(n.Plugins()) > 0 {
				t.Errorf("err = %v, plugins %q", err, n.states())
			}
		})
	}
}

// It may take over some of the types; the others stay reserved.
func TestAnotherResidentMayTakeOverTypesAfterARestart(t *testing.T) {
	t.Parallel()
	n := restarted(t, fakes("a"), "a")
	ok(t, os.WriteFile(filepath.Join(n.StateDir, "b"), []byte(`{"index":"10","name":"a"}`), 0o600))
	n.start()
	n.serve(newPlugin("20", "new", fakes("a"), "a"))
	if d := cmp.Diff([]string{"10-a gone", "20-new ready"}, n.states()); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	if d := cmp.Diff([]string{"b"}, n.Plugins()[0].Types); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	text, err := os.ReadFile(filepath.Join(n.StateDir, "a"))
	if want := `{"index":"20","name":"new","source":"external"}`; err != nil || string(text) != want {
		t.Errorf("noted %s, %v", text, err)
	}
}

// A resident whose types were noted before may come back.
func TestResidentIsRefusedWhenItsTypesCannotBeNoted(t *testing.T) {
	t.Parallel()
	n := restarted(t, fakes("a"), "a")
	ok(t, os.Mkdir(filepath.Join(n.StateDir, "b"), 0o700)) // in place of the file
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
	ok(t, err)
	n.start()
	n.serve(newPlugin("10", "a", fakes("a")))
	after, err := os.Stat(filepath.Join(n.StateDir, "a"))
	ok(t, err)
	if !os.SameFile(before, after) {
		t.Error("the note was written again")
	}
}

func TestStartFailsWithAnUnusableStateDir(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.StateDir = n.socket
	var failed *resident.Error
	if err := n.Start(t.Context()); !errors.As(err, &failed) || failed.Which != n.socket {
		t.Errorf("err = %v", err)
	}
}
