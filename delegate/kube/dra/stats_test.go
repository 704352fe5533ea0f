package dra

import (
	"context"
	"errors"
	"testing"
	"time"

	resourcev1 "k8s.io/api/resource/v1"

	"github.com/metacni/metacni/delegate/kube/kubetest"
)

// counts waits until the driver has counted something.
func (n *node) counts(t *testing.T, done func(Stats) bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	poll := time.NewTicker(2 * time.Millisecond)
	defer poll.Stop()
	for !done(n.Stats()) {
		select {
		case <-ctx.Done():
			t.Fatalf("%+v; requests: %v", n.Stats(), n.server.Requests())
		case <-poll.C:
		}
	}
}

// Whoever does not know whose attachments have changed has all looked at. The text of a failed
// attempt stays.
func TestRefreshFollowsWhatHasChanged(t *testing.T) {
	t.Parallel()
	n := newNode(t, nil)
	k := n.kubelet(t)
	a := n.server.SetClaim(newClaim("a", nil))
	b := n.server.SetClaim(newClaim("b", func(c *resourcev1.ResourceClaim) { c.Status.ReservedFor[0].UID = "pod-b" }))
	mustPrepare(t, k, a, b)
	n.attach(t, "pod-web")
	n.Attached("pod-b", errors.New("no free device"))
	n.await(t, "written", n.ready("a", "True"))
	n.await(t, "written", n.ready("b", "False"))
	n.counts(t, func(s Stats) bool { return s == Stats{Prepared: 2, Written: 2} })
	n.detach(string(a.UID))
	n.Refresh()
	n.await(t, "refreshed", n.ready("a", "False"))
	if text := n.server.Claim("blue", "b").Status.Devices[0].Conditions[0].Message; text != "no free device" {
		t.Errorf("the text is now %q", text)
	}
}

func TestStatsTellRefusalsFromFailures(t *testing.T) {
	t.Parallel()
	for code, of := range map[int]func(Stats) uint64{403: func(s Stats) uint64 { return s.Refused }, 500: func(s Stats) uint64 { return s.Failed }} {
		n := newNode(t, nil)
		heal := n.server.Break(kubetest.Fault{Verb: "update", Status: code})
		mustPrepare(t, n.kubelet(t), n.server.SetClaim(newClaim("a", nil)))
		n.attach(t, "pod-web")
		n.await(t, "asked", func() bool { return n.server.Count("update", "resourceclaims/status") > 0 })
		n.counts(t, func(s Stats) bool { return of(s) > 0 && s.Pending == 1 && s.Written == 0 })
		heal()
		n.await(t, "written", n.ready("a", "True"))
		n.counts(t, func(s Stats) bool { return s.Pending == 0 && s.Written == 1 })
	}
}
