package dra

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	resourcev1 "k8s.io/api/resource/v1"

	"github.com/metacni/metacni/delegate"
	kubetest "github.com/metacni/metacni/internal/test/kube"
	nodetest "github.com/metacni/metacni/internal/test/node"
	"github.com/metacni/metacni/scratch"
)

// plan returns the attachment for the claim a as a plugin records it.
func (n *node) plan(t *testing.T, a *resourcev1.ResourceClaim) delegate.Attached {
	t.Helper()
	claim, err := claimOf(a, driverName)
	nodetest.OK(t, err)
	return attachedTo("pod-web", claim.Networks[0])
}

// A claim stays prepared while any record has something of it, whatever the status of the claim
// shows: nobody else gets the device.
func TestAClaimStaysWhileAnyRecordHasIt(t *testing.T) {
	t.Parallel()
	for name, record := range map[string]func(r *Record, a delegate.Attached){
		"an attached container":           func(r *Record, a delegate.Attached) { r.Attached = []delegate.Attached{a} },
		"an ADD that has begun":           func(r *Record, a delegate.Attached) { r.State, r.Attached = scratch.Planned, []delegate.Attached{a} },
		"a DEL that has begun":            func(r *Record, a delegate.Attached) { r.State, r.Attached = scratch.Deleting, []delegate.Attached{a} },
		"an undo that has failed":         func(r *Record, a delegate.Attached) { r.State, r.Attached = scratch.Leftover, []delegate.Attached{a} },
		"a leftover of an ADD before":     func(r *Record, a delegate.Attached) { r.Leftovers = []delegate.Attached{a} },
		"a container of an unknown pod":   func(r *Record, a delegate.Attached) { a.Args = ""; r.Attached = []delegate.Attached{a} },
		"an earlier sandbox of the pod":   func(r *Record, a delegate.Attached) { r.Created, r.Attached = time.Time{}, []delegate.Attached{a} },
		"one of several in the container": func(r *Record, a delegate.Attached) { r.Attached = []delegate.Attached{{}, a} },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n, k, a := prepared(t)
			fails := errors.New("not now")
			r := Record{Detach: func(context.Context, string) error { return nil }} // as a DEL that finds nothing to do
			r.Key, r.State, r.Created = scratch.Key{Network: "multi", ContainerID: "c1", IfName: "eth0"}, scratch.Added, time.Now()
			record(&r, n.plan(t, a))
			newer := Record{Detach: func(context.Context, string) error { return fails }}
			newer.Key, newer.State, newer.Created = scratch.Key{ContainerID: "c2"}, scratch.Added, time.Now().Add(time.Hour)
			n.others = []Record{r, newer}
			nodetest.Says(t, k.Unprepare(t.Context(), a), "multi/c1/eth0", "still attached")
			nodetest.Code(t, n.releaseAll(t.Context(), Ref{UID: string(a.UID), Namespace: "blue", Name: "a"}), 11)
			kubetest.Delete[resourcev1.ResourceClaim](n.server, "blue", "a")
			nodetest.OK(t, n.sweepAll(t.Context()))
			n.wantClaims(t, "pod-web", 1)
			b := kubetest.Put(n.server, newClaim("b", func(c *resourcev1.ResourceClaim) {
				c.Status.Allocation.Devices.Results[0] = allocatedTo("net", "storage", "share-a")
			}))
			refused(t, k, b, "in use")
			n.others = nil
			nodetest.OK(t, k.Unprepare(t.Context(), a))
			mustPrepare(t, k, b)
		})
	}
}

// A sandbox that can neither be attached nor detached is let go by its DEL, and so is its claim.
func TestAClaimIsReleasedAsTheDELIs(t *testing.T) {
	t.Parallel()
	n, k, a := prepared(t)
	r := Record{Detach: func(context.Context, string) error { return errors.New("the plugin fails") }}
	r.Key, r.State, r.Attached = scratch.Key{Network: "multi", ContainerID: "c1", IfName: "eth0"}, scratch.Leftover, []delegate.Attached{n.plan(t, a)}
	n.others = []Record{r}
	nodetest.Says(t, k.Unprepare(t.Context(), a), "the plugin fails")
	n.wantClaims(t, "pod-web", 1)
	n.others[0].GivenUp = true
	nodetest.OK(t, k.Unprepare(t.Context(), a))
	n.wantClaims(t, "pod-web", 0)
}

