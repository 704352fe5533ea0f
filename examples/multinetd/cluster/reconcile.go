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
	firstRetry = time.Second
	lastRetry  = 5 * time.Minute
	passes     = 4 // at once
	settleTime = time.Second

	// retries is how many of the passes may be over pods that have failed before: a
	// network that hangs does not keep other pods from their turn.
	retries = passes / 2
)

// A reconciler passes over each pod that has records when these may differ from what the
// pod selects: when the selection or the records change. It looks at how things are, not at
// what has happened, so that nothing is lost when several changes become one pass. A pass
// that fails is made again, after a second first, then after two, four and so on. Each pod
// has a pass every five minutes at least: another program may have changed its records.
//
// A nil reconciler does nothing. Goroutines may share a reconciler.
type reconciler struct {
	pass    func(ctx context.Context, p nad.Pod, containers []string) passed
	log     *slog.Logger
	queue   workqueue.TypedDelayingInterface[nad.Pod]
	backoff workqueue.TypedRateLimiter[nad.Pod]
	retries chan struct{}          // one for each pass that may be a retry
	changes *prometheus.CounterVec // action, outcome

	mu      sync.Mutex // guards what follows
	pods    map[nad.Pod]*followed
	running map[string]context.CancelCauseFunc // passes, by container
	leaving map[string]int                     // DELs under way, by container
}

// A followed pod is one that may have records.
type followed struct {
	containers []string // that may have them
	seen       sight    // zero before the first
	differs    bool
	said       string // the error that was logged last
}

// A sight is what matters of a pod in the API.
type sight struct {
	uid      string // of the object
	networks string // the annotation
	runs     bool
}

// A passed is what has become of a pass.
type passed struct {
	recorded []string // containers that have records, or may have
	differs  bool     // the pod certainly does not have exactly what it selects
	err      error    // why it may not have that; the pass is made again
}

func newReconciler(pass func(context.Context, nad.Pod, []string) passed, log *slog.Logger) *reconciler {
	return &reconciler{
		pass: pass, log: log, changes: newChanges(), retries: make(chan struct{}, retries),
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
				r.take(ctx, p)
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
	now := sight{p.UID, p.Annotations[nad.NetworksAnnotation], runs(p)}
	r.mu.Lock()
	defer r.mu.Unlock()
	for pod, f := range r.pods {
		if pod.Namespace != p.Namespace || pod.Name != p.Name || f.seen == now {
			continue
		}
		f.seen = now
		r.backoff.Forget(pod)
		r.queue.Add(pod)
	}
}

// take makes a pass, or puts it off if too many others are retries as well.
func (r *reconciler) take(ctx context.Context, p nad.Pod) {
	if r.backoff.NumRequeues(p) > 0 {
		select {
		case r.retries <- struct{}{}:
			defer func() { <-r.retries }()
		default:
			r.queue.AddAfter(p, firstRetry)
			return
		}
	}
	r.attempt(ctx, p)
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
	if done.differs || done.err == nil {
		f.differs = done.differs
	}
	said := f.said
	f.said = ""
	if done.err != nil {
		f.said = status.Error(done.err).Error() // in one line
	}
	if f.said != "" && f.said != said {
		r.log.LogAttrs(ctx, slog.LevelWarn, "pod does not have the networks that it selects", slog.String("pod", p.String()), slog.String("error", f.said))
	}
	if len(f.containers) == 0 {
		r.backoff.Forget(p)
		delete(r.pods, p)
		return
	}
	pause := lastRetry
	if done.err != nil {
		pause = r.backoff.When(p)
	} else {
		r.backoff.Forget(p)
	}
	r.queue.AddAfter(p, pause)
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
