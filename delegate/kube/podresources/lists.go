package podresources

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"
	api "k8s.io/kubelet/pkg/apis/podresources/v1"
)

// lists asks the kubelet for all pods, one request at a time. All who wait for the next request
// share its answer. The zero lists is ready for use.
type lists struct {
	requests singleflight.Group // by number
	turn     chan struct{}      // has an element while a request has begun
	running  sync.WaitGroup

	mu     sync.Mutex
	begun  int   // requests: the next one has this number
	why    error // of the last try, which is repeated
	cancel context.CancelFunc
	closed bool
}

var errUnanswered = errors.New("the kubelet has not answered")

// An asker asks the kubelet once.
type asker func(context.Context) (*api.ListPodResourcesResponse, error)

// join returns the answer to a request that begins after the call of join: an earlier one may
// have an answer that is older than the pod. The request is repeated while the kubelet is not
// there or rejects it, for about limit. If ctx ends first, the error is that of the last try, if
// there is one. The answer is shared: do not change it.
func (l *lists) join(ctx context.Context, limit time.Duration, ask asker) (*api.ListPodResourcesResponse, error) {
	l.mu.Lock()
	if l.turn == nil {
		l.turn = make(chan struct{}, 1)
	}
	answer := l.requests.DoChan(strconv.Itoa(l.begun), func() (any, error) {
		// The request does not end with the one who happened to be first.
		return l.request(context.WithoutCancel(ctx), limit, ask)
	})
	l.mu.Unlock()
	select {
	case r := <-answer:
		reply, _ := r.Val.(*api.ListPodResourcesResponse)
		return reply, r.Err
	case <-ctx.Done():
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.why != nil {
			return nil, l.why
		}
		return nil, errUnanswered
	}
}

// request asks until there is an answer, or an error that will not pass.
func (l *lists) request(ctx context.Context, limit time.Duration, ask asker) (*api.ListPodResourcesResponse, error) {
	l.turn <- struct{}{}
	defer func() { <-l.turn }()
	ctx, cancel := context.WithTimeout(ctx, limit+maxWait) // those who wait see the end of their own time
	defer cancel()
	if !l.begin(cancel) {
		return nil, errClosed
	}
	defer l.running.Done()
	for wait := minWait; ; wait = min(2*wait, maxWait) {
		reply, err := ask(ctx)
		l.mu.Lock()
		l.why = err
		l.mu.Unlock()
		if err == nil || !passing(err) || pause(ctx, wait) != nil {
			return reply, err
		}
	}
}

// begin notes that a request begins: nobody joins it any more. It reports false after close.
func (l *lists) begin(cancel context.CancelFunc) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.begun++
	l.cancel, l.why = cancel, nil
	if !l.closed {
		l.running.Add(1)
	}
	return !l.closed
}

// close cancels all requests and waits for their end.
func (l *lists) close() {
	l.mu.Lock()
	l.closed = true
	if l.cancel != nil {
		l.cancel()
	}
	l.mu.Unlock()
	l.running.Wait()
}
