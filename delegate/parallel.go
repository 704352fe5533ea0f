package delegate

import (
	"context"
	"errors"
	"fmt"
	"sync"
)

// forward calls do with 0 to n-1 in this order and returns what it returned:
// with 0 alone, and when that has returned with the others, at most
// iv.Parallel at once.
func (iv *Invoker) forward(n int, do func(i int) error) []error {
	errs := make([]error, n)
	if n > 0 {
		errs[0] = do(0)
	}
	iv.atOnce(n-1, func(k int) { errs[1+k] = do(1 + k) })
	return errs
}

// backward calls do with n-1 to 0 in this order, at most iv.Parallel at once.
func (iv *Invoker) backward(n int, do func(i int) error) []error {
	errs := make([]error, n)
	iv.atOnce(n, func(k int) { errs[n-1-k] = do(n - 1 - k) })
	return errs
}

// catch makes an error of a panic, deferred by what works on one attachment. On
// a goroutine of ours the panic would end the process, and on the caller's it
// would leave an ADD half undone.
func catch(err *error) {
	if p := recover(); p != nil {
		*err = fmt.Errorf("panic: %v", p)
	}
}

// atOnce calls do with 0 to n-1 and returns when all have returned. Each has
// its turn as soon as fewer than iv.Parallel of those before it are under way.
// One after another they run on the caller's goroutine.
func (iv *Invoker) atOnce(n int, do func(k int)) {
	limit := min(iv.Parallel, n)
	if limit <= 1 {
		for k := range n {
			do(k)
		}
		return
	}
	var all sync.WaitGroup
	running := make(chan struct{}, limit)
	for k := range n {
		running <- struct{}{}
		all.Go(func() {
			do(k)
			<-running
		})
	}
	all.Wait()
}

// errEarlier is why an ADD is ended when one before it in the plan has failed.
var errEarlier = errors.New("an earlier network failed")

// endable returns n contexts, and a function that ends all but the first i.
func endable(ctx context.Context, n int) (ctxs []context.Context, endFrom func(i int)) {
	ctxs = make([]context.Context, n)
	ends := make([]context.CancelCauseFunc, n)
	for i := range n {
		ctxs[i], ends[i] = context.WithCancelCause(ctx) //nolint:fatcontext // side by side
	}
	return ctxs, func(i int) {
		for _, end := range ends[i:] {
			end(errEarlier)
		}
	}
}
