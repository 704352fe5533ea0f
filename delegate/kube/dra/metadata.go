package dra

import (
	"context"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
)

// UpdateMetadata writes the interface and the addresses of each network of the pod's claims
// into files that its containers see, see Config.CDIDir. Call it after the networks are
// attached and before the ADD returns, so that the files are right when a container starts.
// It does nothing without CDIDir. The files of a claim that several pods share have neither.
//
// A failure is worth an Event, but no reason to fail the ADD.
func (d *Driver) UpdateMetadata(ctx context.Context, podUID string) error {
	if d == nil || d.config.CDIDir == "" {
		return nil
	}
	claims, err := d.prepared(podUID)
	errs := []error{err}
	for _, c := range claims {
		if err := d.updateMetadata(ctx, c); err != nil {
			errs = append(errs, c.failure(err))
		}
	}
	return errors.Join(errs...)
}

// removeMetadata removes the files of a claim that is being forgotten for a pod, as the helper does when
// the kubelet releases it. Other pods may have it, or a claim of its name. The caller holds d.mu.
func (d *Driver) removeMetadata(r Ref) error {
	if d.config.CDIDir == "" {
		return nil
	}
	pods, err := d.find(r) // damaged records too
	if err != nil || slices.ContainsFunc(pods, func(p Ref) bool { return p.Pod != r.Pod }) {
		return err
	}
	dir, err := d.config.resolve(d.config.CDIDir)
	if err != nil {
		return err
	}
	files, _ := filepath.Glob(filepath.Join(dir, d.config.Name+"_metadata_"+r.UID+"_*.json")) // the pattern is valid
	others, err := d.all()
	others = slices.DeleteFunc(others, func(c Claim) bool { return c.Ref == r })
	if err == nil && !slices.ContainsFunc(others, func(c Claim) bool { return c.String() == r.String() }) {
		files = append(files, filepath.Join(d.config.plugin(), "dra-device-metadata", r.Namespace+"_"+r.Name))
	}
	var errs []error
	for _, file := range files {
		errs = append(errs, os.RemoveAll(file))
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
	if pods, _ := d.find(c.Ref); c.Shared && len(pods) > 1 {
		attached = nil // their containers see one file
	}
	errs := []error{err}
	devices := map[string][]kubeletplugin.Device{} // by request
	for _, n := range c.Networks {
		d := n.prepared()
		if i := slices.IndexFunc(attached, func(a attachment) bool { return a.device == n.device() }); i >= 0 {
			d.Metadata = &kubeletplugin.DeviceMetadata{NetworkData: attached[i].networkData()}
		}
		devices[n.Claim.Request] = append(devices[n.Claim.Request], d)
	}
	for _, request := range slices.Sorted(maps.Keys(devices)) {
		errs = append(errs, helper.UpdateRequestMetadata(ctx, c.Namespace, c.Name, types.UID(c.UID), resourceclaim.BaseRequestRef(request), devices[request]))
	}
	return errors.Join(errs...)
}
