package dra

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/metacni/metacni/delegate/kube"
	"github.com/metacni/metacni/netconf"
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
	networks []Offer
	network  func(ctx context.Context, name string) (netconf.Network, error)
	interval time.Duration
	log      *slog.Logger
	again    chan struct{} // has an element when a definition has changed

	mu        sync.Mutex // guards what follows
	published int
	withdrawn map[string]string // why, by device
}

func newOffers(c Config) *offers {
	return &offers{
		networks: c.Networks, network: c.Network, interval: cmp.Or(c.OfferInterval, offerInterval), log: c.logger(),
		again: make(chan struct{}, 1), withdrawn: make(map[string]string),
	}
}

// Offer publishes Config.Networks as devices that the scheduler can allocate to pods of this
// node, whenever that changes anything, until ctx ends. A network to which pods cannot be
// attached is withdrawn until they can; pods that have it keep it. What an earlier process has
// published stays until it is known whether all definitions exist, and after the end.
func (d *Driver) Offer(ctx context.Context) { d.offers.run(ctx, d.publish) }

// DefinitionChanged has [Driver.Offer] look at the networks again if r is one of them.
func (d *Driver) DefinitionChanged(r nad.Ref) { d.offers.changed(r) }

func (o *offers) changed(r nad.Ref) {
	named := func(n Offer) bool {
		ref, ok := n.definition()
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

// run publishes the networks until ctx ends.
func (o *offers) run(ctx context.Context, publish func(context.Context, []device) error) {
	var last []device
	for first := true; ; {
		pause := o.interval
		switch devices, err := o.look(ctx); {
		case ctx.Err() != nil:
			return
		case err != nil:
			o.log.DebugContext(ctx, "networks not published yet", "error", err)
			pause = 0
		case first || !slices.EqualFunc(ready(devices), last, same):
			if err := publish(ctx, devices); err != nil {
				o.log.WarnContext(ctx, "networks not published", "error", err)
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
	case <-time.After(min(offerPause, o.interval)): // many definitions may change at once
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

// look returns the devices as they are now. It fails if it is not known whether a definition
// exists.
func (o *offers) look(ctx context.Context) ([]device, error) {
	devices, errs := make([]device, len(o.networks)), make([]error, len(o.networks))
	turns := make(chan struct{}, offersAtOnce)
	var all sync.WaitGroup
	for i, n := range o.networks {
		all.Go(func() {
			turns <- struct{}{}
			defer func() { <-turns }()
			ctx, cancel := context.WithTimeout(ctx, offerTimeout)
			defer cancel()
			devices[i] = n.as(o.network(ctx, n.Network))
			if err := devices[i].err; errors.Is(err, kube.ErrNotSynced) {
				errs[i] = err
			}
		})
	}
	all.Wait()
	err := errors.Join(errs...)
	if err == nil && ctx.Err() == nil {
		o.note(ctx, devices)
	}
	return devices, err
}

// note counts devices, and logs which are withdrawn or offered again.
func (o *offers) note(ctx context.Context, devices []device) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.published = 0
	for _, d := range devices {
		said, was := o.withdrawn[d.name]
		if d.err == nil {
			o.published++
			if was {
				o.log.InfoContext(ctx, "network offered again", "device", d.name)
				delete(o.withdrawn, d.name)
			}
			continue
		}
		why := status.Error(d.err).Error()
		if why != said {
			o.log.WarnContext(ctx, "network not offered", "device", d.name, "error", why)
		}
		o.withdrawn[d.name] = why
	}
}

// counts returns how many devices are published, and how many are withdrawn.
func (o *offers) counts() (published, withdrawn int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.published, len(o.withdrawn)
}

// ready returns the devices that are not withdrawn.
func ready(devices []device) []device {
	return slices.DeleteFunc(slices.Clone(devices), func(d device) bool { return d.err != nil })
}

// same reports whether two devices are the same for the API.
func same(a, b device) bool {
	return a.name == b.name && a.exclusive == b.exclusive && maps.Equal(a.attributes, b.attributes)
}
