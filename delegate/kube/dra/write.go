package dra

import (
	"context"
	"errors"
	"io/fs"
	"slices"
	"sync"
	"time"

	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/metacni/metacni/delegate/kube/internal/apierr"
	"github.com/metacni/metacni/delegate/kube/internal/queue"
)

const (
	requestTimeout = 10 * time.Second // for each request of the writer
	resumeInterval = time.Second / 10 // between two claims after the start
	writesAtATime  = 8                // a few slow answers delay no other claim
)

// Attached says that what a pod is attached to because of its claims has changed: an ADD, a
// DEL, or an attempt that has failed with err. It does not block. The status of each claim
// becomes what Config.Records say then: every device has the condition Ready, and an
// attached one its interface, its addresses, and the CNI result if that has at most 10 KiB. A
// claim that is not reserved for the pod any more is left alone.
//
// The status is updated, not applied: an API server takes an applied claim for changed where
// its opaque parameters are not in canonical JSON, and refuses it. A request that fails is
// tried again, after a pause that grows to 30 s, for as long as the claim is prepared; one
// that is refused, such as for want of a right, after up to 10 minutes.
func (d *Driver) Attached(podUID string, err error) {
	if d == nil {
		return
	}
	claims, e := d.prepared(podUID)
	if e != nil {
		d.log.Warn("status of claims not complete", "pod", podUID, "error", e)
	}
	failure := ""
	if err != nil {
		failure = err.Error()
	}
	w := d.writer
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range claims {
		w.failures[c.Ref], w.pending[c.Ref] = failure, true
		w.queue.Add(c.Ref)
	}
}

// Refresh has the status of all claims written again where it is not what Config.Records
// say: what pods are attached to may have changed, as by a sweep of the plugin's records. It
// does not block. The texts of failed attempts stay.
func (d *Driver) Refresh() {
	if d == nil {
		return
	}
	claims, err := d.all()
	if err != nil {
		d.log.Warn("status of claims not refreshed", "error", err)
	}
	for _, c := range claims {
		d.writer.queue.Add(c.Ref)
	}
}

// Stats say how a [Driver] is doing.
type Stats struct {
	Prepared int    // claims
	Pending  int    // claims whose status is not known to be written
	Written  uint64 // updates of a status that have succeeded
	Refused  uint64 // attempts that the API server has refused
	Failed   uint64 // attempts that have failed for another reason, conflicts among them

	Offered, Withdrawn int // Config.Networks
}

// Stats returns the state of the Driver. It reads Config.Dir. Claims are not counted if that is
// not possible.
func (d *Driver) Stats() Stats {
	if d == nil {
		return Stats{}
	}
	claims, _ := d.all() // whoever uses them reports errors
	w := d.writer
	w.mu.Lock()
	defer w.mu.Unlock()
	s := w.stats
	s.Prepared, s.Pending = len(claims), len(w.pending)
	s.Offered, s.Withdrawn = d.offers.counts()
	return s
}

// A writer writes the status of claims. It is level-triggered.
type writer struct {
	driver *Driver
	queue  *queue.Queue[Ref]

	mu       sync.Mutex
	failures map[Ref]string // why the last attempt to attach has failed
	pending  map[Ref]bool   // status not known to be written
	stats    Stats          // without what Stats counts
}

// forget forgets a claim that is not prepared any more.
func (w *writer) forget(r Ref) {
	w.queue.Forget(r)
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.failures, r)
}

// run writes until ctx ends, and the queue with it. It begins with the claims that an earlier
// process has prepared.
func (w *writer) run(ctx context.Context) {
	claims, err := w.driver.all()
	if err != nil {
		w.driver.log.WarnContext(ctx, "prepared claims not read", "error", err)
	}
	for i, c := range claims {
		w.mu.Lock()
		w.pending[c.Ref] = true
		w.mu.Unlock()
		w.queue.AddAfter(c.Ref, time.Duration(i)*resumeInterval)
	}
	w.queue.Run(writesAtATime, func(ref Ref) { w.attempt(ctx, ref) })
}

// attempt makes the status of a claim what the records say, or plans the next attempt.
func (w *writer) attempt(ctx context.Context, ref Ref) {
	err := w.write(ctx, ref)
	if ctx.Err() != nil {
		return // the next process does it
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case err == nil:
		delete(w.pending, ref)
		w.queue.Forget(ref)
		return
	case apierr.Refused(err):
		w.stats.Refused++
		w.driver.log.WarnContext(ctx, "status of a claim refused", "claim", ref.String(), "error", err)
		w.queue.Retry(ref, true, 0)
	default:
		w.stats.Failed++
		w.driver.log.DebugContext(ctx, "status of a claim not written yet", "claim", ref.String(), "error", err)
		w.queue.Retry(ref, false, apierr.Delay(err, 10*time.Minute))
	}
	w.pending[ref] = true
}

// write makes the status of a claim what the records say, unless it is that already, or
// neither the records nor the API server know of any attachment. It leaves a claim alone that
// is not reserved for the pod any more: the status is that of a later pod, perhaps of another
// node.
func (w *writer) write(ctx context.Context, ref Ref) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	config := w.driver.config
	claim, err := config.store().Get(ref.key())
	if errors.Is(err, fs.ErrNotExist) {
		w.forget(ref)
		return nil
	}
	if err != nil {
		return err
	}
	w.mu.Lock()
	failure, changed := w.failures[ref]
	w.mu.Unlock()
	of := ref
	if claim.Value.Shared {
		of.Pod = "" // it has one status
	}
	attached, err := config.attached(ctx, of) // later than changed: an ADD meanwhile queues the claim again
	if err != nil {
		return err
	}
	object, err := w.driver.get(ctx, ref)
	if err != nil || object == nil || !reservedFor(object, ref.Pod) {
		return err
	}
	ours := func(s resourcev1.AllocatedDeviceStatus) bool { return s.Driver == config.Name }
	if !changed && len(attached) == 0 && !slices.ContainsFunc(object.Status.Devices, ours) {
		return nil // prepared by an earlier process, and not attached yet
	}
	devices := desired(object, config.Name, claim.Value.Claim, attached, failure)
	if equality.Semantic.DeepEqual(devices, object.Status.Devices) {
		return nil
	}
	object.Status.Devices = devices
	_, err = w.driver.client.ResourceV1().ResourceClaims(ref.Namespace).UpdateStatus(ctx, object, metav1.UpdateOptions{})
	if apierr.None(err) {
		return nil
	}
	if err == nil {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.stats.Written++
	}
	return err
}
