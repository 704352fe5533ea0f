package resident_test

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/resident"
	"github.com/metacni/metacni/internal/nodetest"
)

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

func TestResidentThatAnswersNoPingIsDisconnected(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := &node{t: t, more: make(chan struct{})}
		n.Host = &resident.Host{Observer: n.note}
		n.SetPingInterval(time.Second)
		n.start()
		n.pipe(simple("10", "other"))
		ours, its := net.Pipe()
		n.Attend(t.Context(), ours)
		p := (&peer{its, bufio.NewReader(its), t}).register("20", "dead")
		go func() { _, _ = io.Copy(io.Discard, p.in) }() // reads pings and answers none
		s := n.await("20-dead gone", 1)
		if !errors.Is(s.Err, resident.ErrLost) || !strings.Contains(s.Err.Error(), "pings are not answered") {
			t.Errorf("gone for %v", s.Err)
		}
		nodetest.Equal(t, "got", n.states(), []string{"10-other ready", "20-dead gone"})
	})
}
