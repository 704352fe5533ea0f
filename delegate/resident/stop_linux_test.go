package resident_test

import (
	"context"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/metacni/metacni/delegate/resident"
)

func TestStopWaitsForOperationsUntilItsContextEnds(t *testing.T) {
	t.Parallel()
	n := newNode(t).start()
	n.serve(simple("10", "a"))
	ctx, end := n.Begin(t.Context())
	stopped := make(chan error, 1)
	go func() { stopped <- n.Stop(t.Context()) }()
	for n.connects() { // until it stops
	}
	_, err := n.exec(ctx, "a", "ADD", "c1")
	ok(t, err)
	end()
	ok(t, come(t, stopped, "the stop"))

	n = newNode(t).start()
	n.serve(simple("10", "a"))
	_, end = n.Begin(t.Context())
	defer end()
	over, cancel := context.WithCancel(t.Context())
	cancel()
	ok(t, n.Stop(over))
}

// connects reports whether the host still listens.
func (n *node) connects() bool {
	c, err := n.Listener.Accept()
	if err == nil {
		_ = c.Close()
	}
	return err == nil
}

// Afterwards calls of their types fail with code 11, whatever Orphan is.
func TestStopDisconnectsAllResidents(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.Orphan, n.StateDir = -1, t.TempDir()
	n.start()
	a, b := n.serve(simple("10", "a")), n.serve(simple("20", "b"))
	ok(t, n.Stop(t.Context()))
	for _, r := range []*served{a, b} {
		if err := come(t, r.err, "the end"); !errors.Is(err, resident.ErrLost) {
			t.Errorf("err = %v", err)
		}
	}
	if d := cmp.Diff([]string{"20-b gone", "10-a gone"}, n.seen()[2:]); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	below := fakes("a")
	_, err := n.invoker(below).Add(t.Context(), attach(t, "c1", "a"))
	wantCode(t, err, 11)
	for _, s := range n.Plugins() {
		if s.State != resident.Gone || !errors.Is(s.Err, resident.ErrStopped) {
			t.Errorf("%s: %v", text(s), s.Err)
		}
	}
}
