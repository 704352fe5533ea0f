package dra

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/resourceslice"

	"github.com/metacni/metacni/delegate/kube"
	"github.com/metacni/metacni/netconf/nad"
	"github.com/metacni/metacni/status"
)

const (
	offerInterval = 30 * time.Second // between two looks at all networks
	offerPause    = time.Second      // after each, whatever happens
	offerTimeout  = 10 * time.Second // for each call of Config.Network
	offersAtOnce  = 2                // of which Config.Network is called
)

// offers are the networks that the node offers as devices.
type offers struct {
	config   Config
	interval time.Duration
	log      *slog.Logger
	again    chan struct{} // has an element when a definition has changed

	mu        sync.Mutex // guards what follows
	published int
	withdrawn map[string]string // why, by device
}

func newOffers(c Config) *offers {
	return &offers{
		config: c, interval: cmp.Or(c.OfferInterval, offerInterval), log: c.Logger,
		again: make(chan struct{}, 1), withdrawn: make(map[string]string),
	}
}

// offer publishes Config.Networks, whenever that changes anything, until ctx ends.
func (d *Driver) offer(ctx context.Context) {
	if d.config.Ready != nil {
		select {
		case <-d.config.Ready:
		case <-ctx.Done():
			return
		}
	}
	d.offers.run(ctx, d.publish)
}

// changed has the networks looked at again if the definition r is one of them.
func (o *offers) changed(r nad.Ref) {
	named := func(n Offer) bool {
		ref, ok := n.definition()
		return ok && ref == r
	}
	if !slices.ContainsFunc(o.config.Networks, named) {
		return
	}
	select {
	case o.again <- struct{}{}:
	default:
	}
}

// run publishes the networks until ctx ends. publish does nothing if nothing has changed.
func (o *offers) run(ctx context.Context, publish func(context.Context, []resourcev1.Device) error) {
	for {
		devices, unknown := o.look(ctx)
		switch {
		case ctx.Err() != nil:
			return
		case unknown != nil:
			o.log.DebugContext(ctx, "networks not published yet", "error", unknown)
		default:
			if err := publish(ctx, devices); err != nil {
				o.log.WarnContext(ctx, "networks not published", "error", err)
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(min(offerPause, o.interval)): // many definitions may change at once
		}
		if unknown != nil {
			continue
		}
		select {
		case <-ctx.Done():
			return
		case <-o.again:
		case <-time.After(o.interval):
		}
	}
}

// look returns the devices as they are now, without those that are withdrawn. It fails if it is
// not known whether a definition exists.
func (o *offers) look(ctx context.Context) ([]resourcev1.Device, error) {
	devices, errs := make([]resourcev1.Device, len(o.config.Networks)), make([]error, len(o.config.Networks))
	var all errgroup.Group
	all.SetLimit(offersAtOnce)
	for i, n := range o.config.Networks {
		all.Go(func() error {
			ctx, cancel := context.WithTimeout(ctx, offerTimeout)
			defer cancel()
			network, err := o.config.Network(ctx, n.Network)
			devices[i], errs[i] = n.device(network), err
			if errors.Is(err, kube.ErrNotSynced) {
				return err
			}
			return nil
		})
	}
	if err := cmp.Or(all.Wait(), ctx.Err()); err != nil {
		return nil, err
	}
	return o.ready(ctx, devices, errs), nil
}

// ready returns the devices without an error. It counts them, and logs which are withdrawn or
// offered again.
func (o *offers) ready(ctx context.Context, devices []resourcev1.Device, errs []error) []resourcev1.Device {
	o.mu.Lock()
	defer o.mu.Unlock()
	var ready []resourcev1.Device
	for i, d := range devices {
		said, was := o.withdrawn[d.Name]
		if errs[i] == nil {
			ready = append(ready, d)
			if was {
				o.log.InfoContext(ctx, "network offered again", "device", d.Name)
				delete(o.withdrawn, d.Name)
			}
			continue
		}
		why := status.Error(errs[i]).Error()
		if why != said {
			o.log.WarnContext(ctx, "network not offered", "device", d.Name, "error", why)
		}
		o.withdrawn[d.Name] = why
	}
	o.published = len(ready)
	return ready
}

// counts returns how many devices are published, and how many are withdrawn.
func (o *offers) counts() (published, withdrawn int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.published, len(o.withdrawn)
}

// publish makes these the devices that the scheduler can allocate to pods of this node, in
// ResourceSlices of one pool that has the name of the node. It replaces those of the last call,
// and makes no request if they are the same. It does not wait for the API server: the Driver
// tries for as long as it runs. ResourceSlices stay when the Driver ends.
func (d *Driver) publish(ctx context.Context, devices []resourcev1.Device) error {
	devices = slices.SortedFunc(slices.Values(devices), func(a, b resourcev1.Device) int { return strings.Compare(a.Name, b.Name) })
	pool := resourceslice.Pool{}
	for some := range slices.Chunk(devices, resourcev1.ResourceSliceMaxDevices) {
		pool.Slices = append(pool.Slices, resourceslice.Slice{Devices: some})
	}
	if len(devices) == 0 {
		pool.Slices = []resourceslice.Slice{{}} // says that the node has no device
	}
	d.serving.Lock()
	defer d.serving.Unlock()
	d.service.published = &resourceslice.DriverResources{Pools: map[string]resourceslice.Pool{d.config.Node: pool}}
	if d.service.helper == nil {
		return nil // the next one does it
	}
	return d.service.helper.PublishResources(ctx, *d.service.published)
}
