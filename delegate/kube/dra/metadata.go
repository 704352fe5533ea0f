package dra

import (
	"context"
	"errors"
	"slices"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
)

// UpdateMetadata writes the interface and the addresses of each network of the pod's claims
// into files that its containers see, see Config.CDIDir. Call it after the networks are
// attached and before the ADD returns, so that the files are right when a container starts.
// It does nothing without CDIDir.
//
// A failure is worth an Event, but no reason to fail the ADD.
func (d *Driver) UpdateMetadata(ctx context.Context, podUID string) error {
	if d == nil || d.config.CDIDir == "" {
		return nil
	}
	claims, err := d.config.Store.Pod(podUID)
	errs := []error{err}
	for _, c := range claims {
		if err := d.updateMetadata(ctx, c); err != nil {
			errs = append(errs, c.failure(err))
		}
	}
	return errors.Join(errs...)
}

func (d *Driver) updateMetadata(ctx context.Context, c Claim) error {
	d.serving.Lock()
	helper, err := d.service.helper, d.service.err
	d.serving.Unlock()
	if helper == nil {
		return err
	}
	attached, err := d.config.attached(ctx, c.Ref)
	errs := []error{err}
	var done []string
	for _, n := range c.Networks {
		if slices.Contains(done, n.Claim.Request) {
			continue
		}
		done = append(done, n.Claim.Request)
		devices := c.devices(n.Claim.Request)
		for i := range devices {
			id := deviceOf(devices[i].PoolName, devices[i].DeviceName, devices[i].ShareID)
			if at := slices.IndexFunc(attached, func(a attachment) bool { return a.device == id }); at >= 0 {
				devices[i].Metadata = &kubeletplugin.DeviceMetadata{NetworkData: attached[at].networkData()}
			}
		}
		errs = append(errs, helper.UpdateRequestMetadata(ctx, c.Namespace, c.Name, types.UID(c.UID), resourceclaim.BaseRequestRef(n.Claim.Request), devices))
	}
	return errors.Join(errs...)
}
