package cluster

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/metacni/metacni/delegate/kube"
	"github.com/metacni/metacni/delegate/kube/dra"
	"github.com/metacni/metacni/netconf/nad"
	"github.com/metacni/metacni/status"
)

const (
	offerInterval = 30 * time.Second // between two looks at all networks
	offerPause    = time.Second      // after each, whatever happens
	offerTimeout  = 10 * time.Second // for the STATUS of a network
	offersAtOnce  = 2                // whose STATUS is asked for
)

// offers are the networks that the node offers as devices. One that pods cannot be attached to
// is withdrawn until they can: its definition does not exist or cannot be used, or its STATUS
// fails.
type offers struct {
	cluster  *Cluster
	networks []dra.Offer
	again    chan struct{} // has an element when a definition has changed

	mu        sync.Mutex // guards what follows
	published int
	withdrawn map[string]string // why, by device
}

func newOffers(c *Cluster) *offers {
	return &offers{cluster: c, networks: c.conf.DRA.Networks, again: make(chan struct{}, 1), withdrawn: make(map[string]string)}
}

// changed has the networks looked at again if r is one of them.
func (o *offers) changed(r nad.Ref) {
	named := func(n dra.Offer) bool {
		ref, ok := n.Definition()
		return ok && ref == r
	}
	if !slices.ContainsFunc(o.networks, named) {
		return
	}
	select {
	case o.again <- struct{}{}:
	default:
	}
}

// run publishes the networks whenever that changes anything, until ctx ends. It begins when the
// daemon serves ADDs: resident plugins have been launched then.
func (o *offers) run(ctx context.Context, publish func(context.Context, []dra.Device) error) {
	select {
	case <-ctx.Done():
		return
	case <-o.cluster.ready:
	}
	var last []dra.Device
	first := true
	for {
		pause := offerInterval
		switch devices, err := o.look(ctx); {
		case ctx.Err() != nil:
			return
		case err != nil:
			// It is not known whether a network exists. What an earlier daemon has
			// published stays until it is.
			o.cluster.log.LogAttrs(ctx, slog.LevelDebug, "networks not published yet", slog.Any("error", err))
			pause = 0
		case first || !slices.EqualFunc(ready(devices), last, same):
			if err := publish(ctx, devices); err != nil {
				o.cluster.log.LogAttrs(ctx, slog.LevelWarn, "networks not published", slog.Any("error", err))
				break
			}
			last, first = ready(devices), false
		}
		if !o.wait(ctx, pause) {
			return
		}
	}
}

// wait waits until the networks are to be looked at again. It reports false if ctx has ended.
func (o *offers) wait(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(offerPause): // many definitions may change at once
	}
	if d == 0 {
		return true
	}
	select {
	case <-ctx.Done():
		return false
	case <-o.again:
	case <-time.After(d):
	}
	return true
}

// look returns the devices as they are now. It fails if the cluster does not tell whether a
// definition exists.
func (o *offers) look(ctx context.Context) ([]dra.Device, error) {
	devices, errs := make([]dra.Device, len(o.networks)), make([]error, len(o.networks))
	turns := make(chan struct{}, offersAtOnce)
	var all sync.WaitGroup
	for i, n := range o.networks {
		all.Go(func() {
			select {
			case turns <- struct{}{}:
				defer func() { <-turns }()
			case <-ctx.Done():
				errs[i] = ctx.Err()
				return
			}
			devices[i] = o.device(ctx, n)
			if err := devices[i].Err; errors.Is(err, kube.ErrNotSynced) {
				errs[i] = err
			}
		})
	}
	all.Wait()
	err := errors.Join(errs...)
	if err == nil {
		o.note(ctx, devices)
	}
	return devices, err
}

// device returns the device of n as it is now.
func (o *offers) device(ctx context.Context, n dra.Offer) dra.Device {
	ctx, cancel := context.WithTimeout(ctx, offerTimeout)
	defer cancel()
	c := o.cluster
	asked := c.Multinet()
	asked.Definition = func(ctx context.Context, r nad.Ref, _ nad.Use) (nad.Definition, error) {
		return c.view.KnownDefinition(ctx, r)
	}
	network, err := c.plugin.Status(ctx, n.Network, asked)
	return n.As(network, err)
}

// note counts devices, and logs which are withdrawn or offered again.
func (o *offers) note(ctx context.Context, devices []dra.Device) {
	o.mu.Lock()
	defer o.mu.Unlock()
	log := o.cluster.log
	o.published = 0
	for _, d := range devices {
		said, was := o.withdrawn[d.Name]
		if d.Err == nil {
			o.published++
			if was {
				log.LogAttrs(ctx, slog.LevelInfo, "network offered again", slog.String("device", d.Name))
				delete(o.withdrawn, d.Name)
			}
			continue
		}
		why := status.Error(d.Err).Error()
		if why != said {
			log.LogAttrs(ctx, slog.LevelWarn, "network not offered", slog.String("device", d.Name), slog.String("error", why))
		}
		o.withdrawn[d.Name] = why
	}
}

// counts returns how many devices are published, and how many are withdrawn.
func (o *offers) counts() (published, withdrawn int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.published, len(o.withdrawn)
}

// ready returns the devices that are not withdrawn.
func ready(devices []dra.Device) []dra.Device {
	return slices.DeleteFunc(slices.Clone(devices), func(d dra.Device) bool { return d.Err != nil })
}

// same reports whether two devices are the same for the API.
func same(a, b dra.Device) bool {
	return a.Name == b.Name && a.Exclusive == b.Exclusive && maps.Equal(a.Attributes, b.Attributes)
}
