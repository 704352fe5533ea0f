package delegate

import (
	"context"
	"errors"
	"fmt"
	"sync"
)

// forward calls do with 0 to n-1, in this order, and returns the errors. The call
// with 0 is alone. After it at most iv.Parallel calls run at the same time.
func (iv *Invoker) forward(n int, do func(i int) error) []error {
	errs := make([]error, n)
	if n > 0 {
		errs[0] = do(0)
	}
	iv.atOnce(n-1, func(k int) { errs[1+k] = do(1 + k) })
	return errs
}

// backward calls do with n-1 to 0, in this order, at most iv.Parallel at the same
// time.
func (iv *Invoker) backward(n int, do func(i int) error) []error {
	errs := make([]error, n)
	iv.atOnce(n, func(k int) { errs[n-1-k] = do(n - 1 - k) })
	return errs
}

// catch turns a panic into an error. Functions that work on one attachment defer
// it. A panic on one of our goroutines would end the process, and a panic on the
// caller's would leave an ADD half done.
func catch(err *error) {
	if p := recover(); p != nil {
		*err = fmt.Errorf("panic: %v", p)
	}
}

// atOnce calls do with 0 to n-1, in this order, at most iv.Parallel at the same
// time, and returns when all calls have returned. Without parallelism the calls
// run on the caller's goroutine.
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

// errEarlier ends an ADD when one before it in the plan has failed.
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
