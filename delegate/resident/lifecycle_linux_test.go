package resident_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/delegatetest"
	"github.com/metacni/metacni/delegate/lifecycle"
	"github.com/metacni/metacni/delegate/resident"
	nodetest "github.com/metacni/metacni/internal/test/node"
	"github.com/metacni/metacni/scratch"
)

// A daemon is a host together with a lifecycle.Manager.
type daemon struct {
	*lifecycle.Manager
	host *resident.Host
}

func newDaemon(n *node, below *delegatetest.Exec, dir string) *daemon {
	d := &daemon{Manager: &lifecycle.Manager{Invoker: n.invoker(below), Dir: dir}, host: n.Host}
	n.Attachments = d.attachments
	return d
}

func key(id string) scratch.Key {
	return scratch.Key{Network: "multi", ContainerID: id, IfName: "eth0"}
}

func (d *daemon) add(ctx context.Context, as ...delegate.Attachment) error {
	_, err := d.Add(ctx, key(as[0].ContainerID), lifecycle.Transaction{Plan: lifecycle.Plan(as...)})
	return err
}

func (d *daemon) del(ctx context.Context, id string) error {
	return d.Del(ctx, key(id), lifecycle.Removal{})
}

// attachments lists the recorded attachments.
func (d *daemon) attachments(ctx context.Context) (all []delegate.Attached, err error) {
	for r, err := range d.Records(ctx) {
		if err != nil {
			return nil, err
		}
		all = append(all, r.Attached...)
	}
	return all, nil
}

// records lists the recorded containers, as "c1 added".
func (d *daemon) records(t *testing.T) (all []string) {
	t.Helper()
	for r, err := range d.Records(t.Context()) {
		nodetest.OK(t, err)
		all = append(all, r.Key.ContainerID+" "+string(r.State))
	}
	return all
}

// The ADD fails with code 11, and the parts of other plugins are undone at
// once. The part of the dead resident stays recorded until the resident is back
// and has handled its DEL.
func TestAddIsUndoneWhenAResidentDiesInIt(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	below := fakes("below")
	d := newDaemon(n, below, t.TempDir())
	n.start()
	x := fakes("a", "b", "c")
	n.serve(newPlugin("10", "a", x))
	n.serve(newPlugin("30", "c", x))
	dies := make(chan *served, 1)
	x.Plugins["b"] = func(ctx context.Context, c delegatetest.Call) ([]byte, error) {
		select {
		case it := <-dies:
			it.stop()
			<-ctx.Done() // its answer will not arrive
		default:
		}
		return delegatetest.Result(nil)(ctx, c)
	}
	dies <- n.serve(newPlugin("20", "b", x))
	err := d.add(t.Context(), attach("c1", "below", "a", "b", "c"))
	nodetest.Code(t, err, 11)
	nodetest.Is(t, err, resident.ErrLost)
	nodetest.Equal(t, "alive", append(x.Live(), below.Live()...), []string{"b c1 eth0"})
	nodetest.OK(t, d.del(t.Context(), "c1")) // the runtime need not wait for the resident
	nodetest.Equal(t, "recorded", d.records(t), []string{"c1 leftover"})
	back := newPlugin("20", "b", x)
	known := told(back)
	n.serve(back, 2)
	if k := nodetest.Come(t, known, "what is attached"); len(k) != 1 || k[0].Added {
		t.Errorf("told %+v", k)
	}
	nodetest.OK(t, d.del(t.Context(), "c1"))
	if live, records := append(x.Live(), below.Live()...), d.records(t); len(live)+len(records) > 0 {
		t.Errorf("alive: %q, recorded: %q", live, records)
	}
}

