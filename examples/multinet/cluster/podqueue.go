package cluster

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/util/workqueue"

	"github.com/metacni/metacni/delegate/kube"
	"github.com/metacni/metacni/delegate/lifecycle"
	"github.com/metacni/metacni/examples/internal/program"
	"github.com/metacni/metacni/netconf/nad"
	"github.com/metacni/metacni/status"
)

const (
	firstRetry = time.Second
	lastRetry  = 5 * time.Minute
	passes     = 4 // that have a turn at once
	settleTime = time.Second
)

// A podQueue passes over each pod that has records when these may differ from what the
// pod selects: when the selection or the records change. It looks at how things are, not at
// what has happened, so that nothing is lost when several changes become one pass. A pass
// that fails is made again, after a second first, then after two, four and so on. Each pod
// has a pass every five minutes at least: another program may have changed its records.
//
// A nil podQueue does nothing. Goroutines may share a podQueue.
type podQueue struct {
	pass    func(ctx context.Context, p nad.Pod, containers []string) passResult
	log     *slog.Logger
	queue   workqueue.TypedRateLimitingInterface[nad.Pod]
	changes *prometheus.CounterVec // action, outcome

	mu      sync.Mutex // guards what follows
	pods    map[nad.Pod]*followedPod
	running map[string]context.CancelCauseFunc // passes, by container
	leaving map[string]int                     // DELs under way, by container
}

// A followedPod is a pod that may have records.
type followedPod struct {
	containers []string // that may have them
	seen       podState // zero before the first
	differs    bool
	said       string // the error that was logged last
}

// add adds containers that may have records.
func (f *followedPod) add(containers ...string) {
	for _, container := range containers {
		if !slices.Contains(f.containers, container) {
			f.containers = append(f.containers, container)
		}
	}
}

// A podState is the part of a pod in the API that decides about its networks.
type podState struct {
	uid      string // of the object
	networks string // the annotation
	runs     bool
}

// runs reports whether a pod may have more networks, or fewer.
func runs(pod kube.Pod) bool {
	return !pod.Deleted && pod.Phase != corev1.PodSucceeded && pod.Phase != corev1.PodFailed
}

// A passResult says what a pass has found.
type passResult struct {
	recorded []string // containers that have records, or may have
	differs  bool     // the pod certainly does not have exactly what it selects
	err      error    // why it may not have that; the pass is made again
}

// Labels of changes.
const (
	actionAttach, actionDetach = "attach", "detach"
	outcomeOK, outcomeFailed   = "ok", "failed"
)

func newPodQueue(pass func(context.Context, nad.Pod, []string) passResult, log *slog.Logger) *podQueue {
	return &podQueue{
		pass: pass, log: log, changes: newChanges(),
		queue: workqueue.NewTypedRateLimitingQueue(workqueue.NewTypedItemExponentialFailureRateLimiter[nad.Pod](firstRetry, lastRetry)),
		pods:  make(map[nad.Pod]*followedPod), running: make(map[string]context.CancelCauseFunc), leaving: make(map[string]int),
	}
}

// newChanges returns the counter of changes of running pods.
func newChanges() *prometheus.CounterVec {
	changes := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "multinetd_reconciles_total", Help: "Networks that were to be attached to a running pod, or detached from it, as the pod selects them.",
	}, []string{"action", "outcome"})
	for _, action := range []string{actionAttach, actionDetach} {
		for _, outcome := range []string{outcomeOK, outcomeFailed} {
			changes.WithLabelValues(action, outcome)
		}
	}
	return changes
}

// run makes passes until ctx ends. It returns when all of them have ended, and undone what
// they had begun.
func (q *podQueue) run(ctx context.Context) {
	defer context.AfterFunc(ctx, q.queue.ShutDown)()
	var running sync.WaitGroup
	defer running.Wait()
	turns := make(program.Turns, passes)
	for {
		p, ended := q.queue.Get()
		if ended {
			return
		}
		end, ok := turns.Take(ctx)
		if !ok {
			return
		}
		running.Go(func() {
			defer end()
			q.take(ctx, p)
			q.queue.Done(p)
		})
	}
}

