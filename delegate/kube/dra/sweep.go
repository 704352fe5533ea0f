package dra

import (
	"context"
	"errors"
	"slices"
	"time"

	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// sweepOften calls Sweep until ctx ends.
func (d *Driver) sweepOften(ctx context.Context) {
	ticker := time.NewTicker(d.config.sweepInterval())
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
		if err := d.Sweep(ctx); err != nil && ctx.Err() == nil {
			d.log.WarnContext(ctx, "prepared claims not swept", "error", err)
		}
	}
}

// Sweep forgets the claims that the kubelet should have released: the API server says that
// they do not exist or are not reserved for their pod any more, and nothing is attached
// because of them. The Driver does it from time to time. Errors of several claims are joined;
// among them are those of damaged records, which only the kubelet can have removed.
func (d *Driver) Sweep(ctx context.Context) error {
	claims, errs, err := d.config.Store.All()
	errs = append(errs, err)
	for _, c := range claims {
		if err := d.sweep(ctx, c); err != nil {
			errs = append(errs, &Error{Claim: c.Ref, Err: err})
		}
	}
	return errors.Join(errs...)
}

func (d *Driver) sweep(ctx context.Context, c Claim) error {
	used, err := d.used(ctx, c)
	if err != nil || used {
		return err
	}
	attached, err := d.config.Attachments(ctx, c)
	if err != nil || len(attached) > 0 {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.remove(c.Ref); err != nil {
		return err
	}
	d.log.InfoContext(ctx, "claim forgotten that the kubelet has not released", "claim", c.String(), "pod", c.Pod)
	return nil
}

// used reports whether the API server has the claim and it is reserved for its pod.
func (d *Driver) used(ctx context.Context, c Claim) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	object, err := d.config.Client.ResourceV1().ResourceClaims(c.Namespace).Get(ctx, c.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	return string(object.UID) == c.UID && slices.ContainsFunc(object.Status.ReservedFor,
		func(r resourcev1.ResourceClaimConsumerReference) bool { return string(r.UID) == c.Pod }), nil
}
