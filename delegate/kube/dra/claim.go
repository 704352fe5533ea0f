package dra

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	resourcev1 "k8s.io/api/resource/v1"
)

// A Ref names a claim and the pod that it is reserved for.
type Ref struct {
	UID       string // of the claim
	Namespace string // of the claim and the pod
	Name      string // of the claim
	Pod       string // the UID of the pod
}

// String returns "namespace/name", or the UID of a claim whose name is not known.
func (r Ref) String() string {
	if r.Name == "" {
		return r.UID
	}
	return r.Namespace + "/" + r.Name
}

// A Claim is what a ResourceClaim wants of this node, as it was prepared.
type Claim struct {
	Ref
	PodName  string
	Networks []Network // in the order of the allocation
}

// A DeviceID says which device, or share of a device, is allocated to a request. The driver
// is always the same.
type DeviceID struct {
	Pool   string
	Device string
	Share  string // the shareID; empty for a device that is not shared
}

// String returns "pool/device", with the share if there is one.
func (d DeviceID) String() string {
	if d.Share == "" {
		return d.Pool + "/" + d.Device
	}
	return d.Pool + "/" + d.Device + " (share " + d.Share + ")"
}

// overlaps reports whether two claims cannot have d and e at the same time.
func (d DeviceID) overlaps(e DeviceID) bool {
	return d.Pool == e.Pool && d.Device == e.Device && (d.Share == e.Share || d.Share == "" || e.Share == "")
}

// A Network is one device of a claim: a network that the pod is to be attached to.
type Network struct {
	DeviceID

	// Request is the name of the request, with that of the subrequest after a slash if
	// there is one.
	Request string

	// Opaque are the opaque parameters, byte for byte as they are in the claim, and OfClass
	// says that they are those of its DeviceClass.
	Opaque  []byte
	OfClass bool
}

// Parameters parses n.Opaque, see [parseParameters]. namespace is that of the claim. It does
// not fail for a Network of a [Store].
func (n Network) Parameters(namespace string) (Parameters, error) {
	return parseParameters(n.Opaque, namespace)
}

// claimOf returns what a ResourceClaim wants of the driver. Every error is of kind [ErrClaim].
func claimOf(c *resourcev1.ResourceClaim, driver string) (Claim, error) {
	claim := Claim{Ref: Ref{UID: string(c.UID), Namespace: c.Namespace, Name: c.Name}}
	fail := func(err error) (Claim, error) { return Claim{}, claim.failure(fmt.Errorf("%w: %w", ErrClaim, err)) }
	if len(c.Status.ReservedFor) != 1 {
		return fail(fmt.Errorf("reserved for %d pods: a network can be that of one", len(c.Status.ReservedFor)))
	}
	user := c.Status.ReservedFor[0]
	if user.APIGroup != "" || user.Resource != "pods" {
		return fail(fmt.Errorf("reserved for one of %q, not for a pod", strings.TrimPrefix(user.APIGroup+"/"+user.Resource, "/")))
	}
	claim.Pod, claim.PodName = string(user.UID), user.Name
	if !isUID(claim.UID) || !isUID(claim.Pod) {
		return fail(errors.New("no usable UID"))
	}
	if c.Status.Allocation == nil {
		return fail(errors.New("not allocated"))
	}
	devices := c.Status.Allocation.Devices
	for _, result := range devices.Results {
		if result.Driver != driver {
			continue
		}
		if result.AdminAccess != nil && *result.AdminAccess {
			return fail(fmt.Errorf("request %q: admin access to a network means nothing", result.Request))
		}
		opaque, ofClass, err := configOf(result.Request, devices.Config, driver)
		if err != nil {
			return fail(fmt.Errorf("request %q: %w", result.Request, err))
		}
		n := Network{DeviceID: DeviceID{Pool: result.Pool, Device: result.Device}, Request: result.Request, Opaque: opaque, OfClass: ofClass}
		if result.ShareID != nil {
			n.Share = string(*result.ShareID)
		}
		claim.Networks = append(claim.Networks, n)
	}
	if len(claim.Networks) == 0 {
		return fail(fmt.Errorf("no device of driver %s is allocated", driver))
	}
	return claim, nil
}

