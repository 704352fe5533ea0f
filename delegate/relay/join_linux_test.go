package relay_test

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/google/go-cmp/cmp"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/delegatetest"
	"github.com/metacni/metacni/delegate/relay"
)

// told makes d send what it is told is attached.
func told(d *relay.Delegate) chan []relay.Known {
	c := make(chan []relay.Known, 10)
	d.Synchronize = func(_ context.Context, known []relay.Known) error {
		c <- known
		return nil
	}
	return c
}

// A delegate is told of what is its own: as its plugin was given it in ADD, with
// the result.
func TestN10WhatADelegateIsTold(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	one, two := attach(t, "c1", "a", "b", "a"), attach(t, "c2", "b")
	one.Args = "K8S_POD_NAME=x"
	three := attach(t, "c3", "a")
	n.Attachments = func(context.Context) ([]delegate.Attached, error) {
		return []delegate.Attached{
			{Attachment: one, Result: json.RawMessage(`{"cniVersion":"1.1.0"}`)},
			{Attachment: two, Result: json.RawMessage(`{"cniVersion":"1.1.0"}`)},
			{Attachment: three},
		}, nil
	}
	n.start()
	d := simple("10", "a")
	known := told(d)
	n.serve(d)
	with := json.RawMessage(`{"cniVersion":"1.1.0","name":"blue","prevResult":{"cniVersion":"1.1.0"},"type":"a"}`)
	without := json.RawMessage(`{"cniVersion":"1.1.0","name":"blue","type":"a"}`)
	want := []relay.Known{
		{Type: "a", ContainerID: "c1", NetNS: "/run/netns/c1", IfName: "eth0", Args: "K8S_POD_NAME=x", Config: with, Added: true},
		{Type: "a", ContainerID: "c1", NetNS: "/run/netns/c1", IfName: "eth0", Args: "K8S_POD_NAME=x", Config: with, Added: true},
		{Type: "a", ContainerID: "c3", NetNS: "/run/netns/c3", IfName: "eth0", Config: without},
	}
	if d := cmp.Diff(want, come(t, known, "what is attached")); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

// An operation that has begun before a delegate comes is waited for, and so is
// in what that is told; one that begins later waits for that, when it calls the
// delegate. No others wait, and none is told twice.
func TestN10NothingFallsInBetween(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	var attached atomic.Bool
	a := attach(t, "c1", "a")
	n.Attachments = func(context.Context) ([]delegate.Attached, error) {
		if !attached.Load() {
			return nil, nil
		}
		return []delegate.Attached{{Attachment: a, Result: json.RawMessage(`{"cniVersion":"1.1.0"}`)}}, nil
	}
	n.start()
	n.serve(simple("20", "other"))

	before, end := n.Begin(t.Context())
	x := fakes("a")
	d := newDelegate("10", "a", x)
	known := told(d)
	n.connect(d)
	for len(n.Plugins()) != 2 { // it has claimed its type
		if err := t.Context().Err(); err != nil {
			t.Fatal(err)
		}
	}
	// What began before is not told: it may be what is being told.
	_, err := n.exec(before, "a", "ADD", "c0")
	wantCode(t, err, 11)
	if !errors.Is(err, delegate.ErrNotRun) || !errors.Is(err, relay.ErrGone) {
		t.Errorf("err = %v", err)
	}
	// Nobody else is held up.
	_, err = n.exec(before, "other", "ADD", "c0")
	ok(t, err)
	after, endAfter := n.Begin(t.Context())
	defer endAfter()
	_, err = n.exec(after, "other", "ADD", "c0")
	ok(t, err)
	later := make(chan error, 1)
	go func() {
		_, err := n.exec(after, "a", "DEL", "c1")
		later <- err
	}()
	if got := n.states(); got[0] != "10-a joining" {
		t.Errorf("%q", got)
	}
	select {
	case <-known:
		t.Error("told while an operation goes on")
	case err := <-later:
		t.Errorf("called before it was told: %v", err)
	default:
	}
	attached.Store(true) // what the operation does last
	end()
	end() // does no harm
	if got := come(t, known, "what is attached"); len(got) != 1 || got[0].ContainerID != "c1" {
		t.Errorf("%+v", got)
	}
	ok(t, come(t, later, "the call"))
	if d := cmp.Diff([]string{"DEL a eth0"}, x.Trace()); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

// A delegate that cannot be told what is attached is not entered, not even in
// part: its types are free, calls that waited for it fail with code 11.
func TestN10FailedSynchronizationLeavesNothing(t *testing.T) {
	t.Parallel()
	broken := errors.New("a record is broken")
	for name, tt := range map[string]struct {
		attachments error
		synchronize func(context.Context) error
		want        string
	}{
		"it fails":          {nil, func(context.Context) error { return types.NewError(120, "table is full", "") }, "table is full"},
		"it panics":         {nil, func(context.Context) error { panic("secret") }, "the plugin panicked"},
		"it hangs":          {nil, func(ctx context.Context) error { <-ctx.Done(); return nil }, "no answer in time"},
		"nobody knows what": {broken, func(context.Context) error { return nil }, "a record is broken"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t)
			if name == "it hangs" {
				n.RegisterTimeout = 2 * time.Second
			}
			fail := true
			n.Attachments = func(context.Context) ([]delegate.Attached, error) {
				if fail {
					return nil, tt.attachments
				}
				return nil, nil
			}
			n.start()
			d := simple("10", "a")
			d.Synchronize = func(ctx context.Context, _ []relay.Known) error { return tt.synchronize(ctx) }
			r := n.connect(d)
			s := n.await("10-a refused", 1)
			if !strings.Contains(s.Err.Error(), tt.want) {
				t.Errorf("err = %v", s.Err)
			}
			if err := come(t, r.err, "the end"); !errors.Is(err, relay.ErrLost) {
				t.Errorf("err = %v", err)
			}
			if got := n.states(); len(got) != 0 {
				t.Errorf("left: %q", got)
			}
			fail = false
			n.serve(newDelegate("20", "b", fakes("a"), "a"))
			_, err := n.exec(t.Context(), "a", "ADD", "c1")
			ok(t, err)
		})
	}
}

