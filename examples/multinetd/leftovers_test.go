package main

import (
	"testing"

	"github.com/metacni/metacni/internal/nodetest"

	"github.com/metacni/metacni/delegate/delegatetest"
)

// What is left of an ADD that never succeeded is counted.
func TestLeftoversAreCounted(t *testing.T) {
	t.Parallel()
	w := newWorld(t, `,"sweepInterval":"0s"`)
	works := w.fake.Plugins["bridge"]
	w.fake.Plugins["bridge"] = delegatetest.FailOn("ADD", 101, "no address", delegatetest.FailOn("DEL", 101, "no IPAM", works))
	w.start(t)
	if err := w.run(t, "ADD", bridge); err == nil {
		t.Fatal("the ADD has succeeded")
	}
	if n := len(w.leftovers(t.Context())); n != 1 {
		t.Errorf("%d leftovers, want 1", n)
	}
	if got := w.final(t); got["multinet_leftovers"] != 1 {
		t.Errorf("counted %v", got["multinet_leftovers"])
	}
}

// A leftover that cannot be removed is an Event on its pod, once.
func TestLeftoverIsAnEventOnce(t *testing.T) {
	t.Parallel()
	tn := newTown(t, `,"sweepInterval":"1ms"`)
	works := tn.fake.Plugins["bridge"]
	tn.fake.Plugins["bridge"] = delegatetest.FailOn("ADD", 101, "no address", delegatetest.FailOn("DEL", 101, "no IPAM", works))
	tn = tn.start(t)
	if err := tn.command(t, "ADD", tn.pod(t, "one"), annotated("blue")); err == nil {
		t.Fatal("the ADD has succeeded")
	}
	tn.until(t, "it is tried again", func() bool { return tn.metric(t, `multinetd_stale_attachments_tried_total{outcome="failed"}`) > 1 })
	nodetest.OK(t, tn.stop()) // Events are written then
	nodetest.Equal(t, "Events", tn.reasons(), []string{"Pod one FailedRemovingInterface"})
}