// An ADD first undoes what is left of the one before.
func TestAddSucceedsAfterTheResidentIsBack(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	d := newDaemon(n, nil, t.TempDir())
	n.start()
	x := fakes("a", "b")
	n.serve(newPlugin("10", "a", x))
	b := n.serve(newPlugin("20", "b", x))
	nodetest.OK(t, d.add(t.Context(), attach("c1", "a", "b")))
	b.stop()
	n.await("20-b gone", 1)
	nodetest.Code(t, d.del(t.Context(), "c1"), 11)
	// The part of the other plugin is removed, and the rest is recorded.
	nodetest.Equal(t, "alive", x.Live(), []string{"b c1 eth0"})
	nodetest.Code(t, d.add(t.Context(), attach("c1", "a", "b")), 11)
	// An ADD of another container has done nothing, and leaves no record.
	nodetest.Code(t, d.add(t.Context(), attach("c2", "a", "b")), 11)
	nodetest.Equal(t, "recorded", d.records(t), []string{"c1 deleting"})
	n.serve(newPlugin("20", "b", x), 2)
	nodetest.OK(t, d.add(t.Context(), attach("c1", "a", "b")))
	nodetest.Equal(t, "recorded", d.records(t), []string{"c1 added"})
}

func TestNothingIsLeftWhenResidentsComeAndGoDuringManyOperations(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	d := newDaemon(n, nil, t.TempDir())
	n.start()
	var types []string
	for i := range 4 {
		types = append(types, fmt.Sprint("p", i))
	}
	x := fakes(types...)
	residents := make([]*served, len(types))
	for i, name := range types {
		residents[i] = n.serve(newPlugin(fmt.Sprint("0", i), name, x))
	}
	var wg sync.WaitGroup
	added := make(chan struct{}) // closed by the first ADD that gets to the end
	once := sync.OnceFunc(func() { close(added) })
	for i := range 8 {
		wg.Go(func() {
			id := fmt.Sprint("c", i)
			for range 4 {
				// It may fail while a resident is away.
				if err := d.add(t.Context(), attach(id, types...)); err == nil {
					once()
					_ = d.del(t.Context(), id)
				}
			}
		})
	}
	wg.Go(func() {
		select {
		case <-added:
		case <-t.Context().Done():
			t.Error("no ADD gets to the end")
			return
		}
		for i := range 3 {
			residents[i].stop()
			n.await(fmt.Sprintf("0%d-p%d gone", i, i), 1)
			n.serve(newPlugin(fmt.Sprint("0", i), types[i], x), 2)
		}
	})
	wg.Wait()
	for i := range 8 {
		nodetest.OK(t, d.del(t.Context(), fmt.Sprint("c", i)))
	}
	if live, records := x.Live(), d.records(t); len(live)+len(records) > 0 {
		t.Errorf("alive: %q, recorded: %q", live, records)
	}
}

// pipe connects d to the host by a pipe, until stop.
func (n *node) pipe(d *resident.Plugin) (stop func()) {
	n.t.Helper()
	ours, its := net.Pipe()
	n.Attend(n.t.Context(), ours)
	ctx, stop := context.WithCancel(n.t.Context())
	go func() {
		defer stop()
		_ = d.Serve(ctx, its)
	}()
	return stop
}

// within runs a test in a bubble. Resident 10-p hangs, see hangs; 20-other does
// not.
func within(t *testing.T, do func(t *testing.T, n *node, call func(typ, id string) error)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := newBareNode(t, &resident.Host{}).start()
		n.pipe(with("10", "p", hangs(t)))
		n.pipe(simple("20", "other"))
		synctest.Wait()
		do(t, n, func(typ, id string) error {
			_, err := n.exec(t.Context(), typ, "ADD", id)
			return err
		})
	})
}

func TestCallTimeoutFailsWithCode11(t *testing.T) {
	within(t, func(t *testing.T, n *node, call func(typ, id string) error) {
		t.Helper()
		start := time.Now()
		err := call("p", "hang")
		nodetest.Code(t, err, 11)
		if !strings.Contains(err.Error(), "no answer in time") || !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, delegate.ErrNotRun) {
			t.Errorf("err = %v", err)
		}
		nodetest.Equal(t, "after", time.Since(start), 30*time.Second)
		nodetest.Equal(t, "closed after one", n.states(), []string{"10-p ready", "20-other ready"})
	})
}

