package cluster

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/util/workqueue"

	"github.com/metacni/metacni/delegate/kube"
	"github.com/metacni/metacni/delegate/lifecycle"
	"github.com/metacni/metacni/netconf/nad"
	"github.com/metacni/metacni/status"
)

const (
	firstRetry  = time.Second
	lastRetry   = 5 * time.Minute
	passes      = 4 // at once
	passTimeout = 2 * time.Minute
	settleTime  = time.Second
)

// A reconciler passes over each pod that has records when these may differ from what the
// pod selects: when the selection or the records change. It looks at how things are, not at
// what has happened, so that nothing is lost when several changes become one pass. A pass
// that fails is made again, after a second first, then after two, four and so on, at
// least every five minutes.
//
// A nil reconciler does nothing. Goroutines may share a reconciler.
type reconciler struct {
	pass    func(ctx context.Context, p nad.Pod, containers []string) passed
	log     *slog.Logger
	queue   workqueue.TypedDelayingInterface[nad.Pod]
	backoff workqueue.TypedRateLimiter[nad.Pod]
	changes *prometheus.CounterVec // action, outcome

	mu      sync.Mutex // guards what follows
	pods    map[nad.Pod]*followed
	running map[string]context.CancelCauseFunc // passes, by container
	leaving map[string]int                     // DELs under way, by container
}

// A followed pod is one that may have records.
type followed struct {
	containers []string // that may have them
	uid        string   // of the object that was seen last; empty before the first
	networks   string   // the annotation that was seen last
	differs    bool
	said       string // the error that was logged last
}

// A passed is what has become of a pass.
type passed struct {
	recorded []string // containers that have records, or may have
	differs  bool     // the pod does not have exactly what it selects
	err      error
	final    bool // trying again does not mend err
}

func newReconciler(pass func(context.Context, nad.Pod, []string) passed, log *slog.Logger) *reconciler {
	return &reconciler{
		pass: pass, log: log, changes: newChanges(),
		queue:   workqueue.NewTypedDelayingQueue[nad.Pod](),
		backoff: workqueue.NewTypedItemExponentialFailureRateLimiter[nad.Pod](firstRetry, lastRetry),
		pods:    make(map[nad.Pod]*followed), running: make(map[string]context.CancelCauseFunc), leaving: make(map[string]int),
	}
}

// run makes passes until ctx ends. It returns when all of them have ended, and undone what
// they had begun.
func (r *reconciler) run(ctx context.Context) {
	defer context.AfterFunc(ctx, r.queue.ShutDown)()
	var workers sync.WaitGroup
	for range passes {
		workers.Go(func() {
			for {
				p, ended := r.queue.Get()
				if ended {
					return
				}
				r.attempt(ctx, p)
				r.queue.Done(p)
			}
		})
	}
	workers.Wait()
}

// added says that the ADD of p.Container has ended. The runtime may have known of an edit
// before the view does: a pass at once could detach what the ADD has just attached. The
// status that is written after an ADD comes back to [reconciler.seen], usually much earlier
// than the pass.
func (r *reconciler) added(p nad.Pod) { r.note(p, settleTime) }

// changed says that the records of p.Container have changed otherwise.
func (r *reconciler) changed(p nad.Pod) { r.note(p, 0) }

// note has a pass made over the pod p after a while.
func (r *reconciler) note(p nad.Pod, after time.Duration) {
	if r == nil || p.Namespace == "" || p.Name == "" {
		return
	}
	container := p.Container
	p.Container = ""
	r.mu.Lock()
	defer r.mu.Unlock()
	f := r.pods[p]
	if f == nil {
		f = &followed{}
		r.pods[p] = f
	}
	if !slices.Contains(f.containers, container) {
		f.containers = append(f.containers, container)
	}
	r.queue.AddAfter(p, after) // at once if that is 0
}

// seen says how a pod is in the API. What it selects now is not what has failed before.
func (r *reconciler) seen(p kube.Pod) {
	if r == nil {
		return
	}
	networks := p.Annotations[nad.NetworksAnnotation]
	r.mu.Lock()
	defer r.mu.Unlock()
	for pod, f := range r.pods {
		if pod.Namespace != p.Namespace || pod.Name != p.Name || f.uid == p.UID && f.networks == networks {
			continue
		}
		f.uid, f.networks = p.UID, networks
		r.backoff.Forget(pod)
		r.queue.Add(pod)
	}
}

// attempt makes a pass.
func (r *reconciler) attempt(ctx context.Context, p nad.Pod) {
	r.mu.Lock()
	f := r.pods[p]
	if f == nil || ctx.Err() != nil {
		r.mu.Unlock()
		return
	}
	containers := f.containers
	f.containers = nil
	r.mu.Unlock()

	done := r.pass(ctx, p, containers)
	if ctx.Err() != nil {
		return // the next daemon begins with a pass
	}

	r.mu.Lock()
	defer r.mu.Unlock()
	for _, container := range done.recorded {
		if !slices.Contains(f.containers, container) {
			f.containers = append(f.containers, container)
		}
	}
	f.differs = done.differs
	said := f.said
	f.said = ""
	if done.err != nil {
		f.said = status.Error(done.err).Error() // in one line
	}
	if f.said != "" && f.said != said {
		r.log.LogAttrs(ctx, slog.LevelWarn, "pod does not have the networks that it selects", slog.String("pod", p.String()), slog.String("error", f.said))
	}
	if done.err != nil && !done.final {
		r.queue.AddAfter(p, r.backoff.When(p))
	} else {
		r.backoff.Forget(p)
	}
	if len(f.containers) == 0 {
		r.backoff.Forget(p)
		delete(r.pods, p)
	}
}

// begin returns a context for changes of a container, which ends when a DEL comes. It
// reports false if one is under way. The caller calls end.
func (r *reconciler) begin(ctx context.Context, container string) (_ context.Context, end func(), ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.leaving[container] > 0 {
		return ctx, func() {}, false
	}
	ctx, cancel := context.WithCancelCause(ctx)
	r.running[container] = cancel
	return ctx, func() {
		cancel(nil)
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(r.running, container)
	}, true
}

// deleting cancels the changes of a container, and allows no more until the caller calls
// end.
func (r *reconciler) deleting(container string) (end func()) {
	if r == nil {
		return func() {}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.leaving[container]++
	if cancel := r.running[container]; cancel != nil {
		cancel(lifecycle.ErrSuperseded)
	}
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.leaving[container]--; r.leaving[container] == 0 {
			delete(r.leaving, container)
		}
	}
}

// differing is the number of pods that do not have exactly what they select.
func (r *reconciler) differing() (n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, f := range r.pods {
		if f.differs {
			n++
		}
	}
	return n
}
