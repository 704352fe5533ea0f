package kubetest

import (
	"errors"
	"slices"

	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/client-go/kubernetes/scheme"
)

// SetClaim creates the ResourceClaim or replaces it, including its status, and returns a copy
// of the stored claim. UIDs and resource versions are as those of SetPod.
func (s *Server) SetClaim(c *resourcev1.ResourceClaim) *resourcev1.ResourceClaim {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer s.change()
	c = c.DeepCopy()
	s.put(resourceOf("resourceclaims"), c)
	return c.DeepCopy()
}

// Claim returns a copy of the ResourceClaim, nil if there is none.
func (s *Server) Claim(namespace, name string) *resourcev1.ResourceClaim {
	s.mu.Lock()
	defer s.mu.Unlock()
	c, ok := s.objects[key{"resourceclaims", namespace, name}].(*resourcev1.ResourceClaim)
	if !ok {
		return nil
	}
	return c.DeepCopy()
}

// DeleteClaim deletes the ResourceClaim, if there is one.
func (s *Server) DeleteClaim(namespace, name string) { s.delete("resourceclaims", namespace, name) }

// ResourceSlices returns copies of the ResourceSlices, sorted by name.
func (s *Server) ResourceSlices() []resourcev1.ResourceSlice {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []resourcev1.ResourceSlice
	for _, o := range s.list(func(object) bool { return true }, "resourceslices") {
		if l, ok := o.(*resourcev1.ResourceSlice); ok {
			all = append(all, *l.DeepCopy())
		}
	}
	return all
}

// decode decodes the body of a request.
func decode(o object, contentType string, body []byte, res resource) error {
	kind := res.gvk()
	info, ok := runtime.SerializerInfoForMediaType(scheme.Codecs.SupportedMediaTypes(), contentType)
	if !ok || !res.typed() && info.MediaType != runtime.ContentTypeJSON {
		return unsupported(contentType)
	}
	if _, _, err := info.Serializer.Decode(body, &kind, o); err != nil {
		return apierrors.NewBadRequest(err.Error())
	}
	return nil
}

// updatable reports whether the server implements updates (PUT).
func (r resource) updatable(status bool) bool {
	return r.Resource == "resourceclaims" && status || r.Resource == "resourceslices" && !status
}

// patchable reports whether the server implements patches.
func (r resource) patchable(status bool) bool {
	switch r.Resource {
	case "pods":
		return true
	case "nodes", "network-attachment-definitions":
		return !status
	}
	return false
}

// clusterScoped reports whether the objects have no namespace.
func (r resource) clusterScoped() bool {
	return r.Resource == "nodes" || r.Resource == "resourceslices"
}

// keepClaim does what keep does, for the status of claims.
func keepClaim(o, old *resourcev1.ResourceClaim) field.ErrorList {
	o.Spec = *old.Spec.DeepCopy()
	path := field.NewPath("status")
	var errs field.ErrorList
	if old.Status.Allocation != nil && o.Status.Allocation != nil && !equality.Semantic.DeepEqual(o.Status.Allocation, old.Status.Allocation) {
		errs = append(errs, field.Invalid(path.Child("allocation"), nil, "field is immutable"))
	}
	for i, d := range o.Status.Devices {
		if o.Status.Allocation == nil || !slices.ContainsFunc(o.Status.Allocation.Devices.Results, func(r resourcev1.DeviceRequestAllocationResult) bool {
			return r.Driver == d.Driver && r.Pool == d.Pool && r.Device == d.Device && equality.Semantic.DeepEqual((*string)(r.ShareID), d.ShareID)
		}) {
			errs = append(errs, field.Invalid(path.Child("devices").Index(i), nil, "must be an allocated device in the claim"))
		}
		if d.Data != nil && len(d.Data.Raw) > resourcev1.AllocatedDeviceStatusDataMaxLength {
			errs = append(errs, field.TooLong(path.Child("devices").Index(i).Child("data"), nil, resourcev1.AllocatedDeviceStatusDataMaxLength))
		}
		if d.NetworkData != nil && len(d.NetworkData.IPs) > resourcev1.NetworkDeviceDataMaxIPs {
			errs = append(errs, field.TooMany(path.Child("devices").Index(i).Child("networkData", "ips"), len(d.NetworkData.IPs), resourcev1.NetworkDeviceDataMaxIPs))
		}
	}
	return errs
}

var errModified = errors.New("the object has been modified; please apply your changes to the latest version and try again")