// An answer in between starts the count again. Other residents are not
// affected, and the resident may come back.
func TestResidentIsDisconnectedAfterThreeTimeoutsInARow(t *testing.T) {
	within(t, func(t *testing.T, n *node, call func(typ, id string) error) {
		t.Helper()
		for range 3 {
			nodetest.Code(t, call("p", "hang"), 11)
			nodetest.Code(t, call("p", "hang"), 11)
			nodetest.OK(t, call("p", "c1"))
		}
		for range 3 {
			nodetest.Code(t, call("p", "hang"), 11)
		}
		s := n.await("10-p gone", 1)
		if !strings.Contains(s.Err.Error(), "no answer in time") {
			t.Errorf("gone for %v", s.Err)
		}
		err := call("p", "c1")
		nodetest.Code(t, err, 11)
		if !strings.Contains(err.Error(), "not connected") || !errors.Is(err, delegate.ErrNotRun) {
			t.Errorf("err = %v", err)
		}
		nodetest.OK(t, call("other", "c1"))
		n.pipe(with("10", "p", hangs(t)))
		n.await("10-p ready", 2)
		nodetest.OK(t, call("p", "c1"))
	})
}

// They succeed when it is back. ADD and STATUS fail at once; so do all when it
// has been gone for long.
func TestDelCheckAndGCWaitForAResidentThatHasGone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := newBareNode(t, &resident.Host{Reserve: []string{"p"}}).start()
		unanswered := func(command string, after time.Duration) {
			t.Helper()
			start := time.Now()
			_, err := n.exec(t.Context(), "p", command, "c1")
			nodetest.Code(t, err, 11)
			if took := time.Since(start); took != after || !strings.Contains(err.Error(), "not connected") || !errors.Is(err, delegate.ErrNotRun) {
				t.Errorf("%s after %v: %v", command, took, err)
			}
		}
		unanswered("ADD", 0)
		unanswered("STATUS", 0)
		unanswered("DEL", 15*time.Second)
		unanswered("DEL", 0)

		x := fakes("p")
		stop := n.pipe(newPlugin("10", "p", x))
		n.await("10-p ready", 1)
		stop()
		n.await("10-p gone", 1)
		unanswered("ADD", 0)
		done := make(chan error)
		for _, command := range []string{"DEL", "CHECK", "GC"} {
			go func() {
				_, err := n.exec(t.Context(), "p", command, "c1")
				done <- err
			}()
		}
		synctest.Wait()
		n.pipe(newPlugin("10", "p", x))
		for range 3 {
			nodetest.OK(t, <-done)
		}
		got := x.Trace()
		slices.Sort(got)
		nodetest.Equal(t, "got", got, []string{"CHECK p eth0", "DEL p eth0", "GC p eth0"})
	})
}

// Calls that a registering resident has not received do not count against it.
func TestCallsBeforeReadyDoNotCountAsTimeouts(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d, told := simple("10", "p"), make(chan struct{})
		d.Synchronize = func(context.Context, []resident.Known) error { <-told; return nil }
		n := newBareNode(t, &resident.Host{ReturnTimeout: time.Second}).start()
		n.pipe(d)
		synctest.Wait()
		for range 3 { // three timeouts would disconnect it
			_, err := n.exec(t.Context(), "p", "ADD", "c1")
			nodetest.Code(t, err, 11)
			if !strings.Contains(err.Error(), "not connected") || !errors.Is(err, delegate.ErrNotRun) {
				t.Errorf("err = %v", err)
			}
		}
		close(told)
		n.await("10-p ready", 1)
		_, err := n.exec(t.Context(), "p", "ADD", "c1")
		nodetest.OK(t, err)
	})
}
