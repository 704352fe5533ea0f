package dra

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/go-logr/logr"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/klog/v2"

	"github.com/metacni/metacni/delegate/kube/internal/queue"
	"github.com/metacni/metacni/scratch"
)

// A Driver is a DRA driver whose devices are networks. The kubelet calls it before it creates
// a pod, and after the pod has ended. The methods of a nil Driver do nothing. Goroutines may
// share a Driver.
type Driver struct {
	config Config
	log    *slog.Logger
	client kubernetes.Interface // sends protobuf, see Attached
	writer *writer
	ctx    context.Context //nolint:containedctx // for reading the claims: no request need limit it
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu sync.Mutex // held while a claim is prepared

	serving sync.Mutex // held while service changes
	service service
	offers  *offers
	broken  chan error // what the helper cannot mend, at most one

	// requests is held for reading by requests of the kubelet. The helper does not wait for
	// those that run when it stops.
	requests sync.RWMutex
	stopped  bool
}

// Start starts a Driver, and registers it with the kubelet. It waits neither for the API server
// nor for a kubelet: while a socket cannot be made [Driver.Err] says why, and the Driver goes on
// trying, as it does for sockets that are lost later. It fails for a Config that can never work.
// The Driver ends with ctx, or with [Driver.Stop].
func Start(ctx context.Context, c Config) (*Driver, error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	c.Logger = cmp.Or(c.Logger, slog.New(slog.DiscardHandler))
	client, err := kubernetes.NewForConfigAndClient(c.View.REST())
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(klog.NewContext(ctx, logr.FromSlogHandler(c.Logger.Handler())))
	d := &Driver{config: c, log: c.Logger, client: client, ctx: context.WithoutCancel(ctx), cancel: cancel, broken: make(chan error, 1)}
	d.writer = &writer{driver: d, queue: queue.New[Ref](), failures: map[Ref]string{}, pending: map[Ref]bool{}}
	d.offers = newOffers(c)
	context.AfterFunc(ctx, d.writer.queue.ShutDown)
	d.serveIfLost(ctx)
	d.wg.Go(func() { d.keepServing(ctx) })
	d.wg.Go(func() { d.writer.run(ctx) })
	d.wg.Go(func() { d.sweepOften(ctx) })
	d.wg.Go(func() { d.offer(ctx) })
	c.View.OnDefinition(d.offers.changed)
	return d, nil
}

// Stop ends the Driver, and waits for its goroutines and for requests of the kubelet, whose
// contexts end. The kubelet does not unprepare anything for that: claims stay prepared for the
// next Driver with the same Dir. Stop may be called again.
func (d *Driver) Stop() {
	if d == nil {
		return
	}
	d.cancel()
	d.wg.Wait()
	d.service.helper.Stop()
	d.requests.Lock()
	defer d.requests.Unlock()
	d.stopped = true
}

// A plugin is what the helper calls.
type plugin struct{ *Driver }

// PrepareResourceClaims records what claims want. It makes no request and runs no plugin.
func (p plugin) PrepareResourceClaims(ctx context.Context, claims []*resourcev1.ResourceClaim) (map[types.UID]kubeletplugin.PrepareResult, error) {
	results := map[types.UID]kubeletplugin.PrepareResult{}
	for _, c := range claims {
		claim, err := p.prepare(ctx, c, "")
		if err != nil {
			p.log.WarnContext(ctx, "claim not prepared", "claim", c.Namespace+"/"+c.Name, "error", err)
		}
		result := kubeletplugin.PrepareResult{Err: err}
		for _, n := range claim.Networks {
			result.Devices = append(result.Devices, n.prepared())
		}
		results[c.UID] = result
	}
	return results, nil
}

