package podresources

import (
	"context"
	"errors"
	"sync"

	api "k8s.io/kubelet/pkg/apis/podresources/v1"
)

// lists asks the kubelet for all pods, one request at a time. The zero lists is ready for
// use.
type lists struct {
	mu      sync.Mutex
	next    *batch // has not begun: may be joined
	current *batch
	running bool // goroutine run
	closed  bool
	done    sync.WaitGroup
}

// A batch is a request with all who wait for its answer. Nobody joins it once it has
// begun: the answer may be older than the pod of the one who joins.
type batch struct {
	do      func()
	cancel  context.CancelFunc
	waiting int   // guarded by lists.mu
	why     error // of the last try, which is repeated; guarded by lists.mu

	answered chan struct{}
	reply    *api.ListPodResourcesResponse
	err      error
}

var errUnanswered = errors.New("the kubelet has not answered")

// An asker asks the kubelet once.
type asker func(context.Context) (*api.ListPodResourcesResponse, error)

// join returns the answer to a request that begins after the call of join. The request is
// repeated while the kubelet is not there or rejects it, and cancelled when nobody waits for
// it any more. If ctx ends first, the error is that of the last try, if there is one. The
// answer is shared: do not change it.
func (l *lists) join(ctx context.Context, ask asker) (*api.ListPodResourcesResponse, error) {
	b, err := l.enter(ctx, ask)
	if err != nil {
		return nil, err
	}
	select {
	case <-b.answered:
		return b.reply, b.err
	case <-ctx.Done():
		if why := l.leave(b); why != nil {
			return nil, why
		}
		return nil, errUnanswered
	}
}

// enter enters the batch that has not begun, a new one if there is none.
func (l *lists) enter(ctx context.Context, ask asker) (*batch, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil, errClosed
	}
	if l.next == nil {
		// The request does not end with the one who happened to be first.
		asking, cancel := context.WithCancel(context.WithoutCancel(ctx))
		b := &batch{cancel: cancel, answered: make(chan struct{})}
		b.do = func() { b.reply, b.err = l.repeat(asking, b, ask) }
		l.next = b
	}
	if !l.running {
		l.running = true
		l.done.Go(l.run)
	}
	l.next.waiting++
	return l.next, nil
}

// leave is for those who have entered b and wait no longer. It returns the error of the
// last try.
func (l *lists) leave(b *batch) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if b.waiting--; b.waiting == 0 {
		b.cancel()
		if l.next == b {
			l.next = nil
		}
	}
	return b.why
}

// run asks, batch after batch, until nobody waits.
func (l *lists) run() {
	for b := l.begin(); b != nil; b = l.begin() {
		b.do()
		b.cancel()
		close(b.answered)
	}
}

// begin makes the next batch the current one and returns it. Without one, run ends.
func (l *lists) begin() *batch {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.current, l.next = l.next, nil
	l.running = l.current != nil
	return l.current
}

// repeat asks until there is an answer, or an error that will not pass.
func (l *lists) repeat(ctx context.Context, b *batch, ask asker) (*api.ListPodResourcesResponse, error) {
	for wait := minWait; ; wait = min(2*wait, maxWait) {
		reply, err := ask(ctx)
		if err == nil || !passing(err) {
			return reply, err
		}
		l.mu.Lock()
		b.why = err
		l.mu.Unlock()
		if pause(ctx, wait) != nil {
			return nil, err
		}
	}
}

// close cancels all requests and waits for their end.
func (l *lists) close() {
	l.mu.Lock()
	l.closed = true
	for _, b := range []*batch{l.current, l.next} {
		if b != nil {
			b.cancel()
		}
	}
	l.mu.Unlock()
	l.done.Wait()
}
