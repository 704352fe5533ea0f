package kube

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

const (
	syncLimit = 5 * time.Second // to wait for a view that has not synced
	waitLimit = 2 * time.Second // to wait for an object, by default
	liveLimit = 2 * time.Second // for a request on the path of a pod
)

// A part is a resource in a view: its watch, and what that has delivered.
type part[T any] struct {
	source  *source
	watched atomic.Bool // the watch has begun
	store   *store[T]
	maxAge  time.Duration // 0: any
	waits   waits
}

// waits counts the look-ups that had to wait.
type waits struct{ watch, live, none atomic.Uint64 }

func newPart[T any](ctx context.Context, v *View, r resource, keep func(any) (types.NamespacedName, T, bool)) *part[T] {
	p := &part[T]{store: newStore(keep), maxAge: v.config.MaxViewAge}
	p.source = &source{name: r.name, log: v.log, list: r.List, watch: r.Watch, epoch: v.transport.current, store: p.store, ctx: ctx}
	return p
}

// find returns the item with that key, if wanted accepts it. It waits until the part has
// synced, and then for limit until there is such an item. It fails if the part does not sync
// in time, is too old, or has ended.
func (p *part[T]) find(ctx context.Context, key types.NamespacedName, limit time.Duration, wanted func(T) bool) (item T, found bool, err error) {
	if err := p.awaitSync(ctx); err != nil {
		return item, false, err
	}
	if limit == 0 {
		limit = waitLimit
	}
	waiting, cancel := within(ctx, limit)
	defer cancel()
	for waited := false; ; waited = true {
		next := p.store.next()
		item, found := p.store.get(key)
		if found && wanted(item) {
			if waited {
				p.waits.watch.Add(1)
			}
			return item, true, nil
		}
		select {
		case <-next:
		case <-waiting.Done():
			return item, false, nil
		case <-p.source.ctx.Done():
			return item, false, p.unknown(nil)
		}
	}
}

// awaitSync waits until the part has synced. It fails if that takes too long, and if the part
// is too old.
func (p *part[T]) awaitSync(ctx context.Context) error {
	waiting, cancel := within(ctx, syncLimit)
	defer cancel()
	defer context.AfterFunc(p.source.ctx, cancel)() //nolint:contextcheck // it ends with the view as well
	if !p.store.awaitSync(waiting) {
		return p.unknown(ctx.Err())
	}
	if age := p.store.age(); p.maxAge > 0 && age > p.maxAge {
		return p.unknown(fmt.Errorf("the API server was last heard of %v ago, maxViewAge is %v", age.Round(time.Second), p.maxAge))
	}
	return nil
}

// unknown returns the error of a look-up that the part cannot answer. Without a why it is the
// reason why there is no watch.
func (p *part[T]) unknown(why error) error {
	if _, err := p.source.state(); why == nil {
		why = err
	}
	return because(ErrNotSynced, why)
}

// A Resource is the state of one resource that a [View] watches.
type Resource struct {
	Name    string        // as in a role, such as "pods"
	Synced  bool          // the View has been complete at least once, and answers look-ups
	Age     time.Duration // since the watch last delivered anything, or since Open
	Objects int

	// Look-ups that had to wait: the watch delivered the object in time, one request
	// found it, or neither did.
	WaitsWatch, WaitsLive, WaitsNone uint64
}

func (p *part[T]) resource() Resource {
	return Resource{
		Name: p.source.name, Synced: p.store.synced(), Age: p.store.age(), Objects: len(p.store.all()),
		WaitsWatch: p.waits.watch.Load(), WaitsLive: p.waits.live.Load(), WaitsNone: p.waits.none.Load(),
	}
}

// Resources returns what v watches, for metrics and readiness: definitions, and pods and
// ResourceSlices once their watch has begun, see [Config].
func (v *View) Resources() []Resource {
	all := []Resource{v.definitions.resource()}
	if v.pods != nil && v.pods.watched.Load() {
		all = append(all, v.pods.resource())
	}
	if v.slices != nil && v.slices.watched.Load() {
		all = append(all, v.slices.resource())
	}
	return all
}

// onRestored calls f when the database of the API server was replaced by an older copy, and v has
// noticed. f must not block. It may be called more than once.
func (v *View) onRestored(f func()) {
	if v.definitions != nil { // as in tests
		v.definitions.store.onRestored(f)
	}
	if v.pods != nil {
		v.pods.store.onRestored(f)
	}
}
