// Package thread runs functions on threads of their own.
package thread

import (
	"runtime"

	"golang.org/x/sys/unix"
)

// Alone calls do on a thread that ends afterwards, and with it what do changes of its thread. The
// first thread of a process never ends, and the process is seen through it: do never gets that.
func Alone(do func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
		if unix.Gettid() == unix.Getpid() {
			defer runtime.UnlockOSThread()
			Alone(do) // while this thread waits
			return
		}
		do()
	}()
	<-done
}