// added says that the ADD of p.Container has ended. The runtime may have known of an edit
// before the view does: a pass at once would often ask the API server about what the ADD has just
// attached. The status that is written after an ADD comes back to [podQueue.seen], usually much
// earlier than the pass.
func (q *podQueue) added(p nad.Pod) { q.note(p, settleTime) }

// changed says that the records of p.Container have changed otherwise.
func (q *podQueue) changed(p nad.Pod) { q.note(p, 0) }

// note has a pass made over the pod p after a while.
func (q *podQueue) note(p nad.Pod, after time.Duration) {
	if q == nil || p.Namespace == "" || p.Name == "" {
		return
	}
	container := p.Container
	p.Container = ""
	q.mu.Lock()
	defer q.mu.Unlock()
	f := q.pods[p]
	if f == nil {
		f = &followedPod{}
		q.pods[p] = f
	}
	f.add(container)
	q.queue.AddAfter(p, after) // at once if that is 0
}

// seen says how a pod is in the API. What it selects now is not what has failed before.
func (q *podQueue) seen(p kube.Pod) {
	if q == nil {
		return
	}
	now := podState{p.UID, p.Annotations[nad.NetworksAnnotation], runs(p)}
	q.mu.Lock()
	defer q.mu.Unlock()
	for pod, f := range q.pods {
		if pod.Namespace != p.Namespace || pod.Name != p.Name || f.seen == now {
			continue
		}
		f.seen = now
		q.queue.Forget(pod)
		q.queue.Add(pod)
	}
}

// take makes a pass.
func (q *podQueue) take(ctx context.Context, p nad.Pod) {
	q.mu.Lock()
	f := q.pods[p]
	if f == nil || ctx.Err() != nil {
		q.mu.Unlock()
		return
	}
	containers := f.containers
	f.containers = nil
	q.mu.Unlock()

	done := q.pass(ctx, p, containers)
	if ctx.Err() != nil {
		return // the next daemon begins with a pass
	}

	q.mu.Lock()
	defer q.mu.Unlock()
	f.add(done.recorded...)
	if done.differs || done.err == nil {
		f.differs = done.differs
	}
	said := f.said
	f.said = ""
	if done.err != nil {
		f.said = status.Error(done.err).Error() // in one line
	}
	if f.said != "" && f.said != said {
		q.log.LogAttrs(ctx, slog.LevelWarn, "pod does not have the networks that it selects", slog.String("pod", p.String()), slog.String("error", f.said))
	}
	if len(f.containers) == 0 {
		q.queue.Forget(p)
		delete(q.pods, p)
		return
	}
	if done.err != nil {
		q.queue.AddRateLimited(p)
		return
	}
	q.queue.Forget(p)
	q.queue.AddAfter(p, lastRetry)
}

// begin returns a context for changes of a container, which ends when a DEL comes. It
// reports false if one is under way. The caller calls end.
func (q *podQueue) begin(ctx context.Context, container string) (_ context.Context, end func(), ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.leaving[container] > 0 {
		return ctx, func() {}, false
	}
	ctx, cancel := context.WithCancelCause(ctx)
	q.running[container] = cancel
	return ctx, func() {
		cancel(nil)
		q.mu.Lock()
		defer q.mu.Unlock()
		delete(q.running, container)
	}, true
}

// deleting cancels the changes of a container, and allows no more until the caller calls
// end.
func (q *podQueue) deleting(container string) (end func()) {
	if q == nil {
		return func() {}
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.leaving[container]++
	if cancel := q.running[container]; cancel != nil {
		cancel(lifecycle.ErrSuperseded)
	}
	return func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		if q.leaving[container]--; q.leaving[container] == 0 {
			delete(q.leaving, container)
		}
	}
}

// differing is the number of pods that do not have exactly what they select.
func (q *podQueue) differing() (n int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, f := range q.pods {
		if f.differs {
			n++
		}
	}
	return n
}
