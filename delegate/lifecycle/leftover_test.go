package lifecycle

import (
	"errors"
	"testing"
)

// What a failed Attach has left, and what cannot be removed, is in nobody's way
// but that of its own interface name.
func TestLeftoverOfAttachBlocksNothingElse(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.add(eth0)
	n.failOn("ADD ipvlan hot0", 101)
	n.failOn("DEL ipvlan hot0", 102)
	_, err := n.Attach(t.Context(), eth0, hotplug(eth0))
	wantCode(t, err, 101)
	n.wantRecords("c1/eth0 partial")

	if err := n.Check(t.Context(), eth0); err != nil {
		t.Error(err)
	}
	other := Transaction{Plan: Plan(attachment(network("green", "ipvlan"), "c1", "hot1"))}
	if _, err := n.Attach(t.Context(), eth0, other); err != nil {
		t.Error(err)
	}
	n.wantRecords("c1/eth0 partial")
	if err := n.Check(t.Context(), eth0); err != nil {
		t.Error(err)
	}
	n.wantTrace(append(n.trace()[:len(n.trace())-4],
		"CHECK bridge eth0", "CHECK tuning eth0", "CHECK macvlan net0", "CHECK ipvlan hot1")...)

	_, err = n.Attach(t.Context(), eth0, hotplug(eth0))
	if !errors.Is(err, ErrPlan) {
		t.Errorf("the leftover's own name: %v", err)
	}
	wantSaid(t, err, "hot0", "in use", "DEL network") // and why it is
	wantCode(t, n.Detach(t.Context(), eth0, "hot0"), 102)
	if err := n.Detach(t.Context(), eth0, "hot1"); err != nil {
		t.Error(err)
	}
	n.wantRecords("c1/eth0 partial")

	n.exec.Plugins = plugins() // it is mended
	if _, err := n.Attach(t.Context(), eth0, hotplug(eth0)); err != nil {
		t.Error(err)
	}
	n.wantRecords("c1/eth0 added")
	n.del(eth0)
	n.wantNothing()
}
