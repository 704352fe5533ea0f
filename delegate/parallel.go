package delegate

import (
	"errors"
	"fmt"
	"sync"
)

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
