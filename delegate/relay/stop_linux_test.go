package relay_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/metacni/metacni/delegate/delegatetest"
	"github.com/metacni/metacni/delegate/relay"
)

// Stop waits for operations, and no longer than its context lives.
func TestStopWaitsForOperations(t *testing.T) {
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

// connects reports whether the relay listens.
func (n *node) connects() bool {
	c, err := n.Listener.Accept()
	if err == nil {
		_ = c.Close()
	}
	return err == nil
}

// Stop closes external delegates too, and refuses those that come; calls fail
// with code 11 whatever the policy, and go nowhere else.
func TestN14StopEndsEverything(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.Orphan = -1
	n.Builtin = []*relay.Delegate{simple("30", "built")}
	n.start()
	a, b := n.serve(simple("10", "a")), n.serve(simple("20", "b"))
	ok(t, n.Stop(t.Context()))
	for _, r := range []*resident{a, b} {
		if err := come(t, r.err, "the end"); !errors.Is(err, relay.ErrLost) {
			t.Errorf("err = %v", err)
		}
	}
	if d := cmp.Diff([]string{"30-built gone", "20-b gone", "10-a gone"}, n.seen()[3:]); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	below := fakes("a")
	_, err := n.invoker(below).Add(t.Context(), attach(t, "c1", "a"))
	wantCode(t, err, 11)
	for _, s := range n.Plugins() {
		if s.State != relay.Gone || !errors.Is(s.Err, relay.ErrStopped) {
			t.Errorf("%s: %v", text(s), s.Err)
		}
	}
}

// Delegates of the program are like all others.
func TestBuiltin(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	x := fakes("x")
	n.Builtin = []*relay.Delegate{newDelegate("20", "b", x, "x"), with("10", "p", func(context.Context, delegatetest.Call) ([]byte, error) {
		panic("secret")
	})}
	n.start()
	_, err := n.exec(t.Context(), "x", "ADD", "c1")
	ok(t, err)
	_, err = n.exec(t.Context(), "p", "ADD", "c1")
	wantCode(t, err, 999)
	if d := cmp.Diff([]string{"10-p ready", "20-b ready"}, n.states()); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	err = come(t, n.connect(newDelegate("30", "c", fakes("x"), "x")).err, "the refusal")
	if !errors.Is(err, relay.ErrRefused) {
		t.Errorf("err = %v", err)
	}
}

// One that is refused is a mistake in the program: nothing is started.
func TestBuiltinThatIsRefused(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.Builtin = []*relay.Delegate{simple("20", "b"), newDelegate("10", "a", fakes("b"), "b")}
	err := n.Start(t.Context())
	if !errors.Is(err, relay.ErrRefused) || !strings.Contains(err.Error(), `type "b"`) {
		t.Errorf("err = %v", err)
	}
	if err := n.Stop(t.Context()); !errors.Is(err, relay.ErrStopped) {
		t.Errorf("it runs: %v", err)
	}
	if n.connects() {
		t.Error("it listens")
	}
}
