package kube

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/metacni/metacni/delegate/kube/internal/queue"
	"github.com/metacni/metacni/netconf/nad"
)

// A Status is what the records of one sandbox say about the networks of its pod. The
// zero Status is that of a sandbox without records: nothing is written for it.
type Status struct {
	// Annotation is the text of the annotation, see [status.Annotation].
	Annotation string

	// Created is the time at which the sandbox was attached. A pod can have two sandboxes while
	// the kubelet replaces one: the status is that of the newest that is attached.
	Created time.Time

	// Static means that the pod is a static one, see [nad.Origin]. Its status is
	// written to its mirror.
	Static bool

	// IfWritten means that the Annotation is written only in place of an earlier
	// one of the same pod.
	IfWritten bool

	// Trimmed means that the Annotation is not complete, because it would be too
	// long. An Event says so.
	Trimmed bool
}

// A StatusPolicy says whether an ADD waits for its status.
type StatusPolicy string

// The policies.
const (
	// StatusWait waits for a while, and goes on whatever becomes of the status. It
	// does not wait while the API server is known to be away. The empty policy is
	// StatusWait too.
	StatusWait StatusPolicy = "wait"

	// StatusAsync does not wait: the status is written after the Delay.
	StatusAsync StatusPolicy = "async"

	// StatusRequire fails unless the status is written in time.
	StatusRequire StatusPolicy = "require"
)

// A StatusConfig says what a [StatusWriter] writes, and when.
type StatusConfig struct {
	// Desired returns the Status of the sandbox pod.Container as it is now,
	// computed from its records and nothing else. The zero Status means that there
	// are none, or that nothing is to be written for it. It is called at any
	// time, by several goroutines, and again after it has failed.
	Desired func(ctx context.Context, pod nad.Pod) (Status, error)

	// Policy says whether an ADD waits. Empty means StatusWait.
	Policy StatusPolicy

	// Timeout limits how long [StatusWriter.Wait] waits. 0 means 1 s.
	Timeout time.Duration

	// Delay is how long a status that no ADD waits for is held back, so that the ADD has
	// the processors for itself. A container that is removed before needs no status.
	Delay time.Duration

	// Rate limits the requests per second. 0 means 50. A request that an ADD waits
	// for is not held back by it; others make up for it. At most eight requests are
	// under way at a time, whoever waits for them.
	Rate float64

	// Writing, if not nil, is called before each request that writes a status, with the
	// values of the context with which Wait was called last for that pod, which may have
	// returned. It returns a function that is called with nil or an error when the request has
	// ended. It must not block, and several goroutines may call it at the same time.
	Writing func(ctx context.Context, pod nad.Pod) func(err error)

	// Outdated, if not nil, is told of an object that the API server has of a pod without the
	// status that was written for its records, before that is written again. The Annotations of
	// the object may be older than the records: their database was replaced by an older copy,
	// or somebody else has overwritten the status. An annotation that stays as it is says
	// nothing about the records from then on, also in the next process. Outdated must not
	// block, nor call the writer.
	Outdated func(pod nad.Pod, object Pod)

	// Events gets what people should know of: a status that the API server refuses,
	// that somebody else overwrites, or that is not complete. It may be nil.
	Events *Events
}

// A StatusWriter writes the annotation k8s.v1.cni.cncf.io/network-status of pods. It is
// level-triggered: whoever changes the records of a sandbox calls [StatusWriter.Changed]
// or [StatusWriter.Wait], and the writer makes the annotation what the records say then.
// It sends no request if it has written the same before.
//
// Each status is one patch of pods/status that names the UID of the pod, so that it
// cannot hit another pod of the same name, and needs no right but to patch pods/status. A
// request that fails is tried again for as long as there are records, after a pause that
// grows to 30 s, and as soon as the API server has answered another one. A pod that has gone
// is forgotten.
//
// Goroutines may share a StatusWriter. It does nothing before [StatusWriter.Run], which is
// to be called once.
type StatusWriter struct {
	config  StatusConfig
	view    *View
	queue   *queue.Queue[nad.Pod]
	limiter *rate.Limiter
	tell    rate.Sometimes // of refusals
	ended   chan struct{}  // closed when Run returns

	mu       sync.Mutex // protects what follows
	pods     map[nad.Pod]*podStatus
	stats    StatusStats
	answered time.Time // when a request was begun that the API server has answered
	away     bool      // it has not answered lately
}

