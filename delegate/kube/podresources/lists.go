package podresources

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
)

// shared asks the kubelet for a list that is the same for all pods, one request at a time. Callers that
// wait for their turn meanwhile share the next answer.
type shared[T any] struct {
	turn    chan struct{} // has an element while somebody asks
	callers atomic.Int64  // of join
	begun   atomic.Int64  // requests
	last    answer[T]     // used by whoever has the turn

	why atomic.Pointer[error] // of the last try, which is repeated, whoever has made it
}

func newShared[T any]() *shared[T] { return &shared[T]{turn: make(chan struct{}, 1)} }

// An answer is that of the request with that number. No other caller gets one without a number.
type answer[T any] struct {
	number int64
	reply  T
	err    error
}

var errUnanswered = errors.New("the kubelet has not answered")

// join returns the answer to a request that begins after the call of join: an earlier one may be
// older than the pod of the caller. The request is repeated while the kubelet is not there or
// rejects it. If ctx ends first, the error is that of the last try, if there is one. The answer is
// shared: do not change it.
func (l *shared[T]) join(ctx context.Context, ask func(context.Context) (T, error)) (none T, err error) {
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
		return none, l.unanswered()
	}
	defer func() { <-l.turn }()
	if l.last.number <= before {
		l.last = l.repeat(ctx, ask)
	}
	got := l.last
	if l.callers.Load() == 1 {
		l.last = answer[T]{} // it is large
	}
	return got.reply, got.err
}

// repeat asks until there is an answer, or an error that will not pass.
func (l *shared[T]) repeat(ctx context.Context, ask func(context.Context) (T, error)) answer[T] {
	// The pauses vary, so that the processes of a node do not ask at the same time again.
	pause := wait.Backoff{Duration: minWait / 2, Factor: 2, Jitter: 1, Steps: 10, Cap: maxWait / 2}
	for {
		number := l.begun.Add(1)
		reply, err := ask(ctx)
		switch {
		case err != nil && ctx.Err() != nil:
			return answer[T]{err: l.unanswered()}
		case err == nil || !passing(err):
			return answer[T]{number, reply, err}
		}
		l.why.Store(&err)
		select {
		case <-time.After(pause.Step()):
		case <-ctx.Done():
			return answer[T]{err: l.unanswered()}
		}
	}
}

// unanswered returns the error of a caller whose time is over.
func (l *shared[T]) unanswered() error {
	if why := l.why.Load(); why != nil {
		return *why
	}
	return errUnanswered
}
