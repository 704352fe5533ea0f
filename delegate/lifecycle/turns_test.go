package lifecycle

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/metacni/metacni/delegate/delegatetest"
	"github.com/metacni/metacni/internal/nodetest"
	"github.com/metacni/metacni/scratch"
)

// An ADD that waits in line is cancelled as well, and one that has ended does
// not hide the others from the DEL.
func TestDelCancelsEveryAdd(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	in := make(chan struct{})
	n.On("ADD bridge", func(ctx context.Context, _ delegatetest.Call) error {
		close(in)
		<-ctx.Done()
		return errors.New("killed")
	})
	errs := make(chan error)
	go func() {
		_, err := n.Add(t.Context(), eth0, pair(eth0))
		errs <- err
	}()
	<-in
	short, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	_, err := n.Add(short, eth0, pair(eth0)) // waits in vain, and is gone
	nodetest.Code(t, err, 11)
	patient := &Manager{Invoker: n.Invoker, Dir: n.Dir}
	done := make(chan error)
	go func() { done <- patient.Del(t.Context(), Removal{Key: eth0}) }() // of "another process": it only waits
	n.del(eth0)
	if err := <-errs; !errors.Is(err, ErrSuperseded) {
		t.Errorf("ADD: %v", err)
	}
	nodetest.OK(t, <-done)
	n.wantNothing()
	if len(n.adds) > 0 {
		t.Errorf("%d ADDs are still known", len(n.adds))
	}
}

// A DEL of another attachment of the container waits, and cancels nothing.
func TestDelOfAnotherKeyWaits(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	eth1 := key("c1", "eth1")
	n.add(eth1)
	in, out := n.Gate("ADD bridge eth0")
	var add sync.WaitGroup
	add.Go(func() { n.add(eth0) })
	<-in
	calls := n.trace()
	hasty := &Manager{Invoker: n.Invoker, Dir: n.Dir, LockTimeout: time.Millisecond}
	nodetest.Code(t, hasty.Del(t.Context(), Removal{Key: eth1}), 11)
	nodetest.Code(t, hasty.Del(t.Context(), Removal{Key: eth0}), 11) // nor does another Manager
	n.wantTrace(calls...)
	n.wantRecords("c1/eth0 planned", "c1/eth1 added")
	n.del(key("c2", "eth0")) // other containers have locks of their own
	out()
	n.del(eth1)
	add.Wait()
	n.wantRecords("c1/eth0 added")
	n.del(eth0)
	n.wantNothing()
}

// Without LockTimeout an operation waits for ten seconds, and then kills
// nobody who is alive. The context counts too.
func TestWaitForTheLockIsBounded(t *testing.T) {
	t.Parallel()
	dir := newNode(t).Dir
	synctest.Test(t, func(t *testing.T) {
		n := nodeAt(t, dir)
		n.add(eth0)
		l, err := scratch.Store[record]{Dir: dir}.Lock(t.Context(), "c1")
		nodetest.OK(t, err)
		verbs := map[string]func(context.Context) error{
			"DEL":    func(ctx context.Context) error { return n.Del(ctx, Removal{Key: eth0}) },
			"CHECK":  func(ctx context.Context) error { return n.Check(ctx, eth0) },
			"DETACH": func(ctx context.Context) error { return n.Detach(ctx, eth0, "net0") },
			"GC":     func(ctx context.Context) error { return n.GC(ctx, Collection{Network: "multi", Valid: noneValid}) },
			"ADD":    func(ctx context.Context) error { _, err := n.Add(ctx, eth0, pair(eth0)); return err },
			"ATTACH": func(ctx context.Context) error { _, err := n.Attach(ctx, eth0, hotplug(eth0)); return err },
		}
		for verb, do := range verbs {
			start := time.Now()
			err := do(t.Context())
			if e := (*Error)(nil); !errors.As(err, &e) || e.Op != verb || e.Key.ContainerID != "c1" {
				t.Errorf("%s: %v", verb, err)
			}
			nodetest.Code(t, err, 11)
			if took := time.Since(start); took != defaultLockTimeout {
				t.Errorf("%s: waited for %s", verb, took)
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			start = time.Now()
			err = do(ctx)
			cancel()
			nodetest.Code(t, err, 11)
			if took := time.Since(start); took != time.Second {
				t.Errorf("%s: waited for %s with a second to go", verb, took)
			}
		}
		nodetest.Equal(t, "calls", n.trace(), []string{
			"ADD bridge eth0", "ADD tuning eth0", "ADD macvlan net0",
			"GC bridge", "GC tuning", "GC macvlan", // with the attachment: somebody is working on it
		})
		wantValid(t, n.Last("GC macvlan"), "c1 net0")
		nodetest.OK(t, l.Unlock())
		n.wantRecords("c1/eth0 added")
		n.del(eth0)
		n.wantNothing()
	})
}
