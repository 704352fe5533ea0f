package main

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/metacni/metacni/internal/nodetest"

	corev1 "k8s.io/api/core/v1"

	"github.com/metacni/metacni/delegate/delegatetest"
)

// A DEL does not wait for a network that is being attached because the pod selects it, nor
// does the end of the daemon. Nothing of it is left, and the next daemon attaches it.
func TestAttachingEndsWithTheContainerAndTheDaemon(t *testing.T) {
	t.Parallel()
	tn := newFollowing(t, "")
	hangs := make(chan struct{}, 10)
	macvlan := tn.fake.Plugins["macvlan"]
	tn.fake.Plugins["macvlan"] = func(ctx context.Context, c delegatetest.Call) ([]byte, error) {
		if c.Command == "ADD" {
			hangs <- struct{}{}
			<-ctx.Done()
			return nil, errors.New("killed")
		}
		return macvlan(ctx, c)
	}
	tn.start(t)
	hanging := func() bool {
		select {
		case <-hangs:
			return true
		default:
			return false
		}
	}
	one := tn.add(t, "one", "")
	tn.add(t, "two", "")
	tn.edit(t, "one", "blue")
	tn.until(t, "it is being attached", hanging)
	want(t, "DEL", tn.command(t, "DEL", one, annotated("")), 0, "")
	tn.edit(t, "two", "blue")
	tn.until(t, "it is being attached", hanging)
	nodetest.OK(t, tn.stop())
	if live := tn.fake.Live(); !slices.Equal(live, []string{"bridge c-two eth0"}) {
		t.Errorf("attached: %q", live)
	}
	if got := tn.reasons(); slices.ContainsFunc(got, func(r string) bool { return strings.Contains(r, "Failed") }) {
		t.Errorf("Events %q", got)
	}
	tn.fake.Plugins["macvlan"] = macvlan
	tn.again(t, "").start(t).wantNetworks(t, "two", "net1 ns/blue")
}

// A pod that ends while its networks are being changed gets no more of them.
func TestPodThatEndsDuringAPassGetsNothingMore(t *testing.T) {
	t.Parallel()
	tn := newFollowing(t, "")
	attaching, gate := make(chan struct{}), make(chan struct{})
	macvlan := tn.fake.Plugins["macvlan"]
	tn.fake.Plugins["macvlan"] = func(ctx context.Context, c delegatetest.Call) ([]byte, error) {
		if c.Command == "ADD" {
			attaching <- struct{}{}
			<-gate
		}
		return macvlan(ctx, c)
	}
	tn.start(t)
	tn.add(t, "one", "")
	tn.add(t, "two", "")
	tn.edit(t, "one", "blue,green")
	<-attaching
	p := tn.api.Pod("ns", "one")
	p.Status.Phase = corev1.PodSucceeded
	tn.api.SetPod(p)
	tn.edit(t, "two", "green") // the daemon sees this later
	tn.wantNetworks(t, "two", "net1 ns/green")
	close(gate)
	tn.wantNetworks(t, "one", "net1 ns/blue")
}