// A stage is how far the status of a pod is. Only write leaves due and unheard for sending, by
// way of paced, and only attempt ends in idle.
type stage int

const (
	idle    stage = iota // there is nothing to do
	due                  // to be written, or to be tried again
	paced                // the limiter has given it a time
	sending              // a request is under way
	unheard              // the last request was not answered: to be tried again when another one is
)

// A podStatus is what the writer knows of a pod.
type podStatus struct {
	stage     stage
	since     time.Time       // when it was idle last
	sandboxes []string        // that may have records
	waiting   []chan error    // to be told what becomes of the next attempt
	asked     context.Context //nolint:containedctx // the values of the last one with which somebody asked; nil when idle

	// What was written last.
	text    string // "" if it is not what the API server has
	sent    string // in the last request, whatever has become of it
	version string // the pod's resourceVersion then; "" if nothing was written
	written time.Time

	inherited *Status // that another process, or another database, should have; nil if that is known
	successor bool    // it is another process, which may have ended before it wrote the status
	late      bool    // the View may show an older database

	contested bool // somebody else has written too, and an Event has said so
}

// NewStatusWriter returns a StatusWriter for the cluster of v. If v watches pods, the
// writer also repairs what others write, at most every 30 s.
func (v *View) NewStatusWriter(c StatusConfig) *StatusWriter {
	w := &StatusWriter{
		config:  c,
		view:    v,
		queue:   queue.New[nad.Pod](),
		limiter: rate.NewLimiter(rate.Limit(cmp.Or(c.Rate, 50)), 1),
		tell:    rate.Sometimes{Interval: tellInterval},
		ended:   make(chan struct{}),
		pods:    map[nad.Pod]*podStatus{},
	}
	context.AfterFunc(v.ctx, w.queue.ShutDown) // which has a goroutine, even without Run
	return w
}

// Run writes until ctx or the View ends. It returns when all its goroutines have ended. What has not
// been written then is left to the next process, see [StatusWriter.Resume].
func (w *StatusWriter) Run(ctx context.Context) {
	defer close(w.ended)
	ctx, cancel := context.WithCancel(ctx)
	defer context.AfterFunc(w.view.ctx, cancel)() //nolint:contextcheck // either ends Run
	defer context.AfterFunc(ctx, w.queue.ShutDown)()
	defer cancel()
	w.view.OnPod(func(p Pod) {
		if ctx.Err() == nil {
			w.repair(p)
		}
	})
	w.view.onRestored(func() {
		if ctx.Err() == nil {
			w.restored()
		}
	})
	w.queue.Run(requestsAtATime, func(pod nad.Pod) {
		if ctx.Err() == nil {
			w.attempt(ctx, pod)
		}
	})
}

// Changed says that the records of the sandbox pod.Container have changed, or have been
// removed. It does not block. pod.Container is what Desired is asked for. A container
// outside of Kubernetes, without a namespace and a name of a pod, is ignored.
func (w *StatusWriter) Changed(pod nad.Pod) { w.change(w.view.ctx, pod, nil, 0) }

// Resume says which sandboxes had records when the process started. What the View does
// not show to be right already is written, ten pods a second. A pod whose records change
// meanwhile does not wait for its turn.
func (w *StatusWriter) Resume(pods []nad.Pod) {
	var ids []nad.Pod
	for _, pod := range pods {
		if !pod.Valid() {
			continue
		}
		w.note(w.view.ctx, pod, nil)
		if id := identity(pod); !slices.Contains(ids, id) {
			ids = append(ids, id)
		}
	}
	for turn, id := range ids {
		w.inherits(id)
		w.queue.AddAfter(id, time.Duration(turn)*time.Second/10)
	}
}