// prepare records what a claim wants for a pod, or without one for each pod that it is reserved
// for: the kubelet asks once, and does not say for which pod. Then it fails only if the claim can be
// prepared for none of the pods; the ADD of a pod finds out whether it is prepared for that one. A
// record that is there is written again: an earlier attempt may have failed before it was safe.
func (d *Driver) prepare(ctx context.Context, c *resourcev1.ResourceClaim, pod string) (Claim, error) {
	claim, err := claimOf(c, d.config.Name)
	if err == nil {
		err = claim.check(d.config)
	}
	if err != nil {
		return Claim{}, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	var errs []error
	for _, user := range c.Status.ReservedFor {
		if pod == "" || string(user.UID) == pod {
			claim.Pod = string(user.UID)
			errs = append(errs, d.prepareFor(ctx, claim, c))
		}
	}
	if !slices.Contains(errs, nil) {
		return Claim{}, claim.failure(errors.Join(errs...))
	}
	return claim, nil
}

// prepareFor records what the claim c wants for the pod claim.Pod.
func (d *Driver) prepareFor(ctx context.Context, claim Claim, c *resourcev1.ResourceClaim) error {
	had, err := d.config.store().Get(claim.key())
	again := err == nil && slices.Equal(had.Value.Networks, claim.Networks)
	for other, err := range d.config.store().List(ctx) {
		switch {
		case err == nil && other.Key.Network != claim.UID:
			err = claim.conflict(other.Value.Claim)
		case other.Key.Network == claim.UID && !reservedFor(c, other.Key.ContainerID):
			err = d.free(ctx, claim, other.Key.ContainerID)
		case other.Key.Network == claim.UID: // put replaces it, also if it is damaged
			err = nil
		case again && other.Key != (scratch.Key{}):
			err = nil // it has its devices already
		}
		if err != nil { // a claim that cannot be read may have any device
			return err
		}
	}
	return d.put(ctx, claim)
}

// free forgets a claim for an earlier pod. The API server says that the claim is reserved for
// others now, and so the kubelet has lost the earlier one. It fails with errInUse while the
// earlier pod is attached.
func (d *Driver) free(ctx context.Context, claim Claim, pod string) error {
	earlier := claim.Ref
	earlier.Pod = pod
	if _, err := d.release(ctx, earlier, time.Time{}); err != nil {
		return fmt.Errorf("the pod with UID %s had it: %w", pod, err)
	}
	return nil
}

// prepared returns what the kubelet is told of the device of n.
func (n Network) prepared() kubeletplugin.Device {
	d := kubeletplugin.Device{Requests: []string{n.Claim.Request}, PoolName: n.Claim.Pool, DeviceName: n.Claim.Device}
	if n.Claim.Share != "" {
		d.ShareID = new(types.UID(n.Claim.Share))
	}
	return d
}

// UnprepareResourceClaims detaches what is still attached because of claims, and forgets them.
func (p plugin) UnprepareResourceClaims(ctx context.Context, claims []kubeletplugin.NamespacedObject) (map[types.UID]error, error) {
	results := map[types.UID]error{}
	for _, c := range claims {
		results[c.UID] = p.unprepare(ctx, c)
	}
	return results, nil
}

func (d *Driver) unprepare(ctx context.Context, c kubeletplugin.NamespacedObject) error {
	claim := Ref{UID: string(c.UID), Namespace: c.Namespace, Name: c.Name}
	err := d.releaseAll(ctx, claim)
	if err != nil {
		d.log.WarnContext(ctx, "claim not released", "claim", claim.String(), "error", err)
		return claim.failure(err)
	}
	return nil
}

// releaseAll detaches the pods of a claim and forgets it for all of them. It fails unless nothing
// is attached any more, or its DEL was given up, also where no record of the claim is left.
func (d *Driver) releaseAll(ctx context.Context, claim Ref) error {
	err := d.config.detach(ctx, claim)
	if err == nil {
		err = d.config.unattached(ctx, claim)
	}
	if err != nil {
		return err
	}
	refs, err := d.find(claim)
	for _, ref := range refs {
		if _, err := d.release(ctx, ref, time.Time{}); err != nil {
			return err
		}
	}
	return err
}

// HandleError logs errors of the helper that it tries to mend, such as those of ResourceSlices.
// After any other, such as that of a socket, another helper is started.
func (p plugin) HandleError(ctx context.Context, err error, msg string) {
	if errors.Is(err, kubeletplugin.ErrRecoverable) {
		p.log.WarnContext(ctx, "DRA driver: "+msg, "error", err)
		return
	}
	select {
	case p.broken <- fmt.Errorf("%s: %w", msg, err):
	default:
	}
}