// A call that waits for a delegate to be told gives up with its context, or
// when that fails, and has run nothing.
func TestN10CallsDoNotWaitForEver(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.RegisterTimeout = time.Hour
	n.start()
	in, out := make(chan struct{}), make(chan error)
	d := simple("10", "a")
	d.Synchronize = func(context.Context, []relay.Known) error {
		close(in)
		return <-out
	}
	n.connect(d)
	come(t, in, "the synchronization")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := n.exec(ctx, "a", "ADD", "c1")
	wantCode(t, err, 11)
	if !errors.Is(err, delegate.ErrNotRun) || !errors.Is(err, context.Canceled) {
		t.Errorf("err = %v", err)
	}
	waiting := make(chan error, 1)
	go func() {
		_, err := n.exec(t.Context(), "a", "ADD", "c1")
		waiting <- err
	}()
	out <- errors.New("no")
	err = come(t, waiting, "the call")
	// It may have come when all was over, and found no path.
	wantCode(t, err, 11)
	if !errors.Is(err, delegate.ErrNotRun) {
		t.Errorf("err = %v", err)
	}
}

// When a delegate goes its types are kept: calls fail with code 11 and have run
// nothing, until it is back; then it is told what is attached. The Exec below
// is not asked meanwhile.
func TestRemovalKeepsTypesUntilItIsBack(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.Attachments = func(context.Context) ([]delegate.Attached, error) {
		return []delegate.Attached{{Attachment: attach(t, "c1", "a"), Result: json.RawMessage(`{"cniVersion":"1.1.0"}`)}}, nil
	}
	n.start()
	below := fakes("a")
	d := simple("10", "a")
	d.Network, d.DrainTimeout = network(t, "of-a", "a"), patience
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
	if nets := n.Networks(); len(nets) != 1 {
		t.Errorf("an ADD would leave its network out: %d networks", len(nets))
	}
	iv := n.invoker(below)
	a := attach(t, "c1", "a")
	_, err := iv.Add(t.Context(), a)
	wantCode(t, err, 11)
	var left *delegate.UndoError
	if errors.As(err, &left) || !errors.Is(err, relay.ErrGone) {
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
	if nets := n.Networks(); len(nets) != 1 {
		t.Errorf("%d networks", len(nets))
	}
}

// Another delegate may take what one has left.
func TestRemovalLetsAnotherTakeOver(t *testing.T) {
	t.Parallel()
	n := newNode(t).start()
	r := n.serve(newDelegate("10", "old", fakes("x", "y"), "x", "y"))
	r.stop()
	n.await("10-old gone", 1)
	n.serve(newDelegate("20", "new", fakes("x"), "x"))
	_, err := n.exec(t.Context(), "x", "DEL", "c1")
	ok(t, err)
	_, err = n.exec(t.Context(), "y", "DEL", "c1")
	wantCode(t, err, 11)
	n.serve(newDelegate("20", "new2", fakes("y"), "y"))
	if d := cmp.Diff([]string{"20-new ready", "20-new2 ready"}, n.states()); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

// By the Orphan policy types are given up: then the Exec below is asked, and a
// plugin that it does not find is no more than that.
func TestRemovalOrphans(t *testing.T) {
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
			n.serve(newDelegate("10", "d", fakes("a", "b"), "a", "b")).stop()
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

// Types that are reserved wait for their delegate from the beginning.
func TestReservedTypesAreNeverRunBelow(t *testing.T) {
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

// However often a delegate goes and comes, there is no moment at which its type
// is anybody else's, or its network is left out.
func TestRemovalHasNoGap(t *testing.T) {
	t.Parallel()
	n := newNode(t).start()
	d := simple("10", "a")
	d.Network = network(t, "of-a", "a")
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
			if len(n.Networks()) != 1 || len(n.Plugins()) != 1 {
				t.Errorf("networks %v, plugins %q", n.Networks(), n.states())
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
