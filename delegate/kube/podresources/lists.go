package podresources

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	api "k8s.io/kubelet/pkg/apis/podresources/v1"
)

// lists asks the kubelet for all pods, one request at a time. Callers that wait for their turn
// meanwhile share the next answer.
type lists struct {
	turn    chan struct{} // has an element while somebody asks
	callers atomic.Int64  // of join
	begun   atomic.Int64  // requests
	last    answer        // used by whoever has the turn

	why atomic.Pointer[error] // of the last try, which is repeated, whoever has made it
}

func newLists() *lists { return &lists{turn: make(chan struct{}, 1)} }

// An answer is that of the request with that number. No other caller gets one without a number.
type answer struct {
	number int64
	reply  *api.ListPodResourcesResponse
	err    error
}

var errUnanswered = errors.New("the kubelet has not answered")

// An asker asks the kubelet once.
type asker func(context.Context) (*api.ListPodResourcesResponse, error)

// join returns the answer to a request that begins after the call of join: an earlier one may be
// older than the pod of the caller. The request is repeated while the kubelet is not there or
// rejects it. If ctx ends first, the error is that of the last try, if there is one. The answer is
// shared: do not change it.
func (l *lists) join(ctx context.Context, ask asker) (*api.ListPodResourcesResponse, error) {
	before := l.begun.Load()
	l.callers.Add(1)
	defer func() {
		if l.callers.Add(-1) == 0 {
			l.why.Store(nil)
		}
	}()
	select {
	case l.turn <- struct{}{}:
	case <-ctx.Done():
		return nil, l.unanswered()
	}
	defer func() { <-l.turn }()
	if l.last.number <= before {
		l.last = l.repeat(ctx, ask)
	}
	got := l.last
	if l.callers.Load() == 1 {
		l.last = answer{} // it is large
	}
	return got.reply, got.err
}

// repeat asks until there is an answer, or an error that will not pass.
func (l *lists) repeat(ctx context.Context, ask asker) answer {
	// The pauses vary, so that the processes of a node do not ask at the same time again.
	pause := wait.Backoff{Duration: minWait / 2, Factor: 2, Jitter: 1, Steps: 10, Cap: maxWait / 2}
	for {
		number := l.begun.Add(1)
		reply, err := ask(ctx)
		switch {
		case err != nil && ctx.Err() != nil:
			return answer{err: l.unanswered()}
		case err == nil || !passing(err):
			return answer{number, reply, err}
		}
		l.why.Store(&err)
		select {
		case <-time.After(pause.Step()):
		case <-ctx.Done():
			return answer{err: l.unanswered()}
		}
	}
}

// unanswered returns the error of a caller whose time is over.
func (l *lists) unanswered() error {
	if why := l.why.Load(); why != nil {
		return *why
	}
	return errUnanswered
}
