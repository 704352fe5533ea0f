package played

import (
	"context"
	"errors"

	resourcev1 "k8s.io/api/resource/v1"

	"github.com/metacni/metacni/delegate/kube/dra/dratest"
)

// Prepare has a kubelet prepare all claims of a pod. It fails with the errors of all claims, as
// the kubelet does before it creates the pod.
func Prepare(ctx context.Context, k *dratest.Kubelet, claims ...*resourcev1.ResourceClaim) error {
	prepared, err := k.Prepare(ctx, claims...)
	errs := []error{err}
	for _, p := range prepared {
		errs = append(errs, p.Err)
	}
	return errors.Join(errs...)
}
