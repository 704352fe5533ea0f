package kube

import (
	"context"
	"errors"
	"fmt"
	"strings"

	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
)

// A slice is what a View keeps of a ResourceSlice: devices of one driver's pool. Only
// the slices of the newest generation of a pool are valid.
type slice struct {
	driver, pool string
	generation   int64
	devices      map[string]map[string]string // by name, the attributes that are strings
}

// keepSlice returns what a store keeps of a ResourceSlice.
func keepSlice(object any) (types.NamespacedName, slice, bool) {
	o, ok := object.(*resourcev1.ResourceSlice)
	if !ok || o.Name == "" {
		return types.NamespacedName{}, slice{}, false
	}
	s := slice{
		driver: o.Spec.Driver, pool: o.Spec.Pool.Name, generation: o.Spec.Pool.Generation,
		devices: make(map[string]map[string]string, len(o.Spec.Devices)),
	}
	for _, d := range o.Spec.Devices {
		attributes := make(map[string]string)
		for name, a := range d.Attributes {
			if a.StringValue == nil {
				continue
			}
			qualified := string(name)
			if !strings.Contains(qualified, "/") { // the driver's own
				qualified = s.driver + "/" + qualified
			}
			attributes[qualified] = *a.StringValue
		}
		s.devices[d.Name] = attributes
	}
	return types.NamespacedName{Name: o.Name}, s, true
}

// DeviceAttributes returns the attributes of a device of Config.Node that a ResourceClaim
// can allocate: those in its ResourceSlice that are strings, under their qualified names. It
// returns nil for a device that no ResourceSlice of the node has. It is the Attributes of a
// client of package podresources.
//
// The View watches the ResourceSlices of the node from the first call on. It needs the right
// to list and watch them.
//
// DeviceAttributes fails with [ErrNotSynced] where the attributes cannot be known, for a
// View older than Config.MaxViewAge, and without Config.Node.
func (v *View) DeviceAttributes(ctx context.Context, driver, pool, name string) (map[string]string, error) {
	object := "device " + driver + "/" + pool + "/" + name
	if v.slices == nil {
		return nil, fmt.Errorf("%s: %w", object, because(ErrNotSynced, errors.New("the name of the node is needed to watch its devices")))
	}
	watchPart(v, v.slices, &resourcev1.ResourceSlice{})
	if err := v.slices.awaitSync(ctx); err != nil {
		return nil, fmt.Errorf("%s: %w", object, err)
	}
	var newest slice
	for _, s := range v.slices.store.all() {
		if s.driver != driver || s.pool != pool || s.generation < newest.generation {
			continue
		}
		if _, has := s.devices[name]; has || s.generation > newest.generation {
			newest = s
		}
	}
	return newest.devices[name], nil
}