// Nobody knows of which claim a record is that cannot be read.
func TestAClaimStaysWhileARecordCannotBeRead(t *testing.T) {
	t.Parallel()
	n, k, a := prepared(t)
	kubetest.Delete[resourcev1.ResourceClaim](n.server, "blue", "a")
	n.fail(&scratch.Error{Op: "list", Key: scratch.Key{Network: "multi", ContainerID: "c1", IfName: "eth0"}, Err: scratch.ErrCorrupt})
	nodetest.Says(t, k.Unprepare(t.Context(), a), `record "multi/c1/eth0": corrupt record`)
	nodetest.Is(t, n.sweepAll(t.Context()), scratch.ErrCorrupt)
	n.fail(nil)
	n.wantClaims(t, "pod-web", 1)
}

// The record of a claim may be lost. What its pod is attached to is not.
func TestAClaimWithoutARecordIsDetached(t *testing.T) {
	t.Parallel()
	n, k, a := prepared(t)
	n.attach(t, "pod-web")
	nodetest.OK(t, os.Remove(filepath.Join(n.config.Dir, "pod-web@claim-a@claim.json")))
	n.fail(errors.New("the plugin fails"))
	nodetest.Says(t, k.Unprepare(t.Context(), a), "the plugin fails")
	n.fail(nil)
	nodetest.OK(t, k.Unprepare(t.Context(), a))
	nodetest.Equal(t, "detached", n.detached, []string{"a"})
}

// An ADD has read the claim before it is released, and records what it attaches at any moment of
// the release. Either the claim stays, or the ADD fails.
func TestReleaseAndADDSeeEachOther(t *testing.T) {
	t.Parallel()
	for moment := range 7 { // 1, 3 and 5 are before the release reads the records
		for by, release := range map[string]func(t *testing.T, n *node, a *resourcev1.ResourceClaim) (released bool){
			"the kubelet": func(t *testing.T, n *node, a *resourcev1.ResourceClaim) bool {
				t.Helper()
				err := n.releaseAll(t.Context(), Ref{UID: string(a.UID), Namespace: "blue", Name: "a"})
				if err != nil {
					nodetest.Is(t, err, errInUse)
				}
				return err == nil
			},
			"the sweep": func(t *testing.T, n *node, a *resourcev1.ResourceClaim) bool {
				t.Helper()
				kubetest.Delete[resourcev1.ResourceClaim](n.server, "blue", "a")
				nodetest.OK(t, n.sweepAll(t.Context()))
				claims, err := n.all()
				nodetest.OK(t, err)
				return len(claims) == 0
			},
		} {
			n, _, a := prepared(t)
			r := Record{Detach: func(context.Context, string) error { return nil }}
			r.Key, r.State = scratch.Key{Network: "multi", ContainerID: "c1", IfName: "eth0"}, scratch.Planned
			r.Attached = []delegate.Attached{n.plan(t, a)}
			held := make(chan error, 1)
			add := func() {
				n.mu.Lock()
				n.others = []Record{r}
				n.mu.Unlock()
				hold := func(ctx context.Context) error {
					return n.Held(ctx, web, []delegate.Attachment{r.Attached[0].Attachment})
				}
				ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
				defer cancel()
				if err := hold(ctx); !errors.Is(err, context.DeadlineExceeded) {
					held <- err
					return
				}
				go func() { held <- hold(t.Context()) }() // it waits for the release
			}
			added := false
			n.looking = func(look int) {
				if look == moment {
					add()
					added = true
				}
			}
			released := release(t, n, a)
			if !added {
				add()
			}
			err := nodetest.Come(t, held, "the ADD knows")
			if released == (err == nil) {
				t.Errorf("by %s, moment %d: released %t, the ADD: %v", by, moment, released, err)
			}
		}
	}
}

// The kubelet prepares a claim again while the sweep asks the API server about it.
func TestTheSweepSparesWhatIsPreparedAgain(t *testing.T) {
	t.Parallel()
	n, _, a := prepared(t)
	for r, err := range n.config.store().List(t.Context()) {
		nodetest.OK(t, err)
		mustPrepare(t, n.kubelet(t), a)
		released, err := n.release(t.Context(), r.Value.Ref, r.Updated)
		nodetest.OK(t, err)
		nodetest.Equal(t, "released", released, false)
	}
	n.wantClaims(t, "pod-web", 1)
}