// configOf returns the opaque parameters for a request: those of the claim, or else those of
// the DeviceClass. It fails if there are none, or several.
func configOf(request string, configs []resourcev1.DeviceAllocationConfiguration, driver string) (opaque []byte, ofClass bool, err error) {
	main, _, _ := strings.Cut(request, "/")
	for _, source := range []resourcev1.AllocationConfigSource{resourcev1.AllocationConfigSourceClaim, resourcev1.AllocationConfigSourceClass} {
		var found [][]byte
		for _, c := range configs {
			applies := len(c.Requests) == 0 || slices.Contains(c.Requests, request) || slices.Contains(c.Requests, main)
			if c.Source == source && applies && c.Opaque != nil && c.Opaque.Driver == driver {
				found = append(found, c.Opaque.Parameters.Raw)
			}
		}
		switch {
		case len(found) > 1:
			return nil, false, fmt.Errorf("%d configs, want one", len(found))
		case len(found) == 1:
			return slices.Clone(found[0]), source == resourcev1.AllocationConfigSourceClass, nil
		}
	}
	return nil, false, errors.New("no config, neither in the claim nor in its DeviceClass")
}

// check fails with [ErrClaim] if a network of c cannot be run or may not be used, or if two
// want the same device or interface.
func (c Claim) check(config Config) error {
	fail := func(n Network, err error) error {
		return c.failure(fmt.Errorf("%w: request %q: %w", ErrClaim, n.Request, err))
	}
	interfaces := map[string]bool{}
	for i, n := range c.Networks {
		p, err := n.Parameters(c.Namespace)
		if err == nil {
			err = p.check(c.Namespace, config.Policy, config.Rules)
		}
		if err == nil && p.Config != "" && !n.OfClass {
			err = p.checkOwn(config.Rules, config.AllowedTypes)
		}
		if err != nil {
			return fail(n, err)
		}
		if slices.ContainsFunc(c.Networks[:i], func(m Network) bool { return n.overlaps(m.DeviceID) }) {
			return fail(n, fmt.Errorf("device %v is another request's too", n.DeviceID))
		}
		if p.IfName != "" && interfaces[p.IfName] {
			return fail(n, fmt.Errorf("interface %q is another network's too", p.IfName))
		}
		interfaces[p.IfName] = true
	}
	return nil
}

// Claims returns the claims that are prepared for a pod, in the order of their UIDs. The ADD of
// the pod attaches it to their networks. It needs no Driver, only the Store, and the Policy,
// Rules and AllowedTypes.
//
// It fails as [Store.Pod] does, and with [ErrClaim] if one of the claims could not be prepared
// now: what pods may have can change between the request of the kubelet and the ADD.
func (c Config) Claims(podUID string) ([]Claim, error) {
	claims, err := c.Store.Pod(podUID)
	if err != nil {
		return nil, err
	}
	for _, claim := range claims {
		if err := claim.check(c); err != nil {
			return nil, err
		}
	}
	return claims, nil
}

// conflict fails with [ErrInUse] if another claim has a device or, for the same pod, an
// interface of c.
func (c Claim) conflict(others []Claim) error {
	for _, o := range others {
		if o.UID == c.UID {
			continue
		}
		for _, n := range c.Networks {
			i := slices.IndexFunc(o.Networks, func(m Network) bool {
				return n.overlaps(m.DeviceID) || c.Pod == o.Pod && sameInterface(n, m, c.Namespace)
			})
			if i < 0 {
				continue
			}
			what := "device " + n.String()
			if !n.overlaps(o.Networks[i].DeviceID) {
				what = "the interface"
			}
			return c.failure(fmt.Errorf("%w: request %q: %s is that of claim %v", ErrInUse, n.Request, what, o.Ref))
		}
	}
	return nil
}

// sameInterface reports whether two networks of a pod want an interface of the same name.
func sameInterface(n, m Network, namespace string) bool {
	p, err := n.Parameters(namespace)
	q, other := m.Parameters(namespace)
	return err == nil && other == nil && p.IfName != "" && p.IfName == q.IfName
}

// isUID reports whether s can be the UID of an object. It can then be a part of the name of a
// file.
func isUID(s string) bool {
	for _, r := range s {
		switch {
		case '0' <= r && r <= '9', 'a' <= r && r <= 'z', 'A' <= r && r <= 'Z', r == '-':
		default:
			return false
		}
	}
	return 0 < len(s) && len(s) <= 64
}
