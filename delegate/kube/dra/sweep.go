package dra

import (
	"cmp"
	"context"
	"errors"
	"slices"

	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/metacni/metacni/delegate/kube/internal/apierr"
	"github.com/metacni/metacni/scratch"
)

// sweepOften calls sweepAll until ctx ends.
func (d *Driver) sweepOften(ctx context.Context) {
	_ = wait.PollUntilContextCancel(ctx, cmp.Or(d.config.sweepInterval, sweepInterval), false, func(ctx context.Context) (bool, error) {
		if err := d.sweepAll(ctx); err != nil && ctx.Err() == nil {
			d.log.WarnContext(ctx, "prepared claims not swept", "error", err)
		}
		return false, nil // for ever
	})
}

// sweepAll forgets the claims that the kubelet should have released: the API server says that
// they do not exist or are not reserved for their pod any more, and nothing is attached
// because of them. The Driver does it from time to time. Errors of several claims are joined;
// among them are those of damaged records, which only the kubelet can have removed.
func (d *Driver) sweepAll(ctx context.Context) error {
	var errs []error
	for r, err := range d.config.store().List(ctx) {
		if err == nil {
			err = d.sweep(ctx, r)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

func (d *Driver) sweep(ctx context.Context, r scratch.Record[storedClaim]) error {
	asked, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	c := r.Value
	object, err := d.get(asked, c.Ref)
	if err == nil && object != nil && reservedFor(object, c.Pod) {
		return nil
	}
	released := false
	if err == nil && object != nil {
		err = d.prepareForOthers(ctx, object, c)
	}
	if err == nil {
		d.mu.Lock()
		released, err = d.release(ctx, c.Ref, r.Updated)
		d.mu.Unlock()
	}
	switch {
	case errors.Is(err, errInUse): // the DEL of the pod is still to come
		return nil
	case err != nil:
		return c.failure(err)
	case released:
		d.log.InfoContext(ctx, "claim forgotten that the kubelet has not released", "claim", c.String(), "pod", c.Pod)
	}
	return nil
}

// prepareForOthers prepares a claim that the kubelet has had prepared for the pod of c for the pods that
// have it now: their ADDs must find it, and the kubelet does not ask again.
func (d *Driver) prepareForOthers(ctx context.Context, object *resourcev1.ResourceClaim, c storedClaim) error {
	now, err := claimOf(object, d.config.Name)
	if err != nil || !c.Shared || !slices.Equal(now.Networks, c.Networks) {
		return nil //nolint:nilerr // nobody on this node has it
	}
	_, err = d.prepare(ctx, object, "")
	return err
}

// get returns the claim that r names as the API server has it. It returns nil if there is
// certainly no such claim.
func (d *Driver) get(ctx context.Context, r Ref) (*resourcev1.ResourceClaim, error) {
	object, err := d.client.ResourceV1().ResourceClaims(r.Namespace).Get(ctx, r.Name, metav1.GetOptions{})
	switch {
	case apierr.None(err):
		return nil, nil
	case err != nil || string(object.UID) != r.UID:
		return nil, err
	}
	return object, nil
}
