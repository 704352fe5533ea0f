package dra

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/metacni/metacni/netconf"
	"github.com/metacni/metacni/netconf/nad"
)

// A Ref names a claim and the pod that it is reserved for.
type Ref struct {
	UID       string // of the claim
	Namespace string // of the claim and the pod
	Name      string // of the claim
	Pod       string // the UID of the pod
}

// String returns "namespace/name".
func (r Ref) String() string { return r.Namespace + "/" + r.Name }

// A Claim is what a ResourceClaim wants of this node, as it was prepared.
type Claim struct {
	Ref
	Networks []Network // in the order of the allocation

	// Shared means that several pods may have the claim: it was not made for one pod.
	Shared bool `json:",omitempty"`
}

// A Network is one device of a claim: a network that the pod is to be attached to. Exactly one of
// Definition and Config is set.
type Network struct {
	// Claim is what the plugin records of the network, in the [nad.Origin] of the attachment.
	Claim nad.Claim

	// OfClass says that the opaque parameters are those of the DeviceClass, and not of the claim.
	OfClass bool

	// IfName is the name of the interface in the container. Empty leaves it to the plugin.
	IfName string

	// Definition is the NetworkAttachmentDefinition that has the network.
	Definition nad.Ref

	// Config is the JSON of the network, byte for byte as it is in the parameters.
	Config string
}

// Network returns the network in n.Config, which is not empty, with r.CNIVersion if it has no
// version. It fails as [netconf.Parse], [netconf.Network.Runnable] and [nad.Rules.Check] do.
func (n Network) Network(r nad.Rules) (netconf.Network, error) {
	network, err := netconf.Parse([]byte(n.Config))
	if err == nil {
		network, err = network.Complete("", r.CNIVersion)
	}
	if err == nil {
		err = network.Runnable()
	}
	if err == nil {
		err = r.Check(network)
	}
	if err != nil {
		return netconf.Network{}, fmt.Errorf("config: %w", err)
	}
	return network, nil
}

// A device names a device, or a share of one that has several. The driver is always the same.
type device struct{ pool, name, share string }

// device returns the device that is allocated to the request of n.
func (n Network) device() device { return device{n.Claim.Pool, n.Claim.Device, n.Claim.Share} }

// deviceOf returns the device of an object of the API.
func deviceOf[T ~string](pool, name string, share *T) device {
	d := device{pool: pool, name: name}
	if share != nil {
		d.share = string(*share)
	}
	return d
}

// String returns "pool/device", with the share if there is one.
func (d device) String() string {
	if d.share == "" {
		return d.pool + "/" + d.name
	}
	return d.pool + "/" + d.name + " (share " + d.share + ")"
}

// overlaps reports whether two claims cannot have d and e at the same time.
func (d device) overlaps(e device) bool {
	return d.pool == e.pool && d.name == e.name && (d.share == e.share || d.share == "" || e.share == "")
}

// claimOf returns what a ResourceClaim wants of the driver, for the first of the pods that it is
// reserved for. Every error is of kind errClaim.
func claimOf(c *resourcev1.ResourceClaim, driver string) (Claim, error) {
	claim := Claim{Ref: Ref{UID: string(c.UID), Namespace: c.Namespace, Name: c.Name}}
	fail := func(err error) (Claim, error) { return Claim{}, claim.failure(fmt.Errorf("%w: %w", errClaim, err)) }
	claim.Shared = !slices.ContainsFunc(c.OwnerReferences, func(o metav1.OwnerReference) bool { return o.Kind == "Pod" && o.APIVersion == "v1" })
	if len(c.Status.ReservedFor) == 0 {
		return fail(errors.New("reserved for 0 pods"))
	}
	for _, user := range c.Status.ReservedFor {
		if user.APIGroup != "" || user.Resource != "pods" {
			return fail(fmt.Errorf("reserved for one of %q, not for a pod", strings.TrimPrefix(user.APIGroup+"/"+user.Resource, "/")))
		}
		if !isUID(claim.UID) || !isUID(string(user.UID)) {
			return fail(errors.New("no usable UID"))
		}
	}
	claim.Pod = string(c.Status.ReservedFor[0].UID)
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
		d := deviceOf(result.Pool, result.Device, result.ShareID)
		n := Network{Claim: nad.Claim{UID: claim.UID, Name: c.Name, Request: result.Request, Pool: d.pool, Device: d.name, Share: d.share}}
		opaque, ofClass, err := configOf(result.Request, devices.Config, driver)
		if err == nil {
			n.OfClass = ofClass
			err = n.parse(opaque, c.Namespace)
		}
		if err != nil {
			return fail(fmt.Errorf("request %q: %w", result.Request, err))
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
			return found[0], source == resourcev1.AllocationConfigSourceClass, nil
		}
	}
	return nil, false, errors.New("no config, neither in the claim nor in its DeviceClass")
}

// check fails with errClaim if a network of c cannot be run or may not be used, or if two want the
// same device or interface.
func (c Claim) check(config Config) error {
	for i, n := range c.Networks {
		err := n.check(c.Namespace, config)
		for _, m := range c.Networks[:i] {
			if what := n.shared(m, true); what != "" && err == nil {
				err = fmt.Errorf("%s is that of request %q too", what, m.Claim.Request)
			}
		}
		if err != nil {
			return c.failure(fmt.Errorf("%w: request %q: %w", errClaim, n.Claim.Request, err))
		}
	}
	return nil
}

// check fails unless n can be run, and a claim of the given namespace may use it. A network that
// is written in a claim itself needs plugins of allowed types.
func (n Network) check(namespace string, config Config) error {
	if n.Config == "" {
		_, err := config.Policy.Decide(namespace, n.Definition, nad.UseClaimed)
		return err
	}
	_, err := n.Network(config.Rules)
	if err != nil || n.OfClass {
		return err
	}
	if len(config.AllowedTypes) == 0 {
		return errors.New("config: claims may have no networks of their own (allowedTypes): name a definition")
	}
	rules := config.Rules
	rules.Allowed = config.AllowedTypes
	_, err = n.Network(rules)
	return err
}

// conflict fails with errInUse if o, which is another claim, has a device or, for the same pod, an
// interface of c.
func (c Claim) conflict(o Claim) error {
	for _, n := range c.Networks {
		for _, m := range o.Networks {
			if what := n.shared(m, c.Pod == o.Pod); what != "" {
				return fmt.Errorf("%w: request %q: %s is that of claim %v", errInUse, n.Claim.Request, what, o.Ref)
			}
		}
	}
	return nil
}

// shared returns which device or, in the same pod, which interface n and m both want, or "".
func (n Network) shared(m Network, samePod bool) string {
	switch {
	case n.device().overlaps(m.device()):
		return "device " + n.device().String()
	case samePod && n.IfName != "" && n.IfName == m.IfName:
		return fmt.Sprintf("interface %q", n.IfName)
	}
	return ""
}

// reservedFor reports whether a claim is reserved for the pod with that UID.
func reservedFor(c *resourcev1.ResourceClaim, pod string) bool {
	return slices.ContainsFunc(c.Status.ReservedFor, func(r resourcev1.ResourceClaimConsumerReference) bool { return string(r.UID) == pod })
}

// isUID reports whether s can be the UID of an object. It can then be a part of the name of a
// file.
func isUID(s string) bool { return len(validation.IsDNS1123Label(strings.ToLower(s))) == 0 }