// Wait says the same as Changed. Then it waits until the status is written, as the policy
// says. It returns nil at once for a container outside of Kubernetes, and as soon as there
// is nothing to be written, such as for a pod that has gone.
//
// With [StatusRequire] it fails with CNI code 11 if the status was not written in time, was
// refused, or Run has ended. With the other policies it never fails.
func (w *StatusWriter) Wait(ctx context.Context, pod nad.Pod) error {
	if !pod.Valid() || w.config.Policy == StatusAsync || w.config.Policy != StatusRequire && w.isAway() {
		w.change(ctx, pod, nil, w.config.Delay)
		return nil
	}
	result := make(chan error, 1)
	w.change(ctx, pod, result, 0)
	ctx, cancel := context.WithTimeoutCause(ctx, cmp.Or(w.config.Timeout, time.Second), errSlow)
	defer cancel()
	var err error
	select {
	case err = <-result:
	case <-ctx.Done():
		err = context.Cause(ctx)
		w.leave(ctx, pod, result)
	case <-w.ended:
		err = context.Canceled
	}
	if err == nil || w.config.Policy != StatusRequire {
		return nil
	}
	return fmt.Errorf("pod %s: %w", pod, because(errNotWritten, err))
}

// A StatusStats counts what a [StatusWriter] has done.
type StatusStats struct {
	Written     uint64 // requests that wrote a status
	Gone        uint64 // requests for a pod that has gone
	Refused     uint64 // requests that the API server will refuse until somebody changes something
	Failed      uint64 // requests that failed otherwise
	Overwritten uint64 // statuses that somebody else changed

	Pending int           // pods whose status is not known to be written
	Lag     time.Duration // for how long that is so for the first of them
}

// Stats returns the counts up to now.
func (w *StatusWriter) Stats() StatusStats {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := w.stats
	for _, p := range w.pods {
		if p.stage != idle {
			s.Pending++
			s.Lag = max(s.Lag, time.Since(p.since))
		}
	}
	return s
}

// identity returns what the sandboxes of a pod have in common.
func identity(pod nad.Pod) nad.Pod {
	pod.Container = ""
	return pod
}

// change notes that a pod has something to do, and does it after delay.
func (w *StatusWriter) change(ctx context.Context, pod nad.Pod, waiting chan error, delay time.Duration) {
	if pod.Valid() {
		w.note(ctx, pod, waiting)
		w.queue.AddAfter(identity(pod), delay)
	}
}

// note notes that a pod has something to do.
func (w *StatusWriter) note(ctx context.Context, pod nad.Pod, waiting chan error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	p := w.pods[identity(pod)]
	if p == nil {
		p = &podStatus{}
		w.pods[identity(pod)] = p
	}
	if !slices.Contains(p.sandboxes, pod.Container) {
		p.sandboxes = append(p.sandboxes, pod.Container)
	}
	p.begin()
	p.asked = context.WithoutCancel(ctx)
	if waiting != nil {
		p.waiting = append(p.waiting, waiting)
	}
}

// begin notes that there is something to do.
func (p *podStatus) begin() {
	if p.stage == idle {
		p.stage, p.since = due, time.Now()
	}
}

// leave ends a wait that has had no result. An API server that lets somebody wait for too
// long is away: others do not wait for it then.
func (w *StatusWriter) leave(ctx context.Context, pod nad.Pod, waiting chan error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	p := w.pods[identity(pod)]
	if p == nil {
		return
	}
	p.waiting = slices.DeleteFunc(p.waiting, func(c chan error) bool { return c == waiting })
	if err := context.Cause(ctx); p.stage == sending && errors.Is(err, errSlow) {
		w.setAway(ctx, true, err)
	}
}

func (w *StatusWriter) isAway() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.away
}
